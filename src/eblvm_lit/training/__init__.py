"""The code that works with Lightning's Trainer: processes, callbacks, loggers and checkpoints."""
