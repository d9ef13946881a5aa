"""The steps of a run, which are training, evaluation and results, and the trained run as an object."""
