"""The life of a run: training, evaluation, results, and what was trained as an object."""
