"""Optimizers and learning-rate schedules as pure functions."""
