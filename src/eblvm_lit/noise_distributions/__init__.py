"""Noise distributions of noise-contrastive estimation."""
