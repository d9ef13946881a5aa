"""Files, memory, progress and settings of torch."""
