"""The benchmarks of this package, for example of the time and memory of every method (benchmarks.run)."""
