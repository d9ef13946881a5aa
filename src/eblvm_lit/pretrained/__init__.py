"""Trained models that are part of the package; docs/pretrained.md says how they were trained."""
