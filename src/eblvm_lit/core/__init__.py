"""Helpers for all other folders: functional modules, gradients, tensors, seeds, shards, compilation."""
