"""Training with several processes: launch, shards of minibatches, and reductions."""
