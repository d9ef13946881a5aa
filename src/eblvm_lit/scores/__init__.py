"""Estimators of the marginal score grad_v log p(v) and of its gradient with respect to theta."""
