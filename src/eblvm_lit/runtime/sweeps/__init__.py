"""Sweeps by Hydra's multirun."""
