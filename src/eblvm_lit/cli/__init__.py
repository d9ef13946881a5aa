"""The command line: its commands, sweeps, hints on mistyped overrides, and training from Python."""
