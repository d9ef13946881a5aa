"""A user's own parts: an energy, a data set, an objective, a callback and a figure."""
