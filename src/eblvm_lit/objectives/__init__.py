"""Functionals of the score whose minimum is the data's distribution."""
