"""Markov chains that draw v and h from a model."""
