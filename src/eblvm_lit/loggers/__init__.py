"""Where curves go."""
