"""Hypergradients: ways to compute or approximate dJ(theta, phi*(theta))/dtheta."""
