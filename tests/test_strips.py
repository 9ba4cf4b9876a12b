"""The block of a statement: its words follow from the verdicts, and its marks lie where the numbers
say."""

import re
from dataclasses import replace

import browser
import pytest
from tolerances import near
from twotowers import axes, claims, paper_results, strips
from twotowers.claims import Claim, PaperResult
from twotowers.evidence import EvidenceRow
from twotowers.paper_results import Result

RESULT = PaperResult(
    id="figure 60", chapter="4", statement="Heads <attend>.", source="s", measure="share of heads",
    rule="2026-01-01", seen="none", published="", agrees=0.9, part=0.75, not_run="",
)  # fmt: skip
CLAIM = Claim(
    id="claimed", chapter="4", statement="It moves.", source="s", measure="move", rule="2026-01-01",
    seen="none", null_value=0.0, smallest_effect=0.1, unit="nats", heads="", control="none",
)  # fmt: skip


HELD = EvidenceRow("claimed", "m", claims.HOLDS, "", "", "4", effect=1.0)


def judged(*values, random=None):
    """One row a value, judged by the rule of RESULT."""
    return [
        EvidenceRow("figure 60", f"m{i}", statement="", chapter="4",
                    **paper_results.judge(RESULT, Result(value, "", random)))
        for i, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "values, random, words",
    [
        ([1, 1], None, "Agrees in both models."),
        ([1, 0.8, 0.1], None, "Agrees in 1 of 3 models, in part in 1, does not agree in 1."),
        ([0.1, 0.2, 0.3], None, "Does not agree in any of the 3 models."),
        ([1, 1, 1], [0.0] * 20, "Agrees in all 3 models. Random heads do not reach it."),
        (
            [1, 1, 0.1],
            [1.0] * 20,
            "Agrees in 2 of 3 models, does not agree in 1. "
            "More than 5% of random lists reach it as well.",
        ),
        ([1], [1.0] * 19, "Agrees in the only model tested."),
        ([1, float("nan")], None, "Agrees in the only model tested."),
        ([float("nan")], None, "Not testable in any model."),
        (
            [1, 0.8],  # one list of 20 reaches "in part" only
            [0.8, 0.8] + [0.0] * 18,
            "Agrees in 1 of 2 models, in part in 1. In 1 of these, more than 5% of random lists "
            "reach it as well.",
        ),
    ],
)
def test_the_result_in_words_follows_from_the_verdicts(values, random, words):
    assert strips.headline(judged(*values, random=random)) == words


def test_few_random_lists_are_no_test():
    rows = [*judged(1, random=[0.0] * 20), *judged(1, random=[0.0] * 3)]
    assert strips.headline(rows).endswith(
        "Random heads do not reach it in 1 of these; in the others, too few are left for a test."
    )


def test_lists_of_the_same_layers_are_a_test_if_other_heads_are_few():
    found = Result(1.0, "", random=[0.0] * 5, in_layers=[1.0] * 20)
    numbers = paper_results.judge(RESULT, found)
    row = EvidenceRow("figure 60", "m9", statement="", chapter="4", **numbers)
    assert row.verdict == claims.AGREES_UNSPECIFIC
    words = "In 1 of these, more than 5% of random lists reach it as well."
    assert strips.headline([*judged(1.0, random=[0.0] * 20), row]).endswith(words)


def test_a_first_verdict_without_numbers_has_a_reason_and_no_lines():
    """Figures 8 and 10 have their second verdict only."""
    on_paper, on_blocks = judged(float("nan"))[0], judged(0.1)[0]
    rows = [
        replace(on_paper, words="nothing was recorded", prompt_set=claims.ON_PAPER),
        replace(on_blocks, prompt_set=claims.ON_SOLVED),
    ]
    words = "In the paper's protocol: not testable in any model: nothing was recorded."
    assert strips.headline(rows).endswith(words)
    assert "not testable" not in strips.strip(RESULT, rows)


def test_a_strip_says_how_many_prompts():
    few, more, unknown = (
        replace(judged(1)[0], prompts=n, prompt_set=claims.ON_PAPER) for n in (40, 1200, 0)
    )
    on_blocks = replace(judged(1)[0], prompts=184, prompt_set=claims.ON_SOLVED)
    html = strips.strip(RESULT, [few, more, unknown, on_blocks])
    assert "184 counterbalanced prompts, 40 to 1,200 prompts in the paper's p" in html
    assert re.findall(r"n&nbsp;=&nbsp;([\d,]+)", html) == ["40", "1,200"]  # these differ
    assert "In each model" not in strips.strip(RESULT, [unknown])
    html = strips.strip(CLAIM, [replace(HELD, prompts=16, observations="classes")])
    assert "In each model: 16 classes." in html


def test_a_claim_is_answered_by_its_verdicts():
    rows = [HELD, replace(HELD, verdict=claims.ABSENT), HELD]
    assert strips.headline(rows) == "Holds in 2 of 3 models, absent in 1."


@pytest.mark.parametrize(
    "control, words", [("random sets", "random sets of heads"), ("random forms", "random forms")]
)
def test_the_key_names_the_control(control, words):
    row = replace(HELD, control=0.1)
    html = strips.strip(CLAIM.model_copy(update={"control": control}), [row])
    assert f"mean of {words}<" in html or f"mean of {words} " in html


def place(html: str, mark: str) -> list[float]:
    """The places of marks of a kind (percent of the width)."""
    return [float(x) for x in re.findall(rf'class="{mark}[^"]*" c?x="([\d.]+)%"', html)]


def test_a_dot_is_in_the_zone_of_its_verdict():
    values = [0.9, 0.89, 0.75, 0.74, 0.2]
    html = strips.strip(RESULT, judged(*values))
    agrees, part, _ = place(html, "zone")[:3]
    dots = place(html, "dot")
    verdicts = re.findall(r"<td><b>([\w ]+)</b>", html)
    names = re.findall(">([a-z ]+)</text>", html)
    assert names == ["agrees", "in part", "does not agree"]
    assert dots == sorted(dots, reverse=True) and len(dots) == len(values)
    expected = [
        "agrees" if x >= agrees else "in part" if x >= part else "does not agree" for x in dots
    ]
    assert verdicts == expected


def test_a_narrow_zone_has_its_name_models_their_order_and_a_measure_its_parentheses():
    rule = {"agrees": 0.99, "measure": "of changes (a; b), share; more"}
    narrow = RESULT.model_copy(update=rule)
    rows = [replace(row, model=m) for row, m in zip(judged(1, 0.8, 0.0), "zba", strict=True)]
    rows += [replace(rows[0], model="tinyllama-1.1b"), replace(rows[0], model="mini-gpt2")]
    html = strips.strip(narrow, rows)
    assert ">agrees</text>" in html and ">in part</text>" in html
    assert 'class="strip-key">of changes (a; b), share<br>' in html
    names = re.findall('scope="row">([^<]+)<', html)
    assert names == ["mini-gpt2", "TinyLlama-1.1B (2-bit)", "z", "b", "a"]


def test_remarks_say_what_a_verdict_hides():
    row = judged(1, random=[1.0] * 20)[0]
    html = strips.strip(RESULT, [replace(row, mark=claims.BY_POSITION)])
    assert "100% of random lists do as well; says the nearest label" in html
    few = strips.strip(RESULT, judged(1, random=[0.0]))
    assert "too few other heads</b>: 1 different random list</td>" in few
    assert "do as well" not in strips.strip(RESULT, judged(0.1, random=[1.0] * 20))


def test_the_band_is_the_range_of_random_heads():
    row = replace(judged(1, random=[0.0] * 20)[0], control_low=0.1, control_high=0.3)
    html = strips.strip(RESULT, [row])
    assert re.search(r'class="band" x1="[\d.]+%" x2="[\d.]+%"', html) and "90% of them" in html
    assert 'class="band"' not in strips.strip(RESULT, judged(1, random=None))


def test_text_is_escaped_and_a_model_without_a_number_has_its_reason():
    rows = [*judged(1), replace(judged(1)[0], model="<m>", effect=float("nan"),
                                verdict=claims.NOT_TESTABLE, words="does <not> learn")]  # fmt: skip
    html = strips.block(RESULT, rows, "Numbers", "<rule>")
    assert "<m>" not in html and "<attend>" not in html and "&lt;rule&gt;" in html
    assert "not testable</b>: does &lt;not&gt; learn" in html
    assert strips.strip(RESULT, rows[1:]) == ""


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_ticks_are_round_and_on_the_axis(share):
    scale = axes.Scale(share - 0.05, share + 1.05, is_share=True)
    assert 3 <= len(scale.ticks) <= 7
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    assert all(round(20 * tick) == pytest.approx(20 * tick) for tick in scale.ticks)


@browser.needs_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_no_mark_is_clipped_and_nothing_runs_out_of_the_page(width, tmp_path):
    rows = judged(1, 0.8, 0.0, random=[0.4] * 20)
    rows = [replace(row, model=f"a-model-with-a-long-name-{i}") for i, row in enumerate(rows)]
    body = strips.block(RESULT, rows, "Numbers")
    with browser.browser(browser.page_of(tmp_path, "", [], [], body), width=width) as page:
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        for circle in page.query_selector_all("circle.dot"):
            box = circle.bounding_box()
            near(box["width"], 2 * strips.DOT, atol=0.5)
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
        track = page.query_selector(".track").bounding_box()
        assert track["width"] > 140 and page.query_selector(".strip").bounding_box()["height"] < 300


def test_what_all_models_share_is_told_once():
    """A reason of all verdicts is below the strip, and arithmetic without a model is one line."""
    result = claims.paper_results()["appendix E, toy example"]
    rows = [
        EvidenceRow(result.id, model, claims.AGREES, words, "", "10", effect=1.0, reason="so it is")
        for model, words in (("a", "x"), ("b", "y"))
    ]
    text = strips.strip(result, rows)
    assert text.count("so it is") == 0 and text.count("So it is.") == 1
    assert text.count('<th scope="row">') == 2
    same = strips.strip(result, [replace(row, words="x") for row in rows])
    assert same.count('<th scope="row">') == 1 and "every model" in same


def test_a_bound_far_from_all_other_numbers_is_off_the_axis_with_an_arrow():
    near_bounds = [replace(HELD, model=m, effect_low=0.5, effect_high=2.0) for m in "ab"]
    far = replace(near_bounds[0], model="c", words="far", effect_high=150.0)
    picture = strips.strip(CLAIM, [*near_bounds, far])
    assert picture.count('class="beyond"') == 1 and "beyond the axis" in picture
    assert axes.scale_of(CLAIM, [*near_bounds, far]).high < 3
    picture = strips.strip(CLAIM, near_bounds)
    assert "beyond" not in picture
    largest = replace(far, effect=150.0)  # a number itself is always on the axis
    assert axes.scale_of(CLAIM, [*near_bounds, largest]).high > 150
