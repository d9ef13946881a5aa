"""Bi-level doubly variational learning (Kan et al. 2022) and its baselines, the VAE and SN-GAN."""
