"""Errors for the user: each message is one sentence that says what to do."""

__all__ = ["ConfigError", "DataError", "EblvmError"]


class EblvmError(Exception):
    """An error that the user can correct; the command line prints it without a traceback."""


class DataError(EblvmError):
    """A data file is missing, damaged, or contains unusable values."""


class ConfigError(EblvmError):
    """The configuration names something that does not exist, or parts that do not fit together."""
