"""The variational posteriors q(h|v; phi)."""
