"""What is typed: commands, command lines in Python, completion and hints."""
