"""The axis of a strip: its scale with round ticks, and the zones of the rule that decides.

>>> scale = Scale(0.0, 1.0, is_share=True)
>>> scale.place(0.25), scale.text(0.25), len(scale.ticks)
('25.0%', '25%', 6)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from twotowers import claims
from twotowers.claims import Claim, PaperResult, Statement
from twotowers.pages import verdict_class

LETTER = 1.6  # width of a letter above a strip (percent of the width on a phone)
MARGIN = 0.05  # on both sides of the axis, as a share of its range
STEPS = (1, 2, 2.5, 5, 10)  # of ticks, times a power of ten
FIXED = ("effect", "control", "control_low", "control_high")
"""Numbers of a row that are always on the axis"""
FAR = 3  # times the distance of all other numbers: a number that lies further is off the axis
LARGEST_SHARE = 1.5  # above it a number whose measure mentions a share is no share itself

Row = Any
"""Row of evidence: an `EvidenceRow`, or a row of a table that has its fields as columns"""


@dataclass(frozen=True)
class Scale:
    """The axis of a strip.

    Attributes:
        low, high: Ends of the axis.
        is_share: Whether values are written as percentages.
    """

    low: float
    high: float
    is_share: bool

    def place(self, value: float) -> str:
        """Return the place of a value as a percentage of the width.

        Args:
            value: A value. Values outside the axis are placed at its end.
        """
        share = (value - self.low) / (self.high - self.low)
        return f"{100 * min(1.0, max(0.0, share)):.1f}%"

    def text(self, value: float) -> str:
        """Return a value as a label of the axis.

        Args:
            value: A value.
        """
        return f"{value:z.0%}" if self.is_share else f"{value:z.3g}"

    @property
    def ticks(self) -> list[float]:
        """Three to seven round values on the axis."""
        rough = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in STEPS if step * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Zone:
    """A shaded range of values that have one verdict.

    Attributes:
        verdict: The verdict.
        low, high: Ends of the range.
    """

    verdict: str
    low: float
    high: float


def rule_zones(statement: Statement) -> list[Zone]:
    """Return the zones of the rule that decides on a statement, from the right to the left.

    Args:
        statement: Claim, or result of the paper.
    """
    if isinstance(statement, PaperResult):
        agrees, part = statement.agrees, statement.part
        if agrees is None or part is None:
            return []
        return [
            Zone(claims.AGREES, agrees, math.inf),
            Zone(claims.IN_PART, part, agrees),
            Zone(claims.DISAGREES, -math.inf, part),
        ]
    return [Zone("as claimed", statement.null_value, math.inf)]  # type: ignore[attr-defined]


def scale_of(statement: Statement, rows: Sequence[Row]) -> Scale:
    """Return the axis that holds all numbers of the rows and the ends of the zones.

    One bound of an interval that is far from all others, as that of a share of almost nothing, is
    off.

    Args:
        statement: Claim, or result of the paper.
        rows: Rows of evidence of the statement, with numbers.
    """
    fixed = [getattr(row, name, math.nan) for row in rows for name in FIXED]
    fixed += [end for zone in rule_zones(statement) for end in (zone.low, zone.high)]
    fixed.append(published_number(statement))
    fixed = [value for value in fixed if math.isfinite(value)]
    bounds = [bound for row in rows for bound in (row.effect_low, row.effect_high)]
    bounds = [bound for bound in bounds if math.isfinite(bound)]
    ascending = sorted(fixed + bounds)
    descending = [-value for value in reversed(ascending)]
    high = max(*fixed, _end(ascending))
    low = min(*fixed, -_end(descending))
    is_share = "share" in statement.measure and bool(high <= LARGEST_SHARE)
    if isinstance(statement, Claim):
        is_share = statement.unit == "share"
    room = MARGIN * (high - low or 1.0)
    return Scale(low - room, high + room, is_share)


def _end(ascending: Sequence[float]) -> float:
    """Return the largest number, or the one before it if the largest is far from all others."""
    if len(ascending) < 3:
        return ascending[-1]
    lowest, *_, before, largest = ascending
    is_far = largest - lowest > FAR * (before - lowest) > 0
    return before if is_far else largest


def published_number(statement: Statement) -> float:
    """Return the number that the paper prints for a result, NaN if there is none.

    Args:
        statement: Claim, or result of the paper.
    """
    if not isinstance(statement, PaperResult) or statement.published_value is None:
        return math.nan
    return statement.published_value


def zone_names(scale: Scale, zones: Sequence[Zone]) -> str:
    """Return the names of the zones above a strip; one that would cover another is left out.

    Args:
        scale: Axis of the strip.
        zones: Zones, from the right to the left.
    """
    texts, right = "", 100.0  # right: where the name to the right of it begins
    for zone in zones:
        low, high = (float(scale.place(end)[:-1]) for end in (zone.low, zone.high))
        half = LETTER * len(zone.verdict) / 2
        middle = min((low + high) / 2, right - half)
        if middle >= half and middle + half > low:
            texts += _text(f"{middle:.1f}%", zone.verdict, verdict_class(zone.verdict))
            right = middle - half - 2 * LETTER
    return _line_of_text(16, texts)


def axis(scale: Scale) -> str:
    """Return the ticks and labels below a strip.

    Args:
        scale: Axis of the strip.
    """
    texts = ""
    for tick in scale.ticks:
        place = scale.place(tick)
        texts += f'<line x1="{place}" x2="{place}" y1="0" y2="4" stroke="currentColor"/>'
        texts += _text(place, scale.text(tick))
    return _line_of_text(18, texts)


def _line_of_text(height: int, texts: str) -> str:
    """Return a line of texts, the last of which may reach beyond the strip."""
    size = f'width="100%" height="{height}" overflow="visible"'
    return f'<svg {size} aria-hidden="true">{texts}</svg>'


def _text(place: str, words: str, name: str = "") -> str:
    """Return a small text of a strip's axis."""
    name = f' class="{name}"' if name else ""
    return (
        f'<text{name} x="{place}" y="15" text-anchor="middle" font-size="11" '
        f'fill="currentColor">{escape(words)}</text>'
    )
