"""Loggers that write curves, figures and final metrics to CSV files, TensorBoard, W&B, MLflow and Trackio."""
