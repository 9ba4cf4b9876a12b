"""Work cut into parts gives what the whole gives, whoever computed the parts, and a damaged part is never used."""

import ast
import functools
import hashlib
import importlib
import json
import threading
from typing import get_type_hints

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, random_prompts, tiny
from test_same_numbers import TOLERANCES
from twotowers.analysis import (
    ablate,
    at_labels,
    attention,
    biases,
    blocking,
    locate,
    margin_parts,
    rankings,
    word_ranks,
)
from twotowers.heads import Head
from twotowers.model.answers import answers
from twotowers.parameters import Parameters
from twotowers.stats import tables
from twotowers.studies import decides, interventions, mrr, towers_apart, which_heads
from twotowers.studies import locate as located
from twotowers.studies.context import SHARDS, Context
from twotowers.studies.parts import Store, flat, in_parts, said
from twotowers.studies.run import Run

HEADS = [Head(1, 2), Head(0, 3)]
CLOSE = TOLERANCES["batches of one prompt"]


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2")


def run_of(model):
    run = Context(Parameters())
    run.__dict__.update(lm=model, about={"fingerprint": "m@0"})
    return run


@pytest.fixture
def sharded(tmp_path, monkeypatch):
    """Says into how many parts work is cut from now on; returns the folder of the parts."""

    def cut(of, first=0, state="s"):
        monkeypatch.setenv(SHARDS, Store(str(tmp_path / "parts"), state, of, first).told)
        return tmp_path / "parts"

    return cut


def same(a, b):
    """Equal in every type, name, order and word, and in numbers but for rounding."""
    assert type(a) is type(b) or isinstance(b, Head)
    if isinstance(a, pd.DataFrame):
        if "edges" in a:  # each batch has all edges in turn: what counts is the order within them
            a, b = (one.sort_values(["edges", "layers"], kind="stable", ignore_index=True) for one in (a, b))
        pd.testing.assert_frame_equal(a, b, rtol=0, atol=CLOSE)
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, torch.Tensor | np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = np.asarray(a), np.asarray(b)
        assert np.allclose(a, b, rtol=0, atol=CLOSE) if a.dtype.kind == "f" else (a == b).all()
    elif hasattr(a, "__dataclass_fields__") and not isinstance(a, type(random_prompts(1)[0])):
        for name in a.__dataclass_fields__:
            same(getattr(a, name), getattr(b, name))
    else:
        assert a == b


def even():
    """Prompts of two lengths in turn, all with as many demonstrations."""
    found = random_prompts(7, lengths=(14,))
    return [one if i % 2 else random_prompts(i + 1, lengths=(14,), seed=1)[i] for i, one in enumerate(found)]


CASES = {
    "answers": (answers, random_prompts(7), (), {}),
    "increases": (locate.increases, random_prompts(7), (), {"norm": "raw"}),
    "increases by role": (locate.increases_by_role, random_prompts(7), (HEADS,), {"batched": True}),
    "zeroed sets": (ablate.ablate_sets, random_prompts(7), ([HEADS, HEADS[:1]], "last"), {}),
    "means put in": (ablate.ablate_heads, even(), (HEADS, "all", torch.ones(3, 4, 4, dtype=torch.float64)), {}),
    "parts of margins": (margin_parts.margin_parts, even(), (), {}),
    "no scores": (margin_parts.margin_parts, even(), (False,), {}),
    "label margins": (rankings.label_margin, even(), (), {}),
    "ranks of words": (word_ranks.label_ranks, random_prompts(7), (HEADS,), {"batched": True, "outer": "head"}),
    "blocked": (
        blocking.blocked_margins, random_prompts(7),
        ({"a": blocking.last_to_query, "b": blocking.labels_and_colons_to_texts}, {"lower": [0], "upper": [1, 2]}),
        {"batched": True},
    ),
    "attention": (attention.read, even(), (HEADS,), {"outer": "head", "increases": True}),
    "labels": (at_labels.read_labels, even(), (), {}),
    "orders": (biases.read_orders, [[a, b] for a, b in zip(even(), even()[::-1], strict=True)], (HEADS,), {}),
    "factors": (biases.majority_answers, random_prompts(7, lengths=(11,)), ([HEADS], [0.0, 0.5]), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_parts_together_are_the_whole(name, model, sharded):
    function, prompts, given, options = CASES[name]
    own = {key: value for key, value in options.items() if key not in ("batched", "outer")}
    whole = function(model, prompts, *given, **own)
    for of in (2, 3, 9):
        folder = sharded(of)
        computed = in_parts(run_of(model), function, prompts, *given, **options)
        read = in_parts(run_of(None), function, prompts, *given, **options)
        same(computed, whole)
        first, second = (flat(get_type_hints(function)["return"], one) for one in (computed, read))
        assert list(first) == list(second)
        assert all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for a, b in zip(first.values(), second.values(), strict=True)
        )
    assert len(list(folder.glob("*.npz"))) == 2 + 3 + 7, "no more parts than prompts"


def test_without_shards_nothing_is_cut_or_stored(model, sharded, monkeypatch, tmp_path):
    sharded(2)
    monkeypatch.delenv(SHARDS)
    assert in_parts(run_of(model), lambda lm, prompts, a: (lm, prompts, a), [1, 2], a=3) == (model, [1, 2], 3)
    assert list(tmp_path.iterdir()) == []


class Counted:
    """`answers`, counting what it was asked."""

    __qualname__ = "counted"

    def __init__(self):
        functools.update_wrapper(self, answers)
        self.asked = []

    def __call__(self, lm, prompts, **options):
        self.asked.append(len(prompts))
        return answers(lm, prompts)


def test_a_part_stands_only_for_the_same_work(model, sharded):
    counted, run, prompts = Counted(), run_of(model), random_prompts(6)
    folder = sharded(3)
    in_parts(run, counted, prompts, progress="a bar")
    assert counted.asked == [2, 2, 2]
    in_parts(run, counted, prompts, progress="another bar")
    sharded(3, first=2)
    in_parts(run, counted, prompts)
    assert counted.asked == [2, 2, 2], "neither bars nor who asks matter"
    in_parts(run, counted, [*prompts[:5], random_prompts(1, seed=5)[0]])
    assert counted.asked == [2, 2, 2, 2], "one part is of another prompt"
    changes = [
        lambda: run.about.update(fingerprint="m@1"), lambda: sharded(3, state="other code"),
        lambda: setattr(run, "parameters", Parameters(dtype="float64")), lambda: sharded(2),
    ]  # fmt: skip
    for n, change in enumerate(changes):
        change()
        before = len(counted.asked)
        in_parts(run, counted, prompts)
        assert len(counted.asked) == before + (3 if n < 3 else 2)
    before = len(list(folder.glob("*.npz")))
    in_parts(run, counted, prompts, norm="raw")
    assert len(list(folder.glob("*.npz"))) == before + 2


DAMAGE = {
    "cut": lambda content: content[:-9],
    "emptied": lambda content: b"",
    "changed": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "no archive": lambda content: hashlib.sha256(b"x").hexdigest().encode() + b"\nx",
    "another one": lambda content: b"0" * 64 + content[64:],
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_part_is_named_and_computed_again(what, model, sharded):
    run, prompts, folder = run_of(model), random_prompts(6), sharded(3)
    before = in_parts(run, answers, prompts)
    path = sorted(folder.glob("*.npz"))[1]
    content = path.read_bytes()
    path.write_bytes(DAMAGE[what](content))
    same(in_parts(run, answers, prompts), before)
    assert run.notes == [f"the part '{path}' was damaged, and was computed again"]
    assert path.read_bytes() == content


def test_jobs_at_once_compute_each_part_once_and_wait_for_the_others(model, sharded):
    prompts, both, counted, found = random_prompts(8), threading.Barrier(2, timeout=60), Counted(), {}
    sharded(2)
    plain = counted.__call__

    def together(lm, some, **options):
        both.wait()  # each is at a part of its own
        return plain(lm, some, **options)

    together.__annotations__, together.__qualname__ = answers.__annotations__, "together"
    jobs = [
        threading.Thread(target=lambda i=i: found.update({i: in_parts(run_of(model), together, prompts)}))
        for i in range(2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(120)
    assert counted.asked == [4, 4]
    same(found[0], found[1])


def test_a_job_that_failed_leaves_its_part_to_the_others(model, sharded):
    def fails(lm, some, **_):
        raise MemoryError

    fails.__annotations__ = answers.__annotations__
    fails.__module__, fails.__qualname__ = answers.__module__, answers.__qualname__
    prompts, _ = random_prompts(4), sharded(2)
    with pytest.raises(MemoryError):
        in_parts(run_of(model), fails, prompts)
    same(in_parts(run_of(model), answers, prompts), answers(model, prompts))


def test_what_an_argument_is_called_holds_in_another_process():
    numbers = np.arange(3.0)
    assert said([HEADS, "a", None, 0.5]) == said([[(1, 2), (0, 3)], "a", None, 0.5])
    assert said(numbers) == said(torch.tensor(numbers)) != said(numbers + 1e-12)
    assert said({"a": blocking.last_to_query}) == "[['a',twotowers.analysis.blocking.last_to_query]]"
    for nameless in (lambda prompt: prompt, object()):
        with pytest.raises(TypeError, match="has no name"):
            said(nameless)


def spread_functions():
    """(file, function) of every call of `in_parts` in the studies."""
    for path in sorted((ROOT / "lib/twotowers/studies").glob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "in_parts":
                names = ast.unparse(node.args[1]).split(".")
                module, name = imported[names[0]]
                whole = f"{module}.{'.'.join([name, *names[1:]])}"
                yield path.name, *whole.rsplit(".", 1)


@pytest.mark.parametrize("file, module, name", sorted(set(spread_functions())))
def test_every_function_that_studies_cut_says_where_its_prompts_are(file, module, name):
    from twotowers.studies.parts import AXES, _members, _present, axis_of

    def joined(kind):
        kind = _present(kind)
        if (members := _members(kind)) is not None:
            return [one for _, member, _ in members for one in joined(member)]
        return [kind is pd.DataFrame or axis_of(kind) is not None]

    kind = get_type_hints(getattr(importlib.import_module(module), name))["return"]
    assert any(joined(kind)), f"{file}: {name} gives {kind}, which has no axis of {AXES}"


GIVEN = {"n_prompts": 6, "n_locate": 8, "datasets": "animal/country", "k": 2, "separator": "space", "draws": 3,
         "recorded": "never"}  # fmt: skip
STUDIES = (
    located.accuracy, located.blocks, located.norms, located.positions, mrr.overall, mrr.signed, decides.heads,
    towers_apart.exchanged, towers_apart.blocked, which_heads.rankings, interventions.by_dataset, interventions.single,
    interventions.ways, interventions.union, interventions.curve,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """shards -> table of every study, saved under these shards; also the notes and the parts."""
    found, folder = {}, tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        for of in (1, 2, 3):
            if of > 1:
                patch.setenv(SHARDS, Store(str(folder / f"parts{of}"), "s", of).told)
            run = Run(Parameters.of(GIVEN | {"out": str(folder / str(of))}))
            found[of] = {study.name: run.table(study) for study in STUDIES}
    return found, folder


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@pytest.mark.parametrize("of", [2, 3])
def test_tables_are_the_whole_run_s_row_for_row(study, of, made):
    found, folder = made
    whole, cut = found[1][study.name], found[of][study.name]
    assert whole.attrs["provenance"].keys() | {"shards"} == cut.attrs["provenance"].keys()
    assert cut.attrs["provenance"]["identity"] == whole.attrs["provenance"]["identity"]
    assert len(list((folder / f"parts{of}").glob("*.npz"))) > 20 * of
    pd.testing.assert_frame_equal(cut, whole, rtol=0, atol=CLOSE)


@pytest.mark.slow
def test_parts_that_others_computed_give_the_same_bytes(made, sharded, tmp_path):
    _, folder = made
    for of in (2, 3):
        parts = sorted((folder / f"parts{of}").glob("*.npz"))
        for lost in parts[:: of + 3]:
            lost.unlink()  # a killed job's
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SHARDS, Store(str(folder / f"parts{of}"), "s", of, 1).told)
            run = Run(Parameters.of(GIVEN | {"out": str(tmp_path / str(of))}))
            for study in STUDIES:
                run.table(study)
        for path in sorted((folder / str(of)).glob("*.csv")):
            again = tmp_path / str(of) / path.name
            assert again.read_bytes().split(b"\n", 1)[1] == path.read_bytes().split(b"\n", 1)[1], path.name
            told, before = (
                {k: v for k, v in tables.provenance_of(one).items() if k not in ("seconds", "date")}
                for one in (again, path)
            )
            assert json.dumps(told) == json.dumps(before)
