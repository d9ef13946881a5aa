"""Samples of trained models: the choice of the generator or sampler that draws them, and their cache on disk."""
