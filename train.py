"""Train an energy-based latent variable model: python train.py [GROUP=OPTION] [KEY=VALUE]; --help lists them."""

import sys
import warnings

import hydra
from omegaconf import DictConfig

from eblvm_lit.runtime.renamed import exit_if_renamed

# conf's launcher has the plugin's own name, so that whoever lacks the plugin is told what to install
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/joblib' is validated against ConfigStore schema")


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float | None:
    """Train as composed."""
    from eblvm_lit.runtime import cli, run  # takes seconds, for which --help and typing errors need not wait

    return cli.main(run.train, cfg)


if __name__ == "__main__":
    exit_if_renamed(sys.argv[1:])  # Hydra would only say that there is no such key
    main()
