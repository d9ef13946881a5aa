"""Image folders of users: their splits, classes and labels, and the contents of their files."""
