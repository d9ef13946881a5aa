"""Everything about several processes: shards of minibatches, reductions, launch."""
