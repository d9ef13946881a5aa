"""Markov chains that a training iteration runs: pure functions of the model, a state and noise drawn outside."""
