"""Evaluate a checkpoint on the test split: python evaluate.py ckpt=PATH."""

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(cfg: DictConfig) -> float | None:
    """Evaluate as composed."""
    from eblvm_lit.runtime import cli, run  # takes seconds, for which --help and typing errors need not wait

    return cli.main(run.evaluate, cfg)


if __name__ == "__main__":
    main()
