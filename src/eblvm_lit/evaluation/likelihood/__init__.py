"""Log-likelihoods and log Z: exact, by annealed importance sampling, and by quadrature."""
