"""Studies that compare estimators with what they estimate: hypergradients and scores."""
