"""Benchmarks of the time and the memory of every method: python -m benchmarks.run."""
