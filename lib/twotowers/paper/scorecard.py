"""The scorecard: every published row beside what each model's tables say, by rules that stand in a file.

    found = model_tables(["_build/tables", "runs", "data/results"])      # model -> its tables
    cards = score(found)                      # one row per published row and model: verdict, measured, why

`data/scorecard_rules.csv` holds one rule for each published row (several where it claims several things): the table and
its rows, the column with its interval, and either a direction or a printed number with a tolerance. A rule's columns:

- `source`, `model`, `where`, `quantity`: the published row; `*` fits all
- `page`: chapter#heading; `table`; `rows`: a pandas query, in which @dataset, @true_label, @heads, @quantity come from
  the published row and @word_sets are the paper's word sets
- `column`: estimate, low, high; "exact" in place of the bounds for what has no sampling error
- `less`, `less_column`, `by`: rows to subtract, joined on `by`; the bounds are then the widest (low - high, high - low)
- `take`: "rows" all of them, "least" the smallest, "layers" the layers of the top heads
- `test`: a direction with its null, "> 0"; every row's interval must leave the null out on that side
- `number`, `tolerance`: which number(s) of the published value the measured one must meet, and how closely
- `models`: whether the rule judges "any" model, only the "same" one, or "never" (then the measured value stands beside)
- `exceptions`: how many rows may fail a direction
- `accuracy`, `sets`: the gate of a claim about in-context learning; both are empty for what is no such claim (accuracy
  itself, a worked example, the authors' plain prompts). `accuracy` is the table in which the model's accuracy stands.
  `sets` says which data sets the rows are of: column(s) of theirs, or "all of" or "first of" what another table names

The gate: a model that does not learn a task can show the right signs by accident, so a row counts only on data sets on
which the model's accuracy is clearly above guessing one of the two labels, whichever of them is true.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.stats import tables

REPRODUCED, DIFFERS, UNDECIDED = "reproduced", "differs", "undecided"
NOT_RUN, NOT_COMPARABLE = "not run", "not comparable"
VERDICTS = (REPRODUCED, DIFFERS, UNDECIDED, NOT_COMPARABLE, NOT_RUN)
MEANING = {
    REPRODUCED: "the measured value meets the rule",
    DIFFERS: "it contradicts the rule",
    UNDECIDED: "an interval holds the null, or there is none: neither for nor against",
    NOT_COMPARABLE: "a number of another model or of other data, or our model is not shown to learn the task",
    NOT_RUN: "no table of this model holds it",
}
TOLD = {REPRODUCED: "; the same direction", DIFFERS: "; the opposite direction", UNDECIDED: "; no clear direction"}
THEIRS, MEAN = "the paper's is ", "a mean over models and sentence sets"
KEY = ["source", "model", "where", "quantity"]
TOP_SHARE = 20 / 720  # the paper shows the top 20 of GPT2-large's 720 heads
CHANCE = 0.5  # accuracy of guessing one of the two labels
TOGETHER, UNNAMED = "all sets together", "the sets it was measured on"
ACCURACY = {  # table with accuracies -> its rows, estimate and low
    "01-locate-accuracy": ("", "accuracy", "low"),
    "06-interventions-by-dataset": ("", "plain", "plain_low"),
    "07-mitigation-majority": ("prompts == 'balanced' and heads == 'as it is'", "accuracy", "low"),
    "08-llama-accuracy": ("", "accuracy", "low"),
}


def rules() -> pd.DataFrame:
    """The rules, all as text. Raises TwoTowersError when a published row has none, or a rule has no published row."""
    found = pd.read_csv(data_folder() / "scorecard_rules.csv", dtype=str, keep_default_na=False)
    published = tables.published()
    for _, row in published.iterrows():
        if not len(_rules_of(row, found)):
            raise TwoTowersError(f"no rule judges '{' | '.join(row[KEY])}': add one to data/scorecard_rules.csv")
    for _, rule in found.iterrows():
        if not any(_fits(rule, row) for _, row in published.iterrows()):
            raise TwoTowersError(f"the rule for '{' | '.join(rule[KEY])}' fits nothing in data/published.csv: mend it")
    return found


def _fits(rule: pd.Series, row: pd.Series) -> bool:
    return all(rule[name] in ("*", row[name]) for name in KEY)


def _rules_of(row: pd.Series, found: pd.DataFrame) -> pd.DataFrame:
    return found[[_fits(rule, row) for _, rule in found.iterrows()]]


@dataclass
class Measured:
    """The tables of one model (one fingerprint), and the folders they lie in."""

    fingerprint: str
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.fingerprint.rsplit("@", 1)[0]


def model_tables(folders: Iterable[str | os.PathLike]) -> list[Measured]:
    """The stamped tables of every model below `folders`: FOLDER/MODEL/*.csv and FOLDER/MODEL/tables/*.csv.

    A table that lies in several folders is taken from the first. What is no stamped table of one model is left out.
    Of NAME@MODEL.csv, what a chapter measured on one more model, the part after the @ is not part of the name.
    """
    found: dict[str, Measured] = {}
    for folder in map(Path, folders):
        for path in sorted([*folder.glob("*/*.csv"), *folder.glob("*/tables/*.csv")]):
            try:
                table = tables.load(path.parent, path.stem)
            except TwoTowersError:
                continue
            stamps = table[tables.STAMP].unique()
            if len(stamps) != 1:
                continue
            model = found.setdefault(str(stamps[0]), Measured(str(stamps[0])))
            model.tables.setdefault(path.stem.partition("@")[0], table)
            if path.parent.as_posix() not in model.folders:
                model.folders.append(path.parent.as_posix())
    return list(found.values())


def score(models: Iterable[Measured], found: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per published row and model: the published columns, here (fingerprint), verdict, measured, why, page."""
    found = rules() if found is None else found
    out = []
    for model in models:
        for _, row in tables.published().iterrows():
            parts = [judge(rule, row, model) for _, rule in _rules_of(row, found).iterrows()]
            # The verdict of several conditions is the worst of them; all must hold.
            order = (DIFFERS, NOT_RUN, UNDECIDED, NOT_COMPARABLE, REPRODUCED)
            verdict = min((part["verdict"] for part in parts), key=order.index)
            said = {name: "; ".join(dict.fromkeys(p[name] for p in parts if p[name])) for name in ("measured", "why")}
            page = next((p["page"] for p in parts if p["page"]), "")
            out.append({**row, "here": model.fingerprint, "verdict": verdict, **said, "page": page})
    return pd.DataFrame(out, columns=[*tables.published().columns, "here", "verdict", "measured", "why", "page"])


def judge(rule: pd.Series, row: pd.Series, model: Measured) -> dict[str, str]:
    """Verdict of one rule on one model, with the measured value in words and why."""
    base = {"page": rule["page"], "measured": "", "why": ""}
    table = model.tables.get(rule["table"])
    same = rule["models"] == "any" or (rule["models"] == "same" and tables.paper_model(model.name) in _names(row))
    rows = None if table is None else measured_rows(rule, row, table)
    if rows is None or rows.empty:
        if rule["models"] == "same" and not same:  # running it would not help
            return base | {"verdict": NOT_COMPARABLE, "why": THEIRS + row["model"]}
        why = f"no table {rule['table']}" if table is None else f"{rule['table']} has no such rows"
        return base | {"verdict": NOT_RUN, "why": why}
    counted, left_out = learned(rule, row, table, model)
    rows = measured_rows(rule, row, counted)
    if counted.empty or rows.empty:
        return base | {"verdict": NOT_COMPARABLE, "why": left_out}
    rows = rows[rows["estimate"].notna()]
    if rows.empty:
        return base | {"verdict": UNDECIDED, "why": f"{rule['measures']}: not defined on this model"}
    direction, toward = _direction(rows, rule)
    said = _shown(rows, rule, table)
    if direction and len(rows) > 1:
        said += f"; {toward} of {len(rows)} clearly {rule['test']}"
    base |= {"measured": f"{rule['measures']}: {said}" + (f"; left out: {left_out}" if left_out else "")}
    if not same:
        why = MEAN if rule["models"] == "never" else THEIRS + row["model"]
        return base | {"verdict": NOT_COMPARABLE, "why": why + TOLD.get(direction, "")}
    if rule["number"]:
        low, high = printed_range(rule["number"], row["value"])
        tolerance = float(rule["tolerance"])
        close = bool((rows["estimate"] >= low - tolerance).all() and (rows["estimate"] <= high + tolerance).all())
        why = f"{'within' if close else 'more than'} {tolerance:g} {'of' if close else 'from'} the printed number"
        return base | {"verdict": REPRODUCED if close else DIFFERS, "why": why}
    return base | {"verdict": direction, "why": ""}


def learned(rule: pd.Series, row: pd.Series, table: pd.DataFrame, model: Measured) -> tuple[pd.DataFrame, str]:
    """The rows of `table` that count, and in words which of those that the rule reads do not, and why.

    All count when the rule claims nothing about learning. Otherwise a row counts when, on each of its data sets, the
    lower end of every accuracy in the rule's table, one for each true label or of both, is over 50%. One that was not
    measured, or has no interval, is not taken for high.
    """
    if not rule["accuracy"]:
        return table, ""
    which, _, other = rule["sets"].partition(" of ")
    if other:  # the rows are of these sets together, and count together
        named = (_sets(model.tables[other]) if other in model.tables else []) or [UNNAMED]
        sets = pd.DataFrame([named[:1] if which == "first" else named] * len(table), index=table.index)
    else:
        sets = table.reindex(columns=which.split()).fillna(UNNAMED)
    known = _accuracy(rule["accuracy"], model)
    clear = known["low"].gt(CHANCE).groupby(level=0).all()
    good = set(clear.index[clear])
    read = sets.loc[_matching(table, rule["rows"], _in_published(row)).index]
    every = list(dict.fromkeys(read.to_numpy().ravel()))
    return table[sets.isin(good).all(axis=1)], _not_learned([one for one in every if one not in good], every, known)


def _sets(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["dataset"])) if "dataset" in table else [TOGETHER]


def _accuracy(name: str, model: Measured) -> pd.DataFrame:
    """set -> accuracy and low, one row or several a set; empty when the model has no such table."""
    query, estimate, low = ACCURACY[name]
    table = _matching(model.tables.get(name, pd.DataFrame({"dataset": []})), query, {})
    sets = table["dataset"] if "dataset" in table else [TOGETHER] * len(table)
    columns = table.reindex(columns=[estimate, low]).astype(float).set_axis(["accuracy", "low"], axis=1)
    return columns.set_axis(pd.Index(sets, dtype=object), axis=0).dropna(subset="accuracy")


def _not_learned(out: list[str], every: list[str], known: pd.DataFrame) -> str:
    """Why the sets `out` of those read do not count: accuracy not clearly above chance, or not measured."""
    measured, unknown = ([one for one in out if (one in known.index) == seen] for seen in (True, False))
    said = []
    if measured:
        accuracy = known.loc[measured, "accuracy"]
        these = ", ".join(measured) if len(measured) < len(every) else "these tasks" if len(every) > 1 else "this task"
        shown = " to ".join(dict.fromkeys(f"{value:.0%}" for value in (accuracy.min(), accuracy.max())))
        does = "does not learn" if accuracy.max() <= CHANCE else "is not shown to learn"
        clear = "" if accuracy.max() <= CHANCE else f", not clearly above {CHANCE:.0%} whichever label is true"
        said.append(f"the model {does} {these}: accuracy {shown}{clear}")
    if unknown:
        said.append(f"accuracy on {', '.join(unknown)} was not measured")
    return "; ".join(said)


def _names(row: pd.Series) -> list[str]:
    return re.split(r" and | ", row["model"])


def printed_range(which: str, value: str) -> tuple[float, float]:
    """The nth number of a published value, or the range of two: ("1-2", "0.26 to 0.32") gives (0.26, 0.32)."""
    numbers = [float(text) for text in re.findall(r"(?<!\d)-?\d+\.?\d*|(?<=\d-)\d+", value)]
    chosen = [numbers[int(i) - 1] for i in which.split("-")]
    return min(chosen), max(chosen)


def measured_rows(rule: pd.Series, row: pd.Series, table: pd.DataFrame) -> pd.DataFrame | None:
    """estimate, low, high of every row the rule names; low and high are missing where no interval is known.

    None when the table lacks the column of the estimate.
    """
    if rule["take"] == "layers":
        top = table.sort_values("increase", ascending=False).head(max(1, round(TOP_SHARE * len(table))))
        layers = [float(top["layer"].min()), float(top["layer"].max())]
        return pd.DataFrame({"estimate": layers, "low": layers, "high": layers})
    names = _in_published(row)
    by = rule["by"].split()
    found = _columns(_matching(table, rule["rows"], names), rule["column"], by)
    if found is None:
        return None
    if rule["less"]:
        other = _columns(_matching(table, rule["less"], names), rule["less_column"], by)
        if other is None:
            return None
        both = found.merge(other, on=by, suffixes=("", "_less"))
        found = pd.DataFrame(
            {"estimate": both["estimate"] - both["estimate_less"], "low": both["low"] - both["high_less"],
             "high": both["high"] - both["low_less"]}
        )  # fmt: skip
    return found.nsmallest(1, "estimate") if rule["take"] == "least" else found


def _matching(table: pd.DataFrame, query: str, names: Mapping) -> pd.DataFrame:
    if not query:
        return table
    try:
        return table.query(query, local_dict=dict(names), engine="python")
    except (pd.errors.UndefinedVariableError, AttributeError):
        return table.head(0)


def _columns(table: pd.DataFrame, column: str, by: list[str]) -> pd.DataFrame | None:
    estimate, *bounds = column.split()
    if not {estimate, *by} <= set(table):
        return None
    low, high = (estimate, estimate) if bounds == ["exact"] else bounds
    values = {"estimate": estimate, "low": low, "high": high}
    return table[by].assign(**{name: table.get(of, math.nan) for name, of in values.items()})


def _in_published(row: pd.Series) -> dict[str, object]:
    """What a rule's query may name with @: parts of the published row."""
    words = sorted(set(tables.published("v1 table 2")["where"].str.split(" true=").str[0]))
    dataset, _, true_label = row["where"].partition(" true=")
    return {
        "dataset": dataset, "true_label": true_label, "quantity": row["quantity"], "word_sets": words,
        "heads": re.findall(r"\b\d+-\d+\b", row["where"]),
    }  # fmt: skip


def _direction(rows: pd.DataFrame, rule: pd.Series) -> tuple[str, int]:
    """Verdict of a direction, and how many rows clearly go that way; ("", 0) when the rule has none."""
    if not rule["test"]:
        return "", 0
    sign, null = rule["test"].split()
    up, down = rows["low"] > float(null), rows["high"] < float(null)
    toward, against = (up, down) if sign == ">" else (down, up)
    allowed = min(int(rule["exceptions"]), len(rows) - 1)
    if len(rows) - int(toward.sum()) <= allowed:
        return REPRODUCED, int(toward.sum())
    return DIFFERS if int(against.sum()) > allowed else UNDECIDED, int(toward.sum())


def _shown(rows: pd.DataFrame, rule: pd.Series, table: pd.DataFrame) -> str:
    if rule["take"] == "layers":
        return f"{rows.estimate.min():.0f}-{rows.estimate.max():.0f} of {int(table['layer'].max()) + 1}"
    digits = 4 if rows["estimate"].abs().max() < 0.05 else 3
    if len(rows) > 1:
        return f"{rows.estimate.min():z.{digits}f} to {rows.estimate.max():z.{digits}f}"
    one = rows.iloc[0]
    bounds = "" if math.isnan(one.low) else f" [{one.low:z.{digits}f}, {one.high:z.{digits}f}]"
    return f"{one.estimate:z.{digits}f}{bounds if one.low < one.high else ''}"


def counts(cards: pd.DataFrame) -> pd.DataFrame:
    """How many published rows got which verdict: one row per model, one column per verdict."""
    table = cards.groupby(["here", "verdict"], sort=False).size().unstack(fill_value=0)
    return table.reindex(columns=list(VERDICTS), fill_value=0)
