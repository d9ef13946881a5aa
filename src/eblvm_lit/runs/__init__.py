"""The life of a run: training, evaluation, results, and the trained run as an object."""
