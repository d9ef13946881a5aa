"""Errors for the user: each message is one sentence that says what to do."""

__all__ = ["ConfigError", "DataError", "EblvmError", "InterruptedRunError", "NonFiniteError", "escaped"]


def escaped(text: str) -> str:
    r"""Escape the control characters and unencodable characters that file names may contain.

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
    """A data file is missing, damaged, or contains unusable values."""


class ConfigError(EblvmError):
    """The configuration names something that does not exist, or objects that cannot be used together."""


class NonFiniteError(EblvmError):
    """A loss, a gradient, a parameter or a final metric is not finite."""


class InterruptedRunError(EblvmError):
    """A signal stopped the run, which can be resumed from its last checkpoint."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number
