"""The explorer of heads: its numbers are those of the recorded files, and what it does in a
headless browser."""

import gzip
import json
import re

import numpy as np
import pytest
import xarray as xr
from browser import browser, explorer, explorer_page, needs_browser, refuses, text
from twotowers import files, head_selection, intervals
from twotowers.paths import data_folder

MODEL, QWEN = "smollm2-135m", "qwen2.5-coder-1.5b"
RECORDED = [MODEL, "gemma-3-270m", "qwen2.5-coder-0.5b-q4_k_m", QWEN]  # the smallest first


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """What the page reads: means and intervals of every head, which take a while, once for all
    tests."""
    return explorer.script(tmp_path_factory.mktemp("none"))


@pytest.fixture(scope="module")
def explored(script):
    return {
        model["name"]: model
        for model in json.loads(script.partition(" = ")[2].rstrip(";\n"))["models"]
    }


@pytest.fixture(scope="module")
def address(script, tmp_path_factory):
    return explorer_page(tmp_path_factory.mktemp("heads"), script)


def recorded_data(name, suite="words", model=MODEL):
    return files.of_labels(files.open_precomputed(model, suite, name), "arbitrary")


def test_numbers_of_heads_are_those_of_the_files(explored):
    for suite in ("words", "sentences"):
        heads, columns = recorded_data("heads", suite), explored[MODEL]["suites"][suite]["columns"]
        for quantity in ("attention difference", "writing", "contribution"):
            assert columns[quantity]["mean"] == pytest.approx(
                head_selection.rankings(heads)[quantity].values.ravel(), abs=6e-5
            )
        increase = recorded_data("increases", suite)["increase"].mean("prompt")
        assert columns["increase"]["mean"] == pytest.approx(increase.values.ravel(), abs=6e-5)
    assert (
        "effect" in columns and "label sent" not in columns
    )  # sentences are recorded without prompts of exchanged labels
    columns, singles = explored[MODEL]["suites"]["words"]["columns"], recorded_data("singles")
    for layer, head in ((18, 6), (24, 4)):
        i = layer * 9 + head
        of = intervals.mean(singles["logit_difference_lost"].isel(layer=layer, head=head))
        assert [columns["lost"][key][i] for key in ("mean", "low", "high")] == pytest.approx(
            [of.estimate, of.low, of.high], abs=6e-5
        )
        assert columns["by text"]["mean"][i] + columns["by predicted label"]["mean"][
            i
        ] == pytest.approx(own(layer, head), abs=2e-4)


def own(layer, head):
    """Mean preference with the prompt's own query."""
    own = recorded_data("looks")["attention_difference"].sel(query_of="own")
    return float(own.mean("prompt").isel(layer=layer, head=head))


def test_parts_add_up_to_the_sender_s_total_where_ways_were_opened(explored):
    suite = explored[MODEL]["suites"]["words"]
    first = suite["ways"]["18-6"]
    assert first["all ways"] == pytest.approx(
        suite["columns"]["label sent"]["mean"][18 * 9 + 6], abs=2e-3
    )
    assert sum(first[way] for way in ("at once", "by later queries", "by MLPs")) == pytest.approx(
        first["all ways"], rel=0.1
    )


@pytest.mark.parametrize(
    ("model", "suite"), [(MODEL, "words"), (QWEN, "words"), (QWEN, "sentences")]
)
def test_a_block_is_an_order_its_mirror_and_both_with_exchanged_labels(explored, model, suite):
    page, heads = explored[model]["suites"][suite], recorded_data("heads", suite, model)
    texts, values = list(heads["text"].values), heads["attention"].values
    width = len(page["prompts"][0]["rows"]) - 1
    attention = (np.array(list(map(ord, page["attention"]))) - explorer.FIRST) / explorer.LEVELS
    attention = attention.reshape(len(page["prompts"]), -1, width)
    rows = [prompt["rows"] for prompt in page["prompts"]]
    assert len(rows) == 4 * explorer.SHOWN
    for i, prompt in enumerate(page["prompts"]):
        exchanged, mirrored = (page["prompts"][i ^ bit] for bit in (2, 1))
        assert sorted(mirrored["rows"]) == sorted(rows[i]) and mirrored["rows"] != rows[i]
        *pairs, last = zip(exchanged["rows"], rows[i], strict=True)
        assert all(a[0] == b[0] and a[1] != b[1] for a, b in pairs) and last[0] == last[1]
        assert exchanged["right"] != prompt["right"] == mirrored["right"]
        words = " ".join(
            " : ".join(pair) if pair[1] else f"{pair[0]} :" for pair in rows[i]
        ).split()
        of = next(n for n, t in enumerate(texts) if t.split() == words)
        assert attention[i] == pytest.approx(
            values[of].reshape(-1, values.shape[-1])[:, :width], abs=0.51 / explorer.LEVELS
        )


def test_it_is_small_and_quotes_no_number_that_json_lacks(script):
    assert (
        len(script.encode()) < 600_000
        and len(gzip.compress(script.encode())) < 190_000
        and "NaN" not in script
    )


def test_models_of_the_reader_are_read_and_stale_ones_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(explorer, "columns", lambda read: {})  # which take a while
    source = data_folder() / "measurements" / MODEL / "sentences/heads.nc"
    for name, stale in (("mine", False), ("old", True)):
        path = tmp_path / name / "sentences/heads.nc"
        path.parent.mkdir(parents=True)
        with xr.open_dataset(source) as data:
            made_of = json.loads(data.attrs["identity"])
            versions = {part: version + stale for part, version in made_of["versions"].items()}
            data.attrs["identity"] = json.dumps({**made_of, "versions": versions})
            data.to_netcdf(path)
    names = [
        model["name"]
        for model in json.loads(explorer.script(tmp_path).partition(" = ")[2].rstrip(";\n"))[
            "models"
        ]
    ]
    assert names == [*RECORDED, "mine"]


@needs_browser
def test_a_click_pins_a_shift_click_compares_and_arrows_change_the_prompt(address, explored):
    suite = explored[MODEL]["suites"]["words"]

    def click(name, **how):
        circles = page.locator(".heads-plane circle")
        circles.filter(has_text=re.compile(f"^{name}$")).click(**how)

    with browser(address, reduced_motion="reduce") as page:
        click("24-4", force=True)
        assert page.get_by_role("heading", name="Head 24-4").is_visible()
        lowered = -suite["columns"]["effect"]["mean"][24 * 9 + 4]
        rows = page.locator(".heads-card tbody tr")
        row = rows.filter(has_text="total effect of its attention").text_content()
        assert float(re.search(r"−(\d+\.\d\d)", row)[1]) == pytest.approx(lowered, abs=0.0051)
        click("18-6", modifiers=["Shift"], force=True)
        assert page.get_by_role("heading", name="Heads 24-4 and 18-6").is_visible()
        page.locator(".heads-prompt").focus()
        for key, number in (("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowLeft", 24)):
            page.keyboard.press(key)
            assert f"prompt {number} of 24" in page.text_content(".heads-prompt")
        assert page.locator(".heads-prompt li bdi").all_text_contents() == [
            row[0] for row in suite["prompts"][23]["rows"]
        ]


@needs_browser
def test_lines_are_moved_and_the_counts_follow(address, explored):
    columns = explored[MODEL]["suites"]["words"]["columns"]
    preference, writing = (
        np.array(columns[name]["mean"]) for name in ("attention difference", "writing")
    )

    def check(x, y):
        right, above = preference >= x, writing >= y
        parts = (above & ~right, above & right, ~above & ~right, ~above & right)
        counts = page.locator(".heads-counts td").all_text_contents()
        assert [*map(int, counts)] == [int(part.sum()) for part in parts]

    with browser(address) as page:
        check(head_selection.COMPARES, head_selection.WRITES)
        for line in ("vertical line", "horizontal line"):
            page.get_by_label(line).focus()
            for _ in range(30):
                page.keyboard.press("ArrowUp")
        page.wait_for_timeout(300)
        x, y = (float(re.search(rf"{axis}=([\d.]+)", page.url)[1]) for axis in "xy")
        assert x > head_selection.COMPARES and y > head_selection.WRITES
        check(x, y)


@needs_browser
def test_scenes_are_guessed_first_and_their_words_are_true(address):
    """The third, first, ... answer is the right one: what each scene says after it was written for
    that."""
    right = [1, 2, 2, 2, 1]
    with browser(address) as page:
        scenes = page.locator(".tinker-scenes button")
        assert scenes.count() == len(right)
        for i, option in enumerate(right, 1):
            scenes.nth(i - 1).click()
            assert page.locator(".heads-card table").count() == 0
            page.locator(".tinker-question button").nth(option).click()
            assert text(page, "score") == f"{i} of {i} right"
            assert page.locator(".heads-card table").count() == 1
        page.wait_for_url("**texts=sentences**")
        for field in ("undefined", "NaN", "null"):
            assert field not in page.text_content("#heads")


@needs_browser
def test_the_address_holds_the_state_and_refuses_another(address):
    with browser(address) as page:
        page.get_by_label("model").select_option(QWEN)
        assert "before" not in page.text_content(
            ".heads-looks"
        )  # no prompt of this block was shown
        page.get_by_label("axes").select_option("parts")
        page.get_by_label("beside").select_option("20-4")
        page.get_by_role("button", name="mirror").click()
        page.wait_for_url("**prompt=1**")
        link, before = page.url, page.text_content(".heads-card")
    with browser(
        f"{address}#model={MODEL}&head=24-4"
    ) as page:  # what is left out follows from the data
        assert page.get_by_role("heading", name="Head 24-4").is_visible()
    with browser(link) as page:
        assert page.text_content(".heads-card") == before and "prompt 2 of 24" in page.text_content(
            ".heads-prompt"
        )
        for wrong in ("head=99-9", "prompt=1.5", "x=abc", "axes=<b>", "model=none", "more=1"):
            refuses(page, f"{link.partition('#')[2]}&{wrong}")
            assert page.text_content(".heads-card") == before
            page.evaluate("(hash) => { location.hash = hash; }", link.partition("#")[2])
            page.wait_for_function("!document.querySelector('.tinker-error').textContent")
