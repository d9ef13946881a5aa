"""The LightningModules: which levels alternate, and in which order."""
