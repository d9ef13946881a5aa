"""Data sets: one data module per data set, on one base class that serves batches of whole arrays."""
