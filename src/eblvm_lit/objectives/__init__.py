"""Training objectives: functionals of a model's score that are smallest for the distribution of the data."""
