"""Variational posteriors q(h|v;phi)."""
