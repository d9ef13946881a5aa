"""Noise distributions that data are told apart from."""
