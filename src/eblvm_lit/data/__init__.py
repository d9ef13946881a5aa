"""The data modules, one for each data set, and their base class, which serves arrays in batches."""
