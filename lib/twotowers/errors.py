"""The one error of this package, and its kind for what cannot be asked of a model; and how to tell
that memory is short."""


class TwoTowersError(ValueError):
    """Something would have been silently wrong. The message is one line and names the remedy.

    Signs that cannot be printed (line breaks, a terminal's escapes) are written as Python writes
    them.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback: the one line."""
        return [f"TwoTowersError: {self}"]


class NotTestable(TwoTowersError):
    """A measurement has no meaning for this model, such as one of heads that no rule names: a
    result, not a mistake."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short, on any device: PyTorch has its own type for some
    of them only."""
    text = str(error).lower()
    short = (
        "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    )
    return short or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class Unavailable(NotTestable):
    """What a measurement needs, such as a published set, cannot be had now: it is asked for again
    the next time."""
