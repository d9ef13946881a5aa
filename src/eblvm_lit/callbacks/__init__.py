"""When to evaluate, draw, save and stop."""
