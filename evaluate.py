"""Evaluate a checkpoint on the test split: python evaluate.py ckpt=PATH."""

import sys

import hydra
from omegaconf import DictConfig

from eblvm_lit.runtime.renamed import exit_if_renamed


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(cfg: DictConfig) -> float | None:
    """Evaluate as composed."""
    from eblvm_lit.runtime import cli, run  # takes seconds, for which --help and typing errors need not wait

    return cli.main(run.evaluate, cfg)


if __name__ == "__main__":
    exit_if_renamed(sys.argv[1:])  # Hydra would only say that there is no such key
    main()
