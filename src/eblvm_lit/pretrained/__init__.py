"""Trained models that are part of the package; docs/python.md has their commands."""
