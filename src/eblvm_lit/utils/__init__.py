"""Helpers for files, memory, progress, command lines and torch's global settings."""
