"""Figures of data, models and learning curves."""
