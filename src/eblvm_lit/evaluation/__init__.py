"""Metrics of trained models: likelihoods, divergences, sample quality and studies of bias."""
