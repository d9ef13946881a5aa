"""All that touches Lightning's Trainer: processes, callbacks, loggers, checkpoints."""
