"""The error of this package, with a message of one line, and its two kinds for measurements."""


class TwoTowersError(ValueError):
    """An error whose message has one line and says how to continue.

    Characters that cannot be printed, such as line breaks, are written as Python writes them.
    """

    def __init__(self, message: object = "") -> None:
        """Keep the message on one line.

        Args:
            message: Text of the error.
        """
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)))

    def _render_traceback_(self) -> list[str]:
        """Return the line that a notebook shows instead of a traceback."""
        return [f"TwoTowersError: {self}"]


class NotTestable(TwoTowersError):
    """A result, not a mistake: the measurement has no meaning for this model.

    An example is a measurement of heads if the rule selects none.
    """


class Unavailable(NotTestable):
    """A missing input of a measurement, such as a published set; the next run tries again."""
