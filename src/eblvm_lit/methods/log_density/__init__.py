"""Methods whose loss needs log-densities up to log Z: one file a loss, and one for the log-densities, exact or by q."""
