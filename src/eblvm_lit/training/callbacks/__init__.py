"""Lightning callbacks for evaluation, figures, checkpoints and moving averages, and for stopping a run."""
