"""Trained models that are part of the package; docs/python.md has the commands that trained them."""
