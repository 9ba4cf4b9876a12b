"""The one error of this package, and its kind for what nobody recorded."""


class TwoTowersError(ValueError):
    """Something would have been silently wrong. The message is one line and names the remedy.

    Signs that cannot be printed (line breaks, a terminal's escapes) are written as Python writes them.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback: the one line."""
        return [f"TwoTowersError: {self}"]


class NotRecorded(TwoTowersError):
    """Only recorded tables may be shown, and this one is not recorded: it says nothing of the model."""
