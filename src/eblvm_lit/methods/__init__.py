"""The training methods, which are LightningModules. One iteration of a method is one pass of its paper's algorithm."""
