"""Runs: from a composed configuration to trained checkpoints and final metrics."""
