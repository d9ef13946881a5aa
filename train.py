"""Train an energy-based latent variable model: python train.py [GROUP=OPTION] [KEY=VALUE]; --help lists them."""

from eblvm_lit.cli.commands import train

if __name__ == "__main__":
    train()  # Hydra's completion in shells serves scripts that contain @hydra.main
