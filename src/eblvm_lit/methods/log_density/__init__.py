"""Methods whose losses use log-densities up to log Z. Each loss has its own file, and so have the log-densities."""
