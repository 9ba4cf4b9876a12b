"""The one error of this package."""


class TwoTowersError(ValueError):
    """Something would have been silently wrong. The message is one line and names the remedy."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback: the one line."""
        return [f"TwoTowersError: {self}"]
