"""A few of the kills of kills.py in every run of the tests, and that kills.py notices what it looks for."""

import random
import time

import kills
import pytest
from book_builder import needs_proc

pytestmark = needs_proc


@pytest.mark.slow
@pytest.mark.parametrize("make, n", [(kills.publishing, 4), (kills.conversion, 4)])
def test_after_kill_9_the_same_command_completes_with_equal_results(make, n, tmp_path):
    work = make(tmp_path)
    seconds, good = kills.undisturbed(work)
    draw, came = random.Random(0), []
    while len(came) < n:
        one = kills.one_kill(work, draw.uniform(0, seconds), good)
        came += [one] * (one != "ended before")
    assert came == ["equal"] * n


@pytest.mark.parametrize(
    "again, came",
    [
        ("whole", "equal"),
        ("other", "other results: ['out']"),
        ("left", "left behind: ['.out.part']"),
        ("fails", "exit code 1"),
    ],
)
def test_what_comes_out_of_a_kill_is_told_apart(again, came, tmp_path):
    out = tmp_path / "out"

    def write():
        if not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            time.sleep(60)
        assert again != "fails"
        out.write_text("other" if again == "other" else "whole")
        if again == "left":
            (tmp_path / ".out.part").touch()

    def results():
        return {name: found for name, found in kills.contents(tmp_path).items() if name not in ("said", "tried")}

    work = kills.Work("one", tmp_path, lambda: None, kills.forked(tmp_path, write), results, lambda good: True)
    out.write_text("whole")
    good = results()
    assert kills.one_kill(work, 0.5, good).startswith(came)
    (tmp_path / "tried").unlink()
    work.sound = lambda good: False
    assert kills.one_kill(work, 0.5, good) == "half-written under its name"
