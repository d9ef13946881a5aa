"""Loggers: CSV files, TensorBoard and Weights & Biases, with figures and final metrics."""
