"""The one error of this package."""


class TwoTowersError(ValueError):
    """Something would have been silently wrong. The message is one line and names the remedy."""
