"""Lightning callbacks: evaluation, figures, checkpoints, averages and the reasons to stop."""
