"""Divergences of q(h|v) from p(h|v), which the lower level minimises."""
