"""Data sets: one data module each over one in-memory base."""
