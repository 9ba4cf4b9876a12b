"""Recipes: the factorial design, directions of other labels, what more evaluation blocks leave as
it is, and what each reads."""

from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from tolerances import LOGITS, STORED, TIES
from towerlab.measure.design import EVALUATION, Design
from towerlab.measure.pipeline import Pipeline, save
from towerlab.measure.sets import other_halves
from towerlab.model.model import Model
from towerlab.prompts.blocks import class_pairs, draw_blocks
from towerlab.prompts.variants import patterns
from towerlab.prompts.word_blocks import spread
from towerlab_experiments import head_values, tower_grid
from towerlab_experiments.answers import ORDERS
from twotowers import files, head_selection
from twotowers.catalogue import NOT_TESTABLE, catalogue, row_of, versions
from twotowers.heads import Head
from twotowers.settings import Settings, Template


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_orders_of_the_design_are_balanced(k):
    """A factorial crosses them with classes and labels: test_variants."""
    blocks = draw_blocks(
        4, Template(k, "space"), seed=1, pairs=["animal/country"], label_pairs=["foo/bar"]
    )
    orders = spread(patterns(blocks[0]), ORDERS)
    assert len(set(orders)) == (2 if k == 1 else ORDERS)
    assert {order.translate(str.maketrans("TF", "FT")) for order in orders} == set(orders)


LABELS = ("foo/bar", "baz/qux", "plugh/thud")
WITHOUT_EVALUATION = """templates selection selection_increases recomputed_increases
  single_head_ablations demonstrations
  paper paper_ranks paper_balance paper_exchanges paper_queries paper_changes paper_ablations
  paper_remedies dose single_prompt swept_increases decomposition label_increases"""
"""Measurements of selection blocks, and of the paper's own sets"""


def without_evaluation(design, n, seed, template=None, draw=Design.blocks, **of):
    """Draws no evaluation block."""
    assert seed != EVALUATION
    return draw(design, n, seed, template, **of)


def test_directions_of_one_half_of_the_labels_move_the_other(monkeypatch):
    """Every prompt is moved along directions from label pairs without its own; one label pair alone
    has no such prompts."""

    def labels(encoded):
        return {"/".join(e.prompt.labels) for e in encoded}

    monkeypatch.setattr(
        tower_grid,
        "class_directions",
        lambda model, encoded, heads: xr.Dataset(attrs={"labels": labels(encoded)}),
    )
    run = Pipeline(Settings(k=1, separator="space", label_pairs=LABELS))
    few = run.design.intervention()
    monkeypatch.setattr(Design, "blocks", without_evaluation)
    run.__dict__["head_sets"] = {"by attention": [Head(0, 0)]}
    halves = tower_grid.other_labels(run, few)
    assert {id(e) for own, _ in halves for e in own} == {*map(id, few)}
    for own, moved in halves:
        ((heads, of_directions),) = moved.values()
        assert heads == [Head(0, 0)]
        theirs, mine = of_directions.attrs["labels"], labels(own)
        assert not theirs & mine and theirs | mine == set(LABELS)
    alone = Pipeline(Settings(k=1, separator="space", label_pairs=LABELS[:1]))
    alone.__dict__["head_sets"] = run.head_sets
    assert tower_grid.other_labels(alone, [e for e in few if e.prompt.labels[0] in "foo bar"]) == []


def test_more_judging_blocks_leave_what_comes_from_locating_blocks(monkeypatch, tmp_path):
    """Template and heads chosen on 20 evaluation blocks serve for 200: the same files are read, and
    no evaluation block is drawn for them. k = 3 is no template of the grid, and an odd number
    cannot share two labels."""

    monkeypatch.setattr(Design, "blocks", without_evaluation)
    few, many = (
        Pipeline(
            Settings(
                evaluation_blocks=n,
                selection_blocks=2,
                k=3,
                separator="space",
                label_pairs=LABELS[:2],
                prompts=2,
                out=str(tmp_path),
            )
        )
        for n in (20, 200)
    )
    same = [name for name in catalogue() if few.identity(name) == many.identity(name)]
    assert same == WITHOUT_EVALUATION.split()
    times = []
    for run in (few, many):
        for name in same:
            run.measured(name)
        times.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nc")})
    assert times[0] == times[1]


class Noting(Pipeline):
    """Notes which measurements a recipe reads."""

    @cached_property
    def names(self) -> set[str]:
        return set()

    def measured(self, name):
        self.names.add(name)
        return super().measured(name)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """small(kind, ...): a run of a few blocks of two class pairs, under which no recipe is without
    meaning; what others are made from is already there."""
    settings = Settings(
        evaluation_blocks=4,
        selection_blocks=4,
        k=2,
        label_pairs=LABELS[:2],
        prompts=3,
        out=str(tmp_path_factory.mktemp("small")),
    )
    model = Pipeline(settings).model

    def run(kind, **changes):
        of_two_pairs = kind(settings.model_copy(update=changes))
        of_two_pairs.__dict__["model"] = model
        of_two_pairs.design.__dict__["class_pairs"] = class_pairs()[:2]
        return of_two_pairs

    for need in {need for name in catalogue() for need in row_of(name).needs}:
        run(Pipeline).measured(need)
    return run


@pytest.mark.parametrize("name", catalogue())
def test_a_recipe_reads_what_it_says_it_needs_and_its_parts_give_the_numbers_of_all(
    name, small, monkeypatch
):
    """A need that is not said would leave the file as it is when what it was made from has changed;
    what one prompt's numbers owe to another block would be lost where a measurement goes by parts.
    What it makes is of the schema."""
    run = small(Noting)
    monkeypatch.setattr(Pipeline, "part_size", lambda run, name: 8)
    parts = run.computed(name)
    save(name, parts, run.path(name).with_name("saved"), {})
    files.load(run.path(name).with_name("saved"))  # which checks the schema
    assert set(row_of(name).needs) <= run.names <= set(versions(name)) - {name}
    if not list(run.path(name).parent.glob(f".{name}.*.part")):
        return  # made in one go
    monkeypatch.setattr(Pipeline, "part_size", lambda run, name: 10_000)
    other = run.computed(name)
    for array in map(str, parts.variables):
        a, b = parts[array].values, other[array].values
        if a.dtype.kind == "f":  # a part was rounded for its file
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4, err_msg=array)
        elif array.endswith("rank"):
            np.testing.assert_allclose(a, b, rtol=0, atol=1, err_msg=array)  # of near ties
        else:
            assert (a != b).sum() <= TIES * a.size, array


@pytest.mark.parametrize(("n_parameters", "passes"), [(2e9, 64), (5e8, 128), (1e5, 1024)])
def test_parts_are_whole_blocks_of_as_many_passes_as_the_size_of_the_model_says(
    n_parameters, passes
):
    run, sentences = (Pipeline(Settings(suite=suite)) for suite in ("words", "sentences"))
    for pipeline in (run, sentences):
        pipeline.__dict__["model"] = SimpleNamespace(n_parameters=n_parameters)
    for name, row in catalogue().items():
        size = run.part_size(name)
        assert size % 4 == 0
        assert size == 4 or abs(size - passes / row.passes) <= 2 + passes / row.passes / 100
    assert sentences.part_size("paper_exchanges") == passes


def test_every_prompt_has_the_heads_that_other_classes_and_labels_choose(small):
    run = small(Pipeline)
    encoded = run.design.intervention()
    splits = other_halves(run, "by attribution", encoded)
    assert {id(e) for own, _ in splits for e in own} == {*map(id, encoded)}
    selection = run.measured("selection")
    for own, heads in splits:
        judged = {(e.prompt.dataset, frozenset(e.prompt.labels)) for e in own}
        labels = [frozenset(pair.split("/")) for pair in selection["label_pair"].values]
        choose_them = [
            not {pair} & {p for p, _ in judged} and not {names} & {n for _, n in judged}
            for pair, names in zip(selection["class_pair"].values, labels, strict=True)
        ]
        choosing = selection.isel(prompt=choose_them)
        sets = head_selection.head_sets(choosing, head_selection.HEADS_PER_SET)
        assert heads == sets["by attribution"]


@pytest.mark.parametrize(
    "first, second",
    [
        ("templates", "selection"),
        ("templates", "selection_increases"),
        ("templates", "recomputed_increases"),
        ("selection_increases", "selection"),
        ("paper_balance", "paper_exchanges"),
        ("interchanges", "interchanges_without_preference"),
    ],
)
def test_the_passes_of_one_measurement_serve_another(first, second, tmp_path, monkeypatch):
    """The second runs no prompt, and has the numbers that it has without the first."""
    settings = {"k": 2, "prompts": 2, "evaluation_blocks": 4, "selection_blocks": 8}
    alone, both = (Pipeline(Settings(**settings, out=str(tmp_path / name))) for name in "ab")
    for need in row_of(second).needs:
        alone.measured(need)
    alone.shared.clear()
    expected = alone.measured(second)
    for name in (*row_of(second).needs, first):
        both.measured(name)
    monkeypatch.setattr(Model, "logits", None)
    found = both.measured(second)
    assert set(found) == set(expected) != set()
    xr.testing.assert_allclose(found, expected, rtol=2 * STORED, atol=LOGITS)


def test_an_interrupted_measurement_goes_on_after_its_last_part(tmp_path, monkeypatch):
    """Only the part that was under way is made again, and one that is cut off; the file is the same
    as without an interruption, with nothing beside it."""
    monkeypatch.setattr(Pipeline, "part_size", lambda run, name: size)
    size, blocks, measure = 4, [], head_values.heads

    def heads(model, encoded):
        if blocks == stop_after:
            raise KeyboardInterrupt
        blocks.append(encoded[0].prompt.block)
        return measure(model, encoded)

    monkeypatch.setattr(head_values, "heads", heads)
    of = dict(
        evaluation_blocks=4, selection_blocks=1, k=1, separator="space", label_pairs=LABELS[:2]
    )
    straight, broken, elsewhere = (
        Pipeline(Settings(**of, out=str(tmp_path / name))) for name in "abc"
    )
    stop_after = None
    straight.measured("heads")
    assert blocks == [0, 1, 2, 3]
    blocks.clear()
    stop_after = [0, 1]
    with pytest.raises(KeyboardInterrupt):
        broken.measured("heads")
    assert not broken.path("heads").is_file() and blocks == [0, 1]
    first, _ = sorted(broken.path("heads").parent.glob(".heads.*.part"))
    first.write_bytes(first.read_bytes()[:200])
    stop_after = None
    xr.testing.assert_identical(
        *(run.measured("heads").drop_attrs(deep=False) for run in (broken, straight))
    )
    assert blocks == [0, 1, 0, 2, 3]
    assert sorted(path.name for path in broken.path("heads").parent.iterdir()) == ["heads.nc"]
    blocks.clear()
    stop_after = [0, 1]
    with pytest.raises(KeyboardInterrupt):
        elsewhere.measured("heads")
    stop_after, size = None, 8  # parts of another size are made anew
    xr.testing.assert_allclose(
        elsewhere.measured("heads"), straight.measured("heads"), rtol=2e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("named", "changed", "is_used"),
    [
        (None, {"prompts": 8}, False),
        (frozenset({"heads"}), {"prompts": 8}, True),
        (frozenset({"paper"}), {"prompts": 8}, False),
        (frozenset({"heads"}), {"prompts": 8, "seed": 1}, False),
        (frozenset({"paper"}), {}, True),
    ],
)
def test_what_a_named_measurement_needs_is_not_measured_again_on_fewer_prompts(
    named, changed, is_used, tmp_path
):
    settings = Settings(out=str(tmp_path))
    run = Pipeline(settings, named=named)
    other = Pipeline(settings.model_copy(update=changed))
    attributes = {"identity": other.identity("paper"), NOT_TESTABLE: "a reason"}
    save("paper", xr.Dataset(), run.path("paper"), attributes)
    assert (run.stored("paper") is not None) == is_used
