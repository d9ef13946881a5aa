"""Tables and figures that compare runs: ``python -m eblvm_lit.reports DIR...``."""
