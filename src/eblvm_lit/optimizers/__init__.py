"""Optimizers and schedules as pure functions, and their Lightning face."""
