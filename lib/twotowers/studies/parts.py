"""Work below a study, cut into parts that several jobs of one chapter share.

The way of the data with `shards: 3` (`chapters.shard` starts the jobs; without shards nothing here stores anything):

    study -> in_parts(run, answers, prompts)     cuts the prompts into 3 consecutive parts
          -> part i                            read from .parts/CHAPTER/DIGEST.npz, or computed and put there
          -> gathered in order                 what `answers(run.lm, prompts)` gives, but for rounding

Every job goes round the parts from its own number on and holds a part's lock while it computes it, so no two compute
the same one, and a job waits only for what another one is computing at this moment. A killed job's lock is free at once.
So any number of jobs that come, end or die gives the same tables, as long as `shards` is the same number.

A part's name is a checksum over all that goes in; its first line is the checksum of what follows, numbers without
pickles. One that is damaged is named in a note and computed again. Results are joined by their annotations: along the
axis "prompt" or "pair" of `Float[ndarray, "set prompt"]`, and in the column of that name of a table.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from twotowers.errors import TwoTowersError
from twotowers.prompts.prompt import Encoded
from twotowers.stats import tables
from twotowers.studies.context import SHARDS, Context

AXES = ("prompt", "pair")  # what may be cut
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Store:
    """Where the parts of a chapter lie, the state of its job (`stamps.state`), their number, and whose turn is first."""

    folder: str
    state: str
    of: int
    first: int = 0

    @property
    def told(self) -> str:
        """As the environment of a job says it."""
        return json.dumps(asdict(self))


def in_parts(
    run: Context, function: Callable, items: Sequence[Any], *given: Any, batched: bool = False, outer: str = "",
    **options: Any,
) -> Any:  # fmt: skip
    """`function(run.lm, items, *given, **options)`, in parts where the chapter is sharded; see the module.

    `function` treats each item alone and is annotated with what it gives. How the rows of its tables come: `batched`, in
    the order of `prompts.prompt.batches`; `outer`, those that agree in this column together. Raises what it raises.
    """
    told = os.environ.get(SHARDS)
    if not told or len(items) < 2:
        return function(run.lm, items, *given, **options)
    store, kind, p = Store(**json.loads(told)), get_type_hints(function)["return"], run.parameters
    cuts = np.array_split(np.arange(len(items)), min(store.of, len(items)))
    parts = [list(items[cut[0] : cut[-1] + 1]) for cut in cuts]
    work = {name: value for name, value in options.items() if name != "progress"}
    about = [store.state, run.about["fingerprint"], p.dtype, p.device, p.device_map, len(cuts)]
    known = said([about, function, given, work])
    found: dict[int, Arrays] = {}
    for patient in (False, True):
        for i in (np.arange(len(cuts)) + store.first) % len(cuts):
            name = hashlib.sha256(f"{known} {i} {parts[i]!r}".encode()).hexdigest()
            path = Path(store.folder) / f"{name}.npz"
            if i not in found and (part := _part(run, path, patient, kind, function, parts[i], given, work)):
                found[i] = part
    starts = [int(cut[0]) for cut in cuts]
    lengths = pd.factorize(np.array([len(one.ids) for one in items]))[0] if batched else None

    def whole(tables_: list[pd.DataFrame]) -> pd.DataFrame:
        table = pd.concat(tables_, ignore_index=True)
        if lengths is not None:
            table = table.iloc[np.argsort(lengths[table["prompt"]], kind="stable")]
        if outer in table:
            table = table.iloc[np.argsort(pd.factorize(table[outer])[0], kind="stable")]
        return table.reset_index(drop=True)

    return built(kind, "", [found[i] for i in range(len(cuts))], starts, items, whole)


def _part(run: Context, path: Path, patient: bool, kind: Any, function: Callable, items: list, given, options):
    """One part, read or computed; None while another job computes it, unless `patient`."""
    if found := read(path, run.notes):
        return found
    tables.writable(path.parent)
    try:
        with FileLock(path.with_suffix(".lock"), timeout=-1 if patient else 0):
            if not (found := read(path, run.notes)):
                found = flat(kind, function(run.lm, items, *given, **options))
                with suppress(TwoTowersError):  # no room: it costs others time, and nothing else
                    write(path, found)
            return found
    except Timeout:
        return None


def said(value: Any) -> str:
    """What tells one argument from another, the same in every process. Raises TypeError for what has no such name."""
    if value is None or isinstance(value, str | int | float | np.generic):
        return repr(value)
    if isinstance(value, Mapping):
        return said([[name, one] for name, one in value.items()])
    if isinstance(value, Sequence):
        return f"[{','.join(map(said, value))}]"
    if is_dataclass(value):
        return f"{type(value).__name__}({said([getattr(value, field.name) for field in fields(value)])})"
    if callable(value) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    raise TypeError(f"{value!r} has no name that holds in another process")


def write(path: Path, arrays: Arrays) -> None:
    """A part, whole or not at all. Raises TwoTowersError when it cannot be written."""
    file = io.BytesIO()
    names = {f"a{i}": array for i, array in enumerate(arrays.values())}
    np.savez(file, allow_pickle=False, names=np.array(json.dumps(list(arrays))), **names)
    tables.write(path, hashlib.sha256(file.getvalue()).hexdigest().encode() + b"\n" + file.getvalue())


def read(path: Path, notes: list[str]) -> Arrays | None:
    """A part; None, with a note, when it is damaged, and None when it is not there."""
    try:
        digest, content = path.read_bytes().split(b"\n", 1)
        if hashlib.sha256(content).hexdigest().encode() == digest:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                return {name: file[f"a{i}"] for i, name in enumerate(json.loads(str(file["names"])))}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        pass
    notes.append(f"the part '{path}' was damaged, and was computed again")
    path.unlink(missing_ok=True)
    return None


def _present(kind: Any) -> Any:
    """`X` of `X | None`."""
    chosen = [one for one in get_args(kind) if one is not type(None)]
    return chosen[0] if len(chosen) == 1 and type(None) in get_args(kind) else kind


def _members(kind: Any, value: Any = None) -> list[tuple[str, Any, Any]] | None:
    """Name, annotation and value of what a dataclass or a tuple holds; None for anything else."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return [(field.name, hints[field.name], getattr(value, field.name, None)) for field in fields(kind)]
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        values = value or [None] * len(get_args(kind))
        return [(str(i), one, values[i]) for i, one in enumerate(get_args(kind))]
    return None


def axis_of(kind: Any) -> int | None:
    """The axis of an annotated array along which parts are joined; None for one that has none, or no array."""
    names = getattr(kind, "dim_str", "").split()
    at = next((i for i, name in enumerate(names) if name in AXES), None)
    return at - len(names) if at is not None and any(name[0] in "*." for name in names[:at]) else at


def flat(kind: Any, value: Any, name: str = "") -> Arrays:
    """What a function gave, as arrays by name. Raises TypeError for what cannot be put together again."""
    kind = _present(kind)
    if value is None or kind == list[Encoded]:
        return {}
    if (members := _members(kind, value)) is not None:
        return {key: array for at, one, part in members for key, array in flat(one, part, f"{name}.{at}").items()}
    if kind is pd.DataFrame:
        return {f"{name}/{column}": _column(value[column]) for column in value}
    if axis_of(kind) is not None:
        return {name: value.detach().cpu().numpy() if hasattr(value, "detach") else value}
    return {name: np.array(TypeAdapter(kind).dump_json(value).decode())}  # the same in every part


def _column(values: pd.Series) -> np.ndarray:
    array = values.to_numpy()
    if array.dtype.kind in "biuf":
        return array
    if not all(isinstance(one, str) for one in array):
        raise TypeError(f"the column {values.name} holds more than words")
    return np.array(list(array), dtype=str)


def built(
    kind: Any, name: str, parts: Sequence[Arrays], starts: Sequence[int], items: Sequence[Any], whole: Callable
) -> Any:
    """What all parts give together, the inverse of `flat`: they begin at `starts`, and `whole` puts tables together."""
    kind = _present(kind)
    if kind == list[Encoded]:
        return [one if isinstance(one, Encoded) else one[0] for one in items]
    if (members := _members(kind)) is not None:
        made = {at: built(one, f"{name}.{at}", parts, starts, items, whole) for at, one, _ in members}
        return kind(**made) if is_dataclass(kind) else tuple(made.values())
    if kind is pd.DataFrame:
        own = [
            {key.removeprefix(f"{name}/"): part[key] for key in part if key.startswith(f"{name}/")} for part in parts
        ]
        for columns, start in zip(own, starts, strict=True):
            columns |= {axis: columns[axis] + start for axis in AXES if axis in columns}
        return whole([pd.DataFrame(columns) for columns in own])
    if name not in parts[0]:
        return None
    if (axis := axis_of(kind)) is None:
        return TypeAdapter(kind).validate_json(str(parts[0][name]))
    joined = np.concatenate([part[name] for part in parts], axis)
    if kind.array_type is np.ndarray:
        return joined
    import torch

    return torch.from_numpy(joined)
