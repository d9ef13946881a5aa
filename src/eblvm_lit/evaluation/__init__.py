"""What a trained model is worth: likelihoods, divergences, and their errors."""
