"""Time and memory of every method: python -m benchmarks.run."""
