"""Sweeps: many jobs from one command, and going on with those that are missing."""
