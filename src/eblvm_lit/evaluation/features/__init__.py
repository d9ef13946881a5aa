"""Networks that map images to features, and statistics of these features."""
