"""The command line: commands, sweeps, hints on wrong words, and training from Python."""
