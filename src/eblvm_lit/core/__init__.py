"""Shared by all parts: functional modules, gradients, tensors, seeds, shards, fast paths of torch."""
