"""What is computed from the features of samples and of data."""
