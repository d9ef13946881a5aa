"""Errors meant for the user: each message is one sentence that says what to do."""

__all__ = ["ConfigError", "DataError", "EblvmError"]


class EblvmError(Exception):
    """Anything the user can mend; printed without a traceback by the command line."""


class DataError(EblvmError):
    """A data file is missing, damaged or holds values no model can be trained on."""


class ConfigError(EblvmError):
    """The configuration asks for something that does not exist or does not fit together."""
