"""The one error of this package, and its kind for what nobody recorded; and how to tell that memory is short."""


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short, on any device: PyTorch has its own type for some of them only."""
    text = str(error).lower()
    short = "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    return short or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
