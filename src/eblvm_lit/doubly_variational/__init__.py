"""What the levels of doubly variational learning minimise: terms, importance ratios, and their compositions."""
