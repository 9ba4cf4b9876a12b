"""The form of every measurement: its variables with dimensions and units, and its coordinates. Checked on save and on load.

- `head` is the number beside `layer`, both from 0. Single heads that are listed lie along `listed_head`, whose names ("18-6")
  have `layer` and `head` beside them; `heads` are named sets of heads.
- Random sets and random directions are a dimension `draw` in a group of their own, `control`, with the same variables as the
  data: over (..., heads, draw, ...).
- Whatever has answers has `logit_difference`, the log-probability of the true label minus that of the other, or `says`, the top
  token. A variable is here because a page reads it (`tests/test_unread.py`): what else a recipe makes is not kept.
- Heads along `named_head` have names only, where a file also has `layer` and `head` as dimensions.
- No variable has the name of a dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import xarray as xr

from twotowers.errors import TwoTowersError
from twotowers.recording import Recording


class Variable(NamedTuple):
    """Dimensions in any order, unit, and type of the values."""

    dims: tuple[str, ...]
    units: str
    type: type = float


KINDS = {str: "UOST", int: "iu", float: "f", bool: "b"}
"""Type -> kinds of numpy's types that hold it"""
DIMENSIONS: dict[str, type | None] = {
    "prompt": None, "place": None, "component": None, "sender": None, "layer": int, "head": int, "listed_head": str, "heads": str,
    "draw": int, "what": str, "mean": str, "rank": int,
    "condition": str, "edges": str, "side": str, "cut": int, "remedy": str, "ranking": str, "kind": str, "positions": str,
    "replacement": str, "way": str, "query_of": str, "query_position": str, "contrast": str, "reversed_position": str,
    "output": int, "queries": int, "mlps": int, "norm": str,
    "change": str, "word_set": str, "named_head": str, "weight": float, "query_coefficient": float,
    "key_coefficient": float, "position": None, "neuron": None,
}  # fmt: skip
"""Dimension -> type of its coordinate; None: it has none. A place is a demonstration, a component one of a vector"""
Coordinates = dict[str, tuple[tuple[str, ...], type]]
OF_PROMPTS: Coordinates = {name: (("prompt",), str) for name in ("pair", "labels", "cls", "query", "true_label", "order", "text")}
OF_PROMPTS |= {"block": (("prompt",), int), "true_first": (("prompt",), bool)}
BESIDE: dict[str, Coordinates] = {
    "listed_head": {"layer": (("listed_head",), int), "head": (("listed_head",), int)},
    "sender": {"sender_layer": (("sender",), int), "sender_head": (("sender",), int)},
    "place": {"true": (("prompt", "place"), bool)},
    "draw": {"control": ((), str)},
}
"""Dimension -> other coordinates that stand with it"""
ALSO: dict[str, Coordinates] = {
    **{name: {"k": (("prompt",), int), "separator": (("prompt",), str)} for name in ("forms", "demonstrations")},
    "mitigations": {"condition": (("prompt",), str)},
    "interchanges": {"pair_kind": (("prompt",), str)},
    "label_reads": {"vocabulary": ((), int)},
    "singles": {"positions": ((), str)},
}
"""Measurement -> coordinates of its own"""
OPTIONAL = {"query", "text"}
"""Texts are left out where they are not ours to pass on"""


def _difference(*dims: str) -> dict[str, Variable]:
    return {"logit_difference": Variable((*dims, "prompt"), "nats")}


def _says(*dims: str) -> dict[str, Variable]:
    return {"says": Variable((*dims, "prompt"), "0 true label, 1 other label, 2 another token", int)}


EACH, AT_PLACES, BLOCKS = ("prompt", "layer", "head"), ("prompt", "layer", "head", "place"), ("prompt", "layer", "kind")
LISTED, TOKENS = ("prompt", "listed_head", "place"), ("prompt", "listed_head", "what", "mean", "place", "rank")
NAMED, WORDS = ("prompt", "named_head", "place"), ("prompt", "named_head", "what", "place", "rank")
RELATION = "index of none, own label, other label, own text, own class, other class"
_CHOOSE = {name: Variable(EACH, "nats") for name in ("writing", "contribution")} | {"attention": Variable(AT_PLACES, "share")}
VARIABLES: dict[str, dict[str, Variable]] = {
    **{name: _difference() for name in ("demonstrations", "answers", "factorial")}, "forms": _difference() | _says(),
    "locating": _CHOOSE,
    "heads": {**_CHOOSE, "reading": Variable(EACH, "nats"), "block_logit_difference": Variable(BLOCKS, "nats"), **_difference()},
    "increases": {"increase": Variable(EACH, "nats")},
    "norms": {"increase": Variable(("norm", *EACH), "nats")},
    "paper": {
        "increase": Variable(EACH, "nats"), "block_increase": Variable(BLOCKS, "nats"), **_says(),
        "in_context_head": Variable(("word_set", "rank"), "head", str), "random_head": Variable(("word_set", "rank"), "head", str),
        "own_rank": Variable(NAMED, "1 = highest logit", int),
        "attention": Variable(NAMED, "share"), "reading": Variable(NAMED, "nats"),
    },
    "paper_changes": _difference("change") | _says("change")
    | {f"attention_{name}": Variable(("change", "prompt", "named_head"), "share") for name in ("true", "other")}
    | {f"mean_attention_{name}": Variable(("change", "word_set", "layer", "head"), "share") for name in ("true", "other")},
    "paper_ablations": _difference("heads") | _says("heads")
    | {"log_prob_lost": Variable(("layer", "head"), "nats")}
    | {name: Variable(("rank",), "head", str) for name in ("foo_head", "bar_head")}
    | {"attention": Variable(("change", *NAMED), "share"), "reading": Variable(NAMED, "nats")}
    | {f"flipped_log_prob_{name}": Variable(("prompt",), "nats") for name in ("true", "other")},
    "paper_remedies": _difference("change", "remedy", "heads") | _says("change", "remedy", "heads")
    | {"mean_attention_true": Variable(("change", "remedy", "named_head"), "share")},
    "case": {
        "block_increase": Variable(BLOCKS, "nats"), "token": Variable(WORDS, "token", str),
        "query_token": Variable(("prompt", "named_head", "rank"), "token", str),
        "attention": Variable(NAMED, "share"), "place_increase": Variable(NAMED, "nats"),
        "swept_increase": Variable((*NAMED, "weight"), "nats"),
    },
    "parts": {
        "sum_error": Variable(("prompt",), "share"), "n_parts": Variable(("prompt",), "parts", int),
        "increase": Variable(EACH, "nats"), "increase_last": Variable(EACH, "nats"),
        "position_increase": Variable(("prompt", "named_head", "position"), "nats"),
        "neuron_layer": Variable(("prompt", "neuron"), "layer", int), "neuron_number": Variable(("prompt", "neuron"), "neuron", int),
        "neuron_increase": Variable(("prompt", "neuron"), "nats"),
        "neuron_rank": Variable(("prompt", "neuron"), "1 = highest logit", int),
        "head_to_neuron": Variable(("prompt", "neuron", "layer", "head"), "input of the activation"),
    },
    "conditions": _difference("condition")
    | {f"attention_{name}": Variable(("condition", *EACH), "share") for name in ("true", "other")}
    | {f"attention_{name}": Variable(EACH, "share") for name in ("left", "removed")},
    "towers": {"query_vector": Variable(("prompt", "listed_head", "component"), "sqrt nats"),
               "key_vector": Variable((*LISTED, "component"), "sqrt nats")},
    "label_reads": {name: Variable(LISTED, "1 = highest logit", int) for name in ("own_rank", "other_rank")},
    "top_tokens": {
        "token": Variable(TOKENS, "token", str), "relation": Variable(TOKENS, RELATION, int),
        "query_relation": Variable(("prompt", "listed_head", "mean", "rank"), RELATION, int),
    },
    **{name: _difference("heads", "query_coefficient", "key_coefficient") for name in ("tower_grid", "tower_grid_random")},
    "interchanges": _difference("what", "heads")
    | {f"{side}_logit_difference": Variable(("prompt",), "nats") for side in ("base", "source")},
    "singles": {f"{name}_lost": Variable(EACH, "nats") for name in ("log_prob", "logit_difference")},
    "ablations": _difference("positions", "replacement", "heads") | _says("positions", "replacement", "heads"),
    "knockouts": _difference("edges", "side", "cut"),
    "mitigations": _difference("remedy", "heads"),
    "rankings": {"score": Variable(("ranking", "layer", "head"), "see the ranking"), "induction_control": Variable(EACH[1:], "share")},
    "looks": {
        "logit_difference": Variable(("prompt",), "nats"),
        "logit_difference_all_reversed": Variable(("reversed_position", "prompt"), "nats"),
        "preference": Variable(("query_of", "query_position", *EACH), "share"),
        "effect": Variable(("contrast", *EACH), "nats"), "direct_effect": Variable(("contrast", *EACH), "nats"),
        "effect_by_route": Variable(("contrast", "output", "queries", "mlps", "sender", "prompt"), "nats"),
    },
}  # fmt: skip
"""Measurement -> its variables"""


def coordinates(name: str, variables: Mapping[str, Variable]) -> Coordinates:
    """Coordinate -> its dimensions and type, of some variables of a measurement."""
    dims = dict.fromkeys(dim for variable in variables.values() for dim in variable.dims)
    out: Coordinates = {dim: ((dim,), kind) for dim in dims if (kind := DIMENSIONS[dim])} | (OF_PROMPTS if "prompt" in dims else {})
    return {c: row for dim in dims for c, row in BESIDE.get(dim, {}).items()} | out | ALSO.get(name, {})


PART = "part"
"""What is under way, kept so that it can go on: it may lack what comes last, and is read by what wrote it alone"""


def check(name: str, recording: Recording) -> None:
    """Raises OtherForm, naming what differs, unless a measurement has the form of this module; one that holds nothing has."""
    if name == PART:
        return
    if name not in VARIABLES:
        raise OtherForm(f"no measurement '{name}'")
    about = VARIABLES[name]
    if recording.data.variables:
        _check(name, recording.data, about)
    if recording.control is not None:
        drawn = {variable: of._replace(dims=(*of.dims, "draw")) if "heads" in of.dims else of for variable, of in about.items()}
        try:
            _check(name, recording.control, drawn)
        except OtherForm as error:
            raise OtherForm(f"{error}, in its group 'control'") from None


class OtherForm(TwoTowersError):
    """A measurement has another form than the schema says."""


def _check(name: str, data: xr.Dataset, variables: Mapping[str, Variable]) -> None:
    form: Coordinates = {variable: (about.dims, about.type) for variable, about in variables.items() if variable in data}
    form = coordinates(name, {variable: variables[variable] for variable in form}) | form
    if missing := {*variables, *form} - {*map(str, data.variables)} - OPTIONAL:
        raise OtherForm(f"it lacks {', '.join(sorted(missing))}")
    if more := {*map(str, data.variables)} - {*form}:
        raise OtherForm(f"{', '.join(sorted(more))} is not in the schema")
    for variable, (dims, kind) in form.items():
        if variable not in data.variables:
            continue
        array = data[variable]
        if set(array.dims) != set(dims) or len(array.dims) != len(dims):
            raise OtherForm(f"'{variable}' is over ({', '.join(map(str, array.dims))}), not ({', '.join(dims)})")
        odd = array.dtype.kind == "O" and not all(isinstance(x, str) for x in array.values.flat)
        if odd or array.dtype.kind not in KINDS[kind]:
            raise OtherForm(f"'{variable}' is no {kind.__name__}")
        if variable in variables and array.attrs.get("units") != variables[variable].units:
            raise OtherForm(f"'{variable}' is not in {variables[variable].units}")


def listing() -> str:
    """Every variable of every measurement, a line each, indented as code: a page shows it."""
    every = [(name, variable, about) for name, of in VARIABLES.items() for variable, about in of.items()]
    rows = [(name, variable, f"({', '.join(about.dims)})", about.units) for name, variable, about in every]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n\n" + "".join("    " + "  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


__doc__ = (__doc__ or "").rstrip() + listing()
