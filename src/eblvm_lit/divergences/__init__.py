"""Lower-level divergences between q(h|v) and p(h|v)."""
