"""Two towers: the analysis behind an executable paper on in-context heads."""

__version__ = "1.0.0"
