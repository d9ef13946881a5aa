"""Sweeps with Hydra's multirun: resuming them and reporting failed jobs."""
