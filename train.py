"""Train an energy-based latent variable model: python train.py [GROUP=OPTION] [KEY=VALUE]; --help lists them."""

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Train as composed."""
    from eblvm_lit import command_line, run  # takes seconds, for which --help and typing errors need not wait

    return command_line.main(run.train, cfg)


if __name__ == "__main__":
    main()
