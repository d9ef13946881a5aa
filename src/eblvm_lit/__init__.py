"""Energy-based latent variable models on Hydra and PyTorch Lightning."""

__version__ = "0.1.0"
