"""Evaluate a checkpoint on the test split: python evaluate.py ckpt=PATH."""

import hydra
from omegaconf import DictConfig

from eblvm_lit import run


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(cfg: DictConfig) -> float | None:
    """Evaluate as composed."""
    return run.main(run.evaluate, cfg)


if __name__ == "__main__":
    main()
