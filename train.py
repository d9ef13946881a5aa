"""Train an energy-based latent variable model: python train.py [GROUP=OPTION] [KEY=VALUE]; --help lists them."""

import hydra
from omegaconf import DictConfig

from eblvm_lit import run


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Train as composed."""
    return run.main(run.train, cfg)


if __name__ == "__main__":
    main()
