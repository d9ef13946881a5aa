"""Markov chains for training, written as pure functions of the model, the state of the chains, and the noise."""
