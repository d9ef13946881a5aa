"""Studies of the errors of estimators, for estimated hypergradients and estimated scores."""
