"""The block of one statement: our result in words, and a strip with one line for each model.

    >>> from twotowers.evidence import EvidenceRow
    >>> row = EvidenceRow("figure 6", "m", claims.AGREES, "5 of 5 heads", "", "4", effect=1.0)
    >>> headline([row])
    'Agrees in the only model tested.'

A dot is the judged number, a grey tick the mean of random heads, and a grey band the range of 90%
of them. A result of the paper with a second verdict has two lines for each model: a filled dot on
counterbalanced prompts, and a hollow one in the paper's protocol. A diamond there is the number
that the paper prints. Shaded zones are those of the rule. A strip is a table with small pictures
whose positions are percentages, so that it fits any width, prints, and needs no script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from twotowers import axes, claims
from twotowers.axes import Row, Scale, Zone
from twotowers.claims import Claim, PaperResult, Statement
from twotowers.colours import GREY, INK, VERDICT_COLOURS
from twotowers.evidence import MAX_EXCEEDANCE, MIN_RANDOM_SETS
from twotowers.pages import judged_numbers, page_of, verdict_class
from twotowers.tables import ordered_models, shown_name

HEIGHT = 26  # of a line (pixels)
DOT, TICK = 6.5, 9  # radius of a dot, and half the length of a tick (pixels)
SIZES_OF = {
    claims.ON_SOLVED: "counterbalanced {}",
    claims.ON_PAPER: "{} in the paper's protocol",
    "": "{}",
}
"""Prompts of a verdict, with a place for their name"""


def block(statement: Statement, rows: Iterable[Row], summary: str, details: str = "") -> str:
    """Return the block of a statement, as HTML.

    Args:
        statement: Claim, or result of the paper.
        rows: Rows of evidence of the statement, with those of the second verdict.
        summary: Title of the folded numbers.
        details: Text below the folded numbers.
    """
    rows = [*rows]
    kind, title = "claim", ""
    if isinstance(statement, PaperResult):
        kind, title = "paper", f"The paper's {escape(statement.id)}. "
    items = "".join(f"<li>{_item(row, statement)}</li>" for row in rows)
    rule = f"<p>{escape(details)}</p>" if details else ""
    return (
        f'<div class="claim {kind}" id="{kind}-{statement.anchor}">'
        f'<p class="statement">{title}{escape(statement.statement)}</p>'
        f"{_answers(rows)}"
        f"{strip(statement, rows)}"
        f"<details><summary>{escape(summary)}</summary><ul>{items}</ul>{rule}"
        f"{_without_second(statement)}</details></div>"
    )


def entry(result: PaperResult, rows: Iterable[Row]) -> str:
    """Return the entry of a result in the list of all results, as Markdown.

    Its name and the printed numbers have the class `entry`. The build of the pages makes them
    entries of the index, so that the search box leads to them first.

    Args:
        result: Result of the paper.
        rows: Rows of evidence of the result, with those of the second verdict.
    """
    rows, page = [*rows], page_of(result)
    published = "".join(
        f'<span class="entry">{part}</span>' if re.fullmatch(r"[-+.\d]*\d%?", part) else part
        for part in re.split("( to | and |; |, )", result.published)
    )
    name = f'<span class="entry">{result.id}</span>'
    title = f"**{name}** ({escape(result.source)}). {escape(result.statement)}"
    title += f" *{published}*" * bool(published)
    if rows:
        figure = next((row.figure for row in rows if row.figure), "")
        place = f"fig-{figure.replace('.', '-')}" if figure else f"paper-{result.anchor}"
        name = f"ours: {figure}" if figure else "numbers"
        title += f' <a href="{page}.ipynb#{place}">{name}</a>'
    body = _answers(rows) + strip(result, rows) + _without_second(result)
    if not rows:
        body = f"<p>Not run: {escape(result.not_run or 'its chapter has no results yet')}.</p>"
    return f'<div class="claim paper" id="row-{result.anchor}">\n\n{title}\n\n{body}\n\n</div>'


def headline(rows: Sequence[Row]) -> str:
    """Return our result on a statement in words, from its verdicts, with a line for each of two.

    Args:
        rows: Rows of evidence of one claim or result of the paper, with those of the second
            verdict.
    """
    second = [row for row in rows if row.prompt_set == claims.ON_SOLVED]
    first = [row for row in rows if row.prompt_set != claims.ON_SOLVED]
    if not second:
        return _in_words(first)
    on_solved, on_paper = (_in_words(part) for part in (second, first))
    on_solved, on_paper = (text[:1].lower() + text[1:] for text in (on_solved, on_paper))
    return f"On counterbalanced prompts: {on_solved}\nIn the paper's protocol: {on_paper}"


def _answers(rows: Sequence[Row]) -> str:
    """Return our result on a statement in words, as HTML with a paragraph for each verdict."""
    lines = headline(rows).splitlines()
    return "".join(f'<p class="answer">{escape(line)}</p>' for line in lines)


def _in_words(rows: Sequence[Row]) -> str:
    """Return verdicts on one statement in words."""
    tested = [row for row in rows if row.verdict != claims.NOT_TESTABLE]
    if not tested:
        reasons = {row.words for row in rows}
        reason = reasons.pop() if len(reasons) == 1 else ""
        return f"Not testable in any model{': ' * bool(reason)}{reason}."
    answers = [claims.answer(row.verdict) for row in tested]
    counts = {answer: answers.count(answer) for answer in _ordered(answers)}
    n_models = len(tested)
    if n_models == 1:
        words = f"{answers[0]} in the only model tested"
    elif len(counts) == 1:
        words = f"{answers[0]} in {_all_of(n_models, answers[0])}"
    else:
        first, *others = (f"{answer} in {n}" for answer, n in counts.items())
        words = ", ".join([f"{first} of {n_models} models", *others])
    return f"{words[:1].upper()}{words[1:]}. {_about_random(tested)}".strip()


def _all_of(n_models: int, answer: str) -> str:
    """Return all of two or more models in words, which differ after a "not"."""
    if answer in (claims.DISAGREES, claims.FAILS):
        return "either model" if n_models == 2 else f"any of the {n_models} models"
    return "both models" if n_models == 2 else f"all {n_models} models"


def _ordered(answers: Iterable[str]) -> list[str]:
    """Return different answers in the order of the verdicts."""
    answers_to_paper = claims.AGREES, claims.IN_PART, claims.DISAGREES
    order = [*answers_to_paper, *claims.VERDICTS, claims.NOT_JUDGED]
    different = {*answers}
    known = [answer for answer in order if answer in different]
    unknown = different.difference(known)
    return [*known, *sorted(unknown)]


def _about_random(rows: Sequence[Row]) -> str:
    """Return a sentence on random heads in the models that agree at least in part, or hold."""
    too_few = sum(row.verdict == claims.HOLDS_TOO_FEW for row in rows)
    if too_few:
        return f"In {too_few} of these, too few other heads are left to compare."
    agree = (claims.AGREES, claims.IN_PART)
    positive = [row for row in rows if claims.answer(row.verdict) in agree]
    compared = [row for row in positive if _is_compared(row)]
    reached = sum(claims.about_control(row.verdict) == claims.NOT_SPECIFIC for row in compared)
    if not compared:
        return ""
    if not reached:
        if len(compared) == len(positive):
            return "Random heads do not reach it."
        return (
            f"Random heads do not reach it in {len(compared)} of these; in the others, too few are "
            "left for a test."
        )
    often = "more than 5% of random lists reach it as well."
    if reached == len(positive):
        return often.capitalize()
    return f"In {reached} of these, {often}"


def _is_compared(row: Row) -> bool:
    """Return whether there are enough random lists, of other groups or of the same layers."""
    is_unspecific = claims.about_control(row.verdict) == claims.NOT_SPECIFIC
    return is_unspecific or row.n_random_sets >= MIN_RANDOM_SETS


def _without_second(statement: Statement) -> str:
    """Return why a result of the paper has no second verdict, as HTML, "" if it can have one."""
    rule = claims.solved_rules().get(statement.id)
    if not isinstance(statement, PaperResult) or rule is None or not rule.none:
        return ""
    reason = f"No second verdict, on counterbalanced prompts: {escape(rule.none)}."
    return f'<p class="strip-key">{reason}</p>'


def strip(statement: Statement, rows: Sequence[Row]) -> str:
    """Return the strip of a statement, as HTML. It is "" if no model has a number.

    Args:
        statement: Claim, or result of the paper.
        rows: Rows of evidence of the statement, with those of the second verdict.
    """
    drawn = [row for row in rows if not math.isnan(row.effect)]
    if not drawn:
        return ""
    with_numbers = {row.prompt_set for row in drawn}
    rows = [row for row in rows if row.prompt_set in with_numbers]
    scale, zones = axes.scale_of(statement, drawn), axes.rule_zones(statement)
    zones = [zone for zone in zones if zone.high > scale.low and zone.low < scale.high]
    shared, varying, lines = _shared_reason(rows), _varying_sizes(rows), ""
    is_same = len({(row.verdict, row.effect, row.words) for row in rows}) == 1 < len(rows)
    for model in ordered_models(row.model for row in (rows[:1] if is_same else rows)):
        name = "every model" if is_same else escape(shown_name(model))
        name = f'<th scope="row">{name}</th>'
        own = [row for row in rows if row.model == model]
        for row in sorted(own, key=lambda row: row.prompt_set != claims.ON_SOLVED):
            picture = _track(statement, row, scale, zones)
            verdict = _verdict(row, shared) + _size(row) * (row.prompt_set in varying)
            lines += f"<tr>{name}<td>{picture}</td><td>{verdict}</td></tr>"
            name = "<td></td>"  # the second line of a model
    head, axis = axes.zone_names(scale, zones), axes.axis(scale)
    measure = escape(_first_part(statement.measure) + _unit(statement))
    second = claims.solved_rules().get(statement.id)
    if second is not None and second.differs:
        measure += f"<br>On counterbalanced prompts, another measure: {escape(second.differs)}"
    reason = f"<br>{escape(shared[:1].upper() + shared[1:])}." if shared else ""
    return (
        f'<table class="strip"><thead><tr><td></td><td>{head}</td><td></td></tr></thead>'
        f"<tbody>{lines}</tbody><tfoot><tr><td></td><td>{axis}</td><td></td></tr></tfoot></table>"
        f'<p class="strip-key">{measure}{reason}<br>{_key(drawn, statement)}{_sizes(drawn)}</p>'
    )


def _first_part(measure: str) -> str:
    """Return a measure up to its first semicolon that is not in parentheses."""
    first = re.match(r"([^;(]|\([^)]*\))*", measure)
    return first[0] if first else ""


def _sizes(rows: Sequence[Row]) -> str:
    """Return how many prompts the numbers of a strip rest on, as HTML, "" if that is not known."""
    parts = []
    for prompt_set in (claims.ON_SOLVED, claims.ON_PAPER, ""):
        own = [row for row in rows if row.prompt_set == prompt_set and row.prompts]
        if own:
            sizes = sorted(int(row.prompts) for row in own)
            most = f" to {sizes[-1]:,}" if sizes[-1] > sizes[0] else ""
            name = SIZES_OF[prompt_set].format(own[0].observations)
            parts.append(f"{sizes[0]:,}{most} {name}")
    return f"<br>In each model: {', '.join(parts)}." if parts else ""


def _unit(statement: Statement) -> str:
    """Return the unit of a claim in parentheses, unless the measure ends with it."""
    unit = getattr(statement, "unit", "share")
    return "" if unit == "share" or statement.measure.endswith(f"({unit})") else f" ({unit})"


def _track(statement: Statement, row: Row, scale: Scale, zones: Sequence[Zone]) -> str:
    """Return the picture of one model."""
    marks = [_shade(zone, scale) for zone in zones]
    published = axes.published_number(statement)
    if not math.isnan(row.control):
        marks += _random_marks(row, scale)
    if not math.isnan(row.effect_low):
        marks.append(_line("interval", scale, row.effect_low, row.effect_high, _colour(row)))
        marks += _arrows(row, scale)
    if not math.isnan(published) and row.prompt_set != claims.ON_SOLVED:
        diamond = '<path d="M0 -6 6 0 0 6 -6 0Z" fill="none" stroke="currentColor"/>'
        marks.append(_placed("published", scale.place(published), diamond))
    if not math.isnan(row.effect):
        marks.append(_dot(row, scale))
    numbers = judged_numbers(row, statement) or row.words
    label = escape(f"{shown_name(row.model)}: {row.verdict}. {numbers}")
    return (
        f'<svg class="track" width="100%" height="{HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{label}</title>{''.join(marks)}</svg>"
    )


def _shade(zone: Zone, scale: Scale) -> str:
    """Return the shaded zone of a verdict; that of other verdicts is clear."""
    low, high = scale.place(zone.low), scale.place(zone.high)
    width = float(high[:-1]) - float(low[:-1])
    colour = VERDICT_COLOURS.get(zone.verdict, VERDICT_COLOURS[claims.HOLDS])
    opacity = 0 if zone.verdict == claims.DISAGREES else 0.13
    return (
        f'<rect class="zone" x="{low}" width="{width:.1f}%" height="100%" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
    )


def _random_marks(row: Row, scale: Scale) -> list[str]:
    """Return the band and the tick of random heads, and a line from the tick to the dot."""
    marks = []
    if math.isnan(row.effect_low):
        marks.append(_line("reach", scale, row.control, row.effect, GREY))
    if not math.isnan(row.control_low):
        marks.append(_line("band", scale, row.control_low, row.control_high, GREY))
    tick = f'<path d="M0 -{TICK}V{TICK}" stroke="{GREY}" stroke-width="3"/>'
    return [*marks, _placed("random", scale.place(row.control), tick)]


def _placed(name: str, place: str, mark: str) -> str:
    """Return a mark, drawn around (0, 0), at a place of its line."""
    return f'<svg class="{name}" x="{place}" y="50%" overflow="visible">{mark}</svg>'


def _line(name: str, scale: Scale, start: float, end: float, colour: str) -> str:
    """Return a horizontal line between two values."""
    width, opacity = {"band": (12, 0.35), "reach": (1.5, 0.6), "interval": (3, 1)}[name]
    return (
        f'<line class="{name}" x1="{scale.place(start)}" x2="{scale.place(end)}" '
        f'y1="50%" y2="50%" stroke="{colour}" stroke-width="{width}" '
        f'stroke-opacity="{opacity}"/>'
    )


def _arrows(row: Row, scale: Scale) -> list[str]:
    """Return an arrow at each end of the axis beyond which the interval goes on."""
    head = f'<path d="M-6 -6 0 0 -6 6" fill="none" stroke="{_colour(row)}" stroke-width="3"/>'
    mirrored = f'<g transform="scale(-1 1)">{head}</g>'
    arrows = []
    if row.effect_low < scale.low:
        arrows.append(_placed("beyond", "0%", mirrored))
    if row.effect_high > scale.high:
        arrows.append(_placed("beyond", "100%", head))
    return arrows


def _dot(row: Row, scale: Scale) -> str:
    """Return the dot of a number. It is hollow in the paper's protocol."""
    colour, radius = _colour(row), DOT
    paint = f'fill="{colour}"'
    if row.prompt_set == claims.ON_PAPER:
        radius -= 1  # the stroke adds one
        paint = f'fill="none" stroke="{colour}" stroke-width="2"'
    name, place = verdict_class(row.verdict), scale.place(row.effect)
    return f'<circle class="dot {name}" cx="{place}" cy="50%" r="{radius}" {paint}/>'


def _colour(row: Row) -> str:
    """Return the colour of a row's verdict."""
    return VERDICT_COLOURS.get(row.verdict, INK)


def _shared_reason(rows: Sequence[Row]) -> str:
    """Return the reason of all rows, or that the result names no heads, which is told once."""
    reasons = {row.reason for row in rows}
    if len(rows) == 1:
        return ""
    if len(reasons) == 1:
        return reasons.pop()
    return next((text for text in reasons if text.startswith(claims.NOT_COMPARED)), "")


def _varying_sizes(rows: Sequence[Row]) -> set[str]:
    """Return the sets of prompts whose number of prompts differs between models."""
    sizes = {(row.prompt_set, row.prompts) for row in rows if row.prompts}
    prompt_sets = [prompt_set for prompt_set, _ in sizes]
    return {name for name in prompt_sets if prompt_sets.count(name) > 1}


def _size(row: Row) -> str:
    """Return the number of prompts of a row, as HTML, "" if it is not known."""
    return f", <small>n&nbsp;=&nbsp;{int(row.prompts):,}</small>" if row.prompts else ""


def _verdict(row: Row, shared: str) -> str:
    """Return a verdict in words, with the remark that a reader needs."""
    remark = "; ".join(remark for remark in _remarks(row) if remark != shared)
    return f"<b>{escape(row.verdict)}</b>" + (f": {escape(remark)}" if remark else "")


def _remarks(row: Row) -> list[str]:
    """Return what a reader must know of a verdict, besides the verdict."""
    if row.verdict == claims.NOT_TESTABLE:
        return [row.words]
    remarks = [row.reason] if row.reason else []
    if row.verdict == claims.NOT_SPECIFIC and row.exceedance > MAX_EXCEEDANCE:
        remarks.append(f"{_share_of_sets(row.exceedance)} do as well")
    if row.mark:
        remarks.append(claims.MARK_NAMES[row.mark])
    return remarks


def _share_of_sets(share: float) -> str:
    """Return a share of random sets in words."""
    if share == 1:
        return "all random sets of heads"
    return f"{min(share, 0.99):.0%} of random sets of heads"


def _item(row: Row, statement: Statement) -> str:
    """Return the line of a model in the folded numbers, as HTML."""
    mark = f" ({claims.MARK_NAMES[row.mark]})" if row.mark else ""
    separator = ": " if row.verdict == claims.NOT_TESTABLE else ", "
    text = ". ".join(filter(None, (judged_numbers(row, statement), row.words)))
    name = escape(shown_name(row.model))
    name += ", counterbalanced prompts" * (row.prompt_set == claims.ON_SOLVED)
    return f"{name}: <b>{escape(row.verdict)}</b>{escape(mark + separator + text)}"


def _key(rows: Sequence[Row], statement: Statement) -> str:
    """Return the key of the marks of a strip, as HTML."""
    has_random = any(not math.isnan(row.control) for row in rows)
    has_band = has_random and any(not math.isnan(row.control_low) for row in rows)
    has_interval = any(not math.isnan(row.effect_low) for row in rows)
    parts = ["● measured" + (", with its 95% interval" if has_interval else "")]
    scale = axes.scale_of(statement, rows)
    parts += ["→ beyond the axis"] * any(_arrows(row, scale) for row in rows)
    if isinstance(statement, PaperResult):
        prompt_sets = {row.prompt_set for row in rows}
        parts = ["● on counterbalanced prompts"] * (claims.ON_SOLVED in prompt_sets)
        parts += ["○ in the paper's protocol"] * (claims.ON_PAPER in prompt_sets)
        parts += ["◇ the paper's number"] * (statement.published_value is not None)
    if has_random:
        are_forms = isinstance(statement, Claim) and statement.control == "random forms"
        parts.append(f"| mean of random {'forms' if are_forms else 'sets of heads'}")
    if has_band:
        parts.append("▬ " + ("its 95% interval" if has_interval else "90% of them"))
    return " &nbsp; ".join(f"<span>{part}</span>" for part in parts)
