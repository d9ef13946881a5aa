"""Estimators of the marginal score grad_v log p(v) and of its theta-gradient."""
