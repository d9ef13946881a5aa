"""Lightning callbacks: evaluation, figures, checkpoints, averages, and stopping at errors and signals."""
