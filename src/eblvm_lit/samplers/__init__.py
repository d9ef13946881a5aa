"""Markov chains that sample v and h from a model."""
