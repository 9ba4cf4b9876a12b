"""Two towers: the analysis behind an executable paper on in-context heads (Yu and Ananiadou, EMNLP
2024)."""

__version__ = "0.2.0"
