"""The training methods as LightningModules: each iteration is its paper's algorithm box."""
