"""Samples of trained models: the choice of what draws them, and their cache on disk."""
