"""Markov chains that training iterations run, as pure functions of the model, a state and given noise."""
