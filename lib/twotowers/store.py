"""Measurements on disk: opened, refused where older code made them, made where they lack.

    >>> versions("heads")
    {'forms': 1, 'heads': 1}
    >>> sorted(json.loads(identity("forms", Settings(), "mini-gpt2@0")))[:4]
    ['dtype', 'k', 'labels', 'locate']
    >>> Laboratory(Settings()).name         # its `recording("heads")`: from its file, else measured
    'mini-gpt2'

A file says in its attribute `identity` what made it: the model, the settings, digits of what its
prompts were drawn from (the attribute `drawn_from`), and the versions of its code and of all it
needs. One rule says when it is stale: when one of these is another now; of a recorded file, when
something that it was drawn from is no more. Current versions stand in data/versions.csv, so that no
file needs the laboratory (the package `towerlab`) to be judged.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import xarray as xr
from pydantic import BeforeValidator, PositiveFloat, PositiveInt

from twotowers import schema
from twotowers.disk import deferred_signals, written
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder, is_own, slug
from twotowers.recording import Recording, each_part, own, with_shared
from twotowers.settings import Settings
from twotowers.tables import Optional, Row, Text, read_table, read_text

LABELS = ("words/labels.csv", "words/stop_words.txt")
TEXTS = {
    "words": ("words/words.csv", "words/pairs.csv", *LABELS),
    "sentences": ("sentences/own.csv", *LABELS),
    "published": ("sentences/files.csv", *LABELS),  # the SHA-256 of every published file
}
"""Suite -> the files in data that say what its prompts are drawn from"""
DrawnFrom = Mapping[str, Sequence[str]]
LABORATORY = "towerlab.measure.chain"
NOT_TESTABLE = "not_testable"
"""Attribute of a file that holds nothing: why the measurement has no meaning for the model"""
RELATIONS = ("none", "own label", "other label", "own text", "own class", "other class")
"""How a token relates to its prompt: the values of `relation`"""
NUMBERS = {"blocks", "locate", "prompts"}
"""Settings that say how many prompts there are"""
OWN_SETS = ("suite", "prompts", "seed", "dtype")
"""Settings that decide a measurement of the paper's own sets: their form, labels and lists of heads
are its own"""
DIGITS_OF_NAMES = 6
"""Hexadecimal digits by which names of folders differ"""
SMALL = {"zlib": True, "complevel": 6}
ROUNDED = {"significant_digits": 9, "quantize_mode": "BitRound"}
"""How files are kept small; nine bits of a float's mantissa are one part in 1,024"""


class Version(Row):
    """A line of data/versions.csv: the version of a measurement's code, what it is made from (with
    spaces between), and its cost."""

    measurement: Text
    module: Text
    """of `towerlab.measure`, whose function _NAME(run) makes it"""
    version: PositiveInt
    needs: Annotated[tuple[str, ...], BeforeValidator(str.split)]
    on: Literal["locate", "blocks", "few", "prompts"]
    """which blocks it costs most on; "locate": made from these alone, so that more judging blocks
    leave it as it is; "prompts": made from the paper's own sets, so that only what `OWN_SETS` names
    decides it"""
    passes: PositiveFloat
    """what it costs: for each prompt of these blocks as long as so many plain passes, as timed for
    SmolLM2-135M"""
    sentences: Optional
    """the same on sentences, where it is another"""
    sources: str
    """what its code was when this version was pinned: see tests/test_versions.py"""

    @property
    def judges(self) -> bool:
        return self.on != "locate"

    def deciding(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some settings that decide the numbers of this measurement."""
        if self.on == "prompts":
            return {name: value for name, value in values.items() if name in OWN_SETS}
        beside = {"prompts"} if self.judges else {"prompts", "blocks"}
        return {name: value for name, value in values.items() if name not in beside}


@cache
def catalogue() -> dict[str, Version]:
    """Measurement -> its row of data/versions.csv, those that it needs before it."""
    return {
        row.measurement: row
        for row in read_table(data_folder() / "versions.csv", Version, ("measurement",))
    }


def about(name: str) -> Version:
    """The row of a measurement. Raises TwoTowersError for a name of none."""
    if name not in catalogue():
        raise TwoTowersError(f"no measurement '{name}': choose one of {', '.join(catalogue())}")
    return catalogue()[name]


def versions(name: str) -> dict[str, int]:
    """Versions of the code of a measurement and of all that it needs."""
    every = {name: about(name).version}
    for need in about(name).needs:
        every |= versions(need)
    return dict(sorted(every.items()))


def drawn_from(suite: str) -> DrawnFrom:
    """What the prompts of a suite are drawn from: file -> its entries. These are its lines; of a
    file of texts each class, with digits of its texts; of the stop words each word.

        >>> drawn_from("sentences")["words/labels.csv"][0]
        'foo,bar,nonsense'
    """
    out = {}
    for file in TEXTS[suite]:
        head, *lines = filter(None, read_text(data_folder() / file).split("\n"))
        if file.endswith(".txt"):
            out[file] = " ".join([head, *lines]).split()
        elif "class" in (columns := head.split(",")):
            classes: dict[str, list[str]] = {}
            for line, cells in zip(lines, csv.reader(lines), strict=False):
                classes.setdefault(cells[columns.index("class")], []).append(line)
            out[file] = [f"{cls} {digits(of)}" for cls, of in classes.items()]
        else:
            out[file] = lines
    return out


def digits(of: object) -> str:
    """12 hexadecimal digits of the SHA-256 of something as JSON."""
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:12]


def identity(
    name: str, settings: Settings, fingerprint: str, drawn: DrawnFrom | None = None
) -> str:
    """What decides the numbers of a measurement, as JSON.

    Args:
        name: of the measurement.
        settings: all of them.
        fingerprint: of the model.
        drawn: what its prompts were drawn from; today's lists by default.
    """
    drawn = drawn_from(settings.suite) if drawn is None else drawn
    made_from = {"model": fingerprint, "texts": digits(drawn), "versions": versions(name)}
    return json.dumps(about(name).deciding(settings.deciding()) | made_from, sort_keys=True)


def origin(recording: Recording) -> dict[str, Any]:
    """The identity of a measurement: setting -> its value, and "model", "texts", "versions"."""
    return json.loads(recording.data.attrs["identity"])


def serves(recording: Recording, settings: Settings) -> bool:
    """Whether a recorded measurement stands for its model under these settings.

    Of those that decide it, it has every one that is not a default, but for how many blocks and
    prompts there are, which are its own.
    """
    of = origin(recording)
    return all(
        of.get(name, value) == value
        for name, value in settings.changed().items()
        if name not in NUMBERS
    )


def folder(settings: Settings, model: str, name: str = "heads") -> Path:
    """Where a measurement lies; recorded ones have one place.

    Those of other settings than the default ones lie beside them, so that going from one seed or
    dtype to another and back measures nothing twice.

    Args:
        settings: all of them.
        model: its name among measurements.
        name: of the measurement.
    """
    out, other = Path(settings.out), about(name).deciding(settings.changed())
    if not other or out.resolve() == (data_folder() / "measurements").resolve():
        return out / model / settings.suite
    digest = hashlib.sha256(json.dumps(other, sort_keys=True).encode()).hexdigest()
    return out / model / f"{settings.suite}-{digest[:DIGITS_OF_NAMES]}"


class Laboratory:
    """What measures, for one model and suite.

    It is looked up when it is first asked, since it needs packages that reading does not.
    """

    def __init__(self, settings: Settings):
        self.settings = settings

    @cached_property
    def _run(self) -> Any:
        return importlib.import_module(LABORATORY).Run(self.settings)

    @property
    def name(self) -> str:
        """The model's name among measurements: its own, unless a folder or file of one's own has
        that of another model."""
        return self._run.name if is_own(self.settings.model) else slug(self.settings.model)

    def recording(self, name: str) -> Recording:
        """A measurement from its file, else made and saved. Raises TwoTowersError where what
        measures is not installed."""
        try:
            return self._run.recording(name)
        except ModuleNotFoundError as error:
            raise TwoTowersError(
                f"'{name}' of {slug(self.settings.model)} is not recorded, and what measures is "
                f"not installed (there is no {error.name}): pip install .[measure], or choose a "
                "model of data/measurements"
            ) from None


def save(recording: Recording, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write a measurement whole or not at all, floats as float32.

    Those of three dimensions and more are rounded to nine bits.

    Args:
        recording: data and control.
        path: of the file.
        provenance: attributes that say what made it.

    Raises:
        TwoTowersError: when it has another form than the schema says, and when it cannot be
            written.
    """
    data = recording.data.assign_attrs(provenance)
    try:
        schema.check(str(data.attrs.get("measurement")), recording)
    except schema.OtherForm as error:
        raise schema.OtherForm(
            f"'{path}' is not written: {error}: correct the measurement, or data/variables.csv"
        ) from None
    groups = {"/": data}
    if recording.control is not None:
        groups["control"] = own(recording.control, data)
    with deferred_signals(), written(path) as scratch:
        for group, part in groups.items():
            mode = "w" if group == "/" else "a"
            part.to_netcdf(
                scratch, mode=mode, group=group, engine="netcdf4", encoding=_encoding(part)
            )  # type: ignore[call-overload]


def kept(name: str, recording: Recording) -> Recording:
    """Of what a recipe made, the variables of its measurement, with their units.

    Args:
        name: of the measurement.
        recording: with these variables, and others that were needed on the way.
    """

    def of(part: xr.Dataset) -> xr.Dataset:
        units = {
            variable: about.units
            for variable, about in schema.variables()[name].items()
            if variable in part
        }
        return part[[*units]].assign(
            {variable: part[variable].assign_attrs(units=unit) for variable, unit in units.items()}
        )

    return each_part(recording, of)


def _encoding(data: xr.Dataset) -> dict[Hashable, dict[str, Any]]:
    """How each variable is kept."""

    def of(array: xr.Variable) -> dict[str, Any]:
        # Texts are kept as characters, which compress; strings of varying length do not.
        if array.dtype.kind in "UO":
            return SMALL | {"dtype": "S1"}
        if array.dtype.kind != "f" or not array.ndim:
            return SMALL if array.ndim else {}
        return SMALL | {"dtype": "float32"} | (ROUNDED if array.ndim > 2 else {})

    return {name: of(array) for name, array in data.variables.items()}


def load(path: Path, limit: float = math.inf) -> Recording:
    """A saved measurement, in memory.

    Args:
        path: of the file.
        limit: bytes that it may take once it is unpacked.

    Raises:
        TwoTowersError: for a file that is missing, damaged, or too large.
        OtherForm: for one of another form.
    """
    try:
        with deferred_signals():
            groups = {
                name.strip("/"): data
                for name, data in xr.open_groups(path, engine="netcdf4").items()
            }
            size = sum(part.nbytes for part in groups.values())
            for part in groups.values() if size <= limit else ():
                part.load().close()
    except FileNotFoundError:
        raise TwoTowersError(
            f"no measurement '{path}': measure it first (twotowers measure)"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise TwoTowersError(
            f"the measurement '{path}' is damaged ({type(error).__name__}): delete it"
        ) from None
    if size > limit:
        raise TwoTowersError(f"it would take {size / 2**30:,.0f} GiB, more than {limit / 2**30:g}")
    data = groups.pop("")
    try:
        recording = Recording(
            data, with_shared(groups["control"], data) if "control" in groups else None
        )
        schema.check(str(data.attrs.get("measurement")), recording)
    except (schema.OtherForm, ValueError) as error:
        raise schema.OtherForm(
            f"the measurement '{path}' has another form ({error}): measure it again"
        ) from None
    return recording
