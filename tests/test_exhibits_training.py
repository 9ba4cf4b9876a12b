"""Chapter 13: onsets and courses of tables recorded by hand, and every claim on hand-made rows."""

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, sayable
from twotowers.errors import TwoTowersError
from twotowers.exhibits import training as shown
from twotowers.exhibits.claim import Verdict
from twotowers.parameters import Parameters
from twotowers.stats import tables
from twotowers.studies import training
from twotowers.studies.run import Run
from twotowers.studies.training import ALL, DRILLS, INTERACTION, LAST, OURS, OVER, PARTS, READING, TWO_LABEL

EARLY, LATE, NEVER = 1000.0, 3000.0, np.nan
BEGINS = 2000


def onsets(values=(EARLY,) * 6, towers=None, beyond=None, parts=None, right=None):
    """Onsets of values and towers, one a seed; `beyond`: those of the heads' lead over others; `parts`: at three quarters."""
    rows, towers, right = [], towers or (LATE,) * len(values), right or (LATE,) * len(values)
    for i in range(len(values)):
        for since in (DRILLS, LAST):
            for part in PARTS:
                own = parts if parts and part == PARTS[-1] else (values[i], towers[i])
                for heads, (a, b) in ((OURS, own), (OVER, beyond or own)):
                    rows += [(i, READING, heads, since, part, a), (i, INTERACTION, heads, since, part, b)]
                rows.append((i, TWO_LABEL, ALL, since, part, right[i]))
    t = pd.DataFrame(rows, columns=["seed", "quantity", "heads", "since", "part", "step"])
    late = t["step"] > BEGINS
    return t.assign(final=1.0, late=late, stage=np.where(late, "episodes", "recall"))


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "Values come first in each of 6 seeds"),
        ({"values": (LATE,) * 6, "towers": (EARLY,) * 6}, Verdict.FAILS, "Towers come first in each of 6 seeds"),
        ({"beyond": (LATE, EARLY)}, Verdict.CONTROL, "but not in what they have beyond the other heads"),
        ({"beyond": (EARLY, EARLY)}, Verdict.CONTROL, "but not in what they have beyond the other heads"),
        ({"beyond": (EARLY, NEVER)}, Verdict.CONTROL, "but not in what they have beyond the other heads"),
        (
            {"values": (EARLY, EARLY, LATE)},
            Verdict.UNDECIDED,
            "by label reading in 2 of 3 seeds, and by class interaction in 0",
        ),
        ({"values": (LATE,) * 3}, Verdict.UNDECIDED, "by label reading in 0 of 3 seeds, and by class interaction in 0"),
        ({"values": (EARLY, EARLY, NEVER)}, Verdict.UNDECIDED, "one of the two never comes in 1."),
        ({"values": (EARLY,) * 3, "towers": (NEVER,) * 3}, Verdict.UNDECIDED, "by label reading in 0 of 3 seeds"),
        ({"parts": (LATE, EARLY)}, Verdict.UNDECIDED, "at a quarter, half and three quarters, neither is always first"),
        (
            {"values": (EARLY,) * 5},
            Verdict.UNDECIDED,
            "Fewer than 6 seeds decide nothing. By chance alone so many seeds",
        ),
        ({"values": (EARLY,), "towers": (EARLY,)}, Verdict.UNDECIDED, "Fewer than 6 seeds decide nothing"),
    ],
)
def test_what_comes_first_is_said_only_where_all_seeds_agree_beyond_the_control(given, verdict, words):
    t = onsets(**given)
    for claim in (shown.first, shown.again):
        found = sayable(claim(t))
        assert found.verdict is verdict and words in found.sentence
    assert shown.onsets_chart(t).to_dict()


def test_the_text_s_part_in_the_order_is_said():
    assert "the text's as much as the model's" in shown.first(onsets()).sentence
    both_late = onsets(values=(BEGINS + 1.0,) * 3)
    assert "the text's as much" not in shown.first(both_late).sentence
    assert "label reading passes half in `episodes`" in shown.first(both_late).sentence


def test_onsets_as_a_table():
    rows = shown.onsets_rows(onsets((EARLY,) * 3, towers=(LATE, LATE, NEVER)))
    assert rows.loc[(DRILLS, INTERACTION, OURS)].tolist() == ["3,000 (episodes)", "3,000 (episodes)", "never"]
    assert len(rows) == 8


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, "in 6 of 6 seeds"),
        ({"values": (EARLY,) * 3, "right": (EARLY, LATE, LATE)}, "in 2 of 3 seeds"),
        ({"values": (EARLY,) * 3, "right": (NEVER, LATE, LATE)}, "in 2 of 2 seeds"),
        ({"values": (EARLY,) * 3, "right": (NEVER,) * 3}, "In no seed"),
    ],
)
def test_when_the_model_is_right_is_a_finding(given, words):
    found = sayable(shown.answers(onsets(**given)))
    assert found.verdict is None and words in found.sentence


@pytest.mark.parametrize("k, words", [(5, "3 of 10 later in-context heads"), (0, "No seed has in-context heads")])
def test_induction_heads_that_became_in_context_heads(k, words):
    t = pd.DataFrame(
        {"seed": [0, 1], "k": k, "shared": [1, 2], "expected": 0.7, "p": 0.2, "in_context": 0.3, "others": 0.1}
    )
    found = sayable(shown.inherited(t))
    assert found.verdict is None and words in found.sentence
    assert shown.inherited_rows(t)["shared"].tolist() == [1, 2]


# --- the studies, on a recording made by hand -------------------------------------------------------------------------

STEPS = (0, 10, 20, 30, 40)  # the last stage begins at 20
COURSES = {READING: (0.0, 0.9, 0.1, 0.6, 1.0), INTERACTION: (0.0, 0.0, 0.0, 0.2, 2.0)}


def recording(folder, seeds=(0, 1), model="mini-gpt2"):
    """Two layers of two heads: 1-0 is the in-context head and follows COURSES, 1-1 has a tenth of it, layer 0 is wild."""
    rows = []
    for seed in seeds:
        for i, step in enumerate(STEPS):
            for head, factor in (("0-0", 100), ("0-1", -100), ("1-0", 1), ("1-1", 0.1)):
                values = {quantity: course[i] * factor for quantity, course in COURSES.items()}
                values |= {"increase": -factor * i, "label margin": factor * i, "attention difference": 0.0}
                rows.append({"seed": seed, "step": step, "head": head, **values, "induction": factor / 100})
            of_model = {
                "accuracy, vocabulary": 0.0,
                TWO_LABEL: 0.5 + i / 10,
                "margin": 0.0,
                "repeated tokens copied": i / 4,
            }
            rows.append({"seed": seed, "step": step, "head": ALL, **of_model})
    heads = [
        {"seed": s, "head": h, "layer": int(h[0]), "in_context": h == "1-0"}
        for s in seeds
        for h in ("0-0", "0-1", "1-0", "1-1")
    ]
    stages = [row for s in seeds for row in ({"seed": s, "stage": "recall", "start": 0, "end": 20, "chosen": None},
                                             {"seed": s, "stage": "episodes", "start": 20, "end": 40, "chosen": 30})]  # fmt: skip
    for name, some in ((training.MEASURES, rows), (training.HEADS, heads), (training.STAGES, stages)):
        told = {"model": model, "prompts": 120, "date": "2026-11-22", "machine": "m"}
        tables.save(pd.DataFrame(some), folder, name, told)


@pytest.fixture
def run(tmp_path, monkeypatch):
    recording(tmp_path / "recorded")
    for module in ("training", "context"):
        monkeypatch.setattr(f"twotowers.studies.{module}.results_folder", lambda model: tmp_path / "recorded")
    return lambda: Run(Parameters.of({"out": str(tmp_path / "out")}))


def test_an_onset_is_where_a_quantity_stays_above_a_part_of_its_end():
    up_down_up = pd.Series(COURSES[READING], STEPS)
    assert [training.onset(up_down_up, part) for part in PARTS] == [30, 30, 40]
    assert np.isnan(training.onset(-up_down_up)) and np.isnan(training.onset(up_down_up * np.nan))
    assert np.isnan(training.onset(up_down_up[:0]))


def test_onsets_by_hand(run):
    t = run().table(training.onsets)
    at = t[t["part"] == 0.5].set_index(["seed", "quantity", "heads", "since"])
    assert at.loc[(0, READING, OURS, DRILLS), "step"] == 30 and at.loc[(0, INTERACTION, OURS, DRILLS), "step"] == 40
    assert at.loc[(1, READING, OVER, DRILLS), "final"] == pytest.approx(0.9), (
        "less the other head of the layer, not of all"
    )
    assert at.loc[(0, READING, OURS, LAST), "final"] == pytest.approx(0.9), "less what the stage began with"
    assert np.isnan(at.loc[(0, "increase", OURS, DRILLS), "step"]), "below zero at the end: it never came"
    assert at.loc[(0, TWO_LABEL, ALL, DRILLS), ["final", "step"]].tolist() == [pytest.approx(0.4), 30], (
        "from a guess on"
    )
    assert at.loc[(0, READING, OURS, DRILLS), ["stage", "late"]].tolist() == ["episodes", True]
    assert sayable(shown.first(t)).verdict is Verdict.UNDECIDED


def test_courses_stages_and_heads_by_hand(run):
    course = run().table(training.course)
    mine = course[(course["seed"] == 1) & (course["quantity"] == READING)].pivot(
        index="step", columns="heads", values="value"
    )
    assert mine[OURS].tolist() == list(COURSES[READING])
    assert mine[training.OTHERS].tolist() == pytest.approx([x / 10 for x in COURSES[READING]])
    assert course.groupby("step")["stage"].first().tolist() == ["recall"] * 3 + ["episodes"] * 2
    stages = run().table(training.stages)
    assert stages["checkpoints"].tolist() == [3, 2] * 2 and stages["chosen"].tolist() == [30] * 4
    assert stages[TWO_LABEL].tolist() == [0.7, 0.9] * 2 and stages[READING].tolist() == [0.1, 1.0] * 2
    assert "2 trainings" in sayable(shown.recorded(stages)).sentence
    assert shown.stages_rows(stages)["two-label accuracy"].tolist() == ["0.70 / 0.70", "0.90 / 0.90"]
    said = sayable(shown.last_stage(stages)).sentence
    assert (
        "label reading goes from 0.10 to 1.00 nats, their class interaction from 0.00 to 2.00 (means over 2 seeds)"
        in said
    )
    assert "one stage only" in shown.last_stage(stages[stages["stage"] == "episodes"]).sentence
    every = run().table(training.every_head)
    assert every["checkpoint"].max() == 4 and len(every) == 40
    then = run().table(training.inherited)
    assert then[["k", "shared", "in_context"]].to_numpy().tolist() == [[1, 0, 0.01]] * 2
    assert shown.course_chart(course).to_dict()


def test_the_slider_goes_over_all_checkpoints_and_a_shorter_seed_stays_at_its_last(run):
    every = run().table(training.every_head)
    every = every[(every["seed"] == 0) | (every["checkpoint"] < 3)]
    spec = shown.heads_chart(every).to_dict()
    (slider,) = [one for one in spec["params"] if one["name"] == "checkpoint"]
    assert slider["bind"] == {"input": "range", "min": 0, "max": 4, "step": 1, "name": "checkpoint "}
    (rows,) = spec["datasets"].values()
    assert {row["last"] for row in rows if row["seed"] == "seed 1"} == {2}
    assert len(rows) == 8 and "min(checkpoint, datum.last)" in str(spec["layer"][0]["transform"])


def test_a_seed_without_in_context_heads_says_never(run, tmp_path):
    heads = tables.load(tmp_path / "recorded", training.HEADS)
    told = heads.attrs["provenance"]
    tables.save(heads.assign(in_context=False), tmp_path / "recorded", training.HEADS, told)
    t = run().table(training.onsets)
    assert t.loc[t["heads"] == OURS, "step"].isna().all()
    assert sayable(shown.first(t)).verdict is Verdict.UNDECIDED and sayable(shown.again(t)).verdict is Verdict.UNDECIDED
    assert "No seed has" in shown.inherited(run().table(training.inherited)).sentence
    stages = run().table(training.stages)
    assert shown.onsets_chart(t).to_dict() and "none / none" in shown.stages_rows(stages).to_numpy()
    assert "No seed has" in shown.last_stage(stages).sentence


def test_a_new_recording_makes_the_tables_again(run, tmp_path):
    assert run().table(training.onsets)["seed"].nunique() == 2
    recording(tmp_path / "recorded", seeds=(0, 1, 2))
    assert run().table(training.onsets)["seed"].nunique() == 3


def test_what_was_not_recorded_is_said_in_one_line(run, tmp_path):
    recording(tmp_path / "recorded", model="another")  # a folder of that name is not this model
    with pytest.raises(TwoTowersError, match="the training of mini-gpt2 was not recorded: this chapter is about"):
        run().table(training.onsets)


def test_what_is_recorded_here_is_small():
    files = list((ROOT / "data/results/mini-gpt2").glob("along-training-*.csv"))
    assert len(files) == 3 and sum(path.stat().st_size for path in files) < 1_000_000
