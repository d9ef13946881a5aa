"""Loggers: CSV files and Weights & Biases, both told about figures, final metrics and checkpoints."""
