"""Loggers: CSV files, TensorBoard, Weights & Biases, MLflow and Trackio, with figures and final metrics."""
