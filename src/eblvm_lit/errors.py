"""Errors for the user: each message is one sentence that says what to do."""

__all__ = ["ConfigError", "DataError", "EblvmError", "InterruptedRunError", "NonFiniteError", "escaped"]


def escaped(text: str) -> str:
    r"""Escape the characters in a text that cannot be printed or encoded, such as those in some file names.

    Example:
        >>> print(escaped("two\nlines \udcff"))
        two\nlines \udcff
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class EblvmError(Exception):
    """An error that the user can correct; the command line prints it without a traceback."""

    def __str__(self) -> str:
        """Return the message on one line, with special characters in names escaped."""
        return escaped(super().__str__())


class DataError(EblvmError):
    """The error for a data file that is missing, is damaged or contains unusable values."""


class ConfigError(EblvmError):
    """The error for a configuration that names something missing, or combines objects that do not fit each other."""


class NonFiniteError(EblvmError):
    """The error for a loss, a gradient, a parameter or a final metric that is not finite."""


class InterruptedRunError(EblvmError):
    """The error for a run that a signal has stopped, and that can be resumed from its last checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number
