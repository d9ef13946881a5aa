"""Parts of one's own: an energy, a data set, an objective, a callback and a figure."""
