"""Shared by all parts: modules as functions, gradients, tensors, seeds, shards, and fast paths through torch."""
