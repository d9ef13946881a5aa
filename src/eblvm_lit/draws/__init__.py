"""Samples of trained models: who draws them, and where they are kept."""
