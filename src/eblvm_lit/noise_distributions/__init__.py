"""The noise distributions for noise-contrastive estimation."""
