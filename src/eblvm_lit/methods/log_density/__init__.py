"""Methods whose loss uses log-densities up to log Z: a file for each loss, and one for the log-densities."""
