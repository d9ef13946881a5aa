"""Tables and figures that compare finished runs: ``python -m eblvm_lit.reports DIR...``."""
