"""The explorer of heads: its numbers are those of the precomputed files, and what it does in a
headless browser."""

import itertools
import json
import re

import explorer
import numpy as np
import pytest
import xarray as xr
from browser import broken_rules, browser, explorer_page, needs_browser, refuses, text
from tolerances import near
from twotowers import files, head_selection, intervals, matrices
from twotowers.paths import data_folder
from twotowers.tables import read_csv

MODEL, QWEN = "smollm2-135m", "qwen2.5-coder-1.5b"
# the smallest first
PRECOMPUTED = [MODEL, "gemma-3-270m", "qwen2.5-coder-0.5b-q4_k_m", "tinyllama-1.1b", QWEN]


def models_of(script):
    return json.loads(script.partition(" = ")[2].rstrip(";\n"))["models"]


@pytest.fixture(scope="session")
def script(once, tmp_path_factory):
    """What the page reads of its scenes' models: means and intervals of every head, which take a
    while."""
    return once("heads-data.js", lambda: scenes(tmp_path_factory.mktemp("none")))


def scenes(folder):
    some = {name: files.precomputed_models()[name] for name in (MODEL, QWEN)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "precomputed_models", lambda: some)
        return explorer.script(folder)


@pytest.fixture(scope="session")
def explored(script):
    return {model["name"]: model for model in models_of(script)}


@pytest.fixture(scope="session")
def address(script, tmp_path_factory):
    return explorer_page(tmp_path_factory.mktemp("heads"), script)


def recorded_data(name, suite="words"):
    return files.select_labels(files.open_precomputed(MODEL, suite, name), "arbitrary")


def centred(ds, name, words):
    """Scores of words by a head, without the means of rows and columns."""
    of = ds.sel(selected_head=name, asked=words, demonstrated=words)
    nats = (of["similarity"] * of["similarity_step"]).transpose("asked", "demonstrated").to_pandas()
    return nats.sub(nats.mean(1), axis=0) - nats.mean(0) + nats.values.mean()


def test_numbers_of_heads_are_those_of_the_files(explored):
    for suite in ("words", "sentences"):
        columns = explored[MODEL]["suites"][suite]["columns"]
        expected = head_selection.rankings(recorded_data("heads", suite))
        expected["increase"] = recorded_data("increases", suite)["increase"].mean("prompt")
        for name in ("attention difference", "written logit difference", "attribution", "increase"):
            values = expected[name].values.ravel()
            near(columns[name]["mean"], values, atol=6e-5)
    columns, singles = (
        explored[MODEL]["suites"]["words"]["columns"],
        recorded_data("single_head_ablations"),
    )
    own = (
        recorded_data("head_effects")["attention_difference"].sel(query_source="own").mean("prompt")
    )
    for layer, head in ((18, 6), (24, 4)):
        i = layer * 9 + head
        of = intervals.mean(singles["logit_difference_lost"].isel(layer=layer, head=head))
        shown = [columns["lost"][key][i] for key in ("mean", "low", "high")]
        near(shown, [of.estimate, of.low, of.high], atol=6e-5)
        both = columns["by text"]["mean"][i] + columns["by predicted label"]["mean"][i]
        near(both, own[layer, head], atol=2e-4)


def test_attention_on_a_prompt_is_that_of_the_file(explored):
    page, heads = explored[MODEL]["suites"]["words"], recorded_data("heads")
    texts, values = list(heads["text"].values), heads["attention"].values
    width = len(page["prompts"][0]["rows"]) - 1
    attention = (np.array(list(map(ord, page["attention"]))) - explorer.FIRST) / explorer.LEVELS
    attention = attention.reshape(len(page["prompts"]), -1, width)
    assert len(page["prompts"]) == 4 * explorer.SHOWN
    for i, prompt in enumerate(page["prompts"]):
        words = " ".join(f"{text} : {label}" for text, label in prompt["rows"]).split()
        of = next(n for n, t in enumerate(texts) if t.split() == words)
        expected = values[of].reshape(-1, values.shape[-1])[:, :width]
        near(attention[i], expected, atol=0.51 / explorer.LEVELS)


def test_scores_of_words_are_those_of_the_file_and_take_little_room(explored):
    similarity, ds = explored[MODEL]["suites"]["words"]["similarity"], recorded_data("word_towers")
    characters, half = matrices.CHARACTERS, matrices.SCORE_STEPS
    assert len(json.dumps(similarity, ensure_ascii=False)) < 60_000
    assert len(similarity["heads"]) == explorer.WORD_HEADS
    cosine = read_csv(data_folder() / "words/similarity.csv")
    cosine = cosine.set_index(["first", "second"])["sentence_embedding"].to_dict()
    for name, head in similarity["heads"].items():
        at = iter(characters.index(c) / half - 1 for c in head["scores"])
        for two in similarity["pairs"]:
            words = [word for _, part in two for word in part]
            shown = [[head["largest"] * next(at) for _ in words] for _ in words]
            near(shown, centred(ds, name, words), atol=0.51 * head["largest"] / half)
        assert next(at, None) is None
    at = iter(characters.index(c) / half - 1 for c in similarity["cosines"])
    for two in similarity["pairs"]:
        for _, part in two:
            for pair in itertools.combinations(part, 2):
                near(next(at), cosine[pair], atol=0.51 / half + 0.001)
    assert next(at, None) is None


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
            data.attrs["model"] = name
            data.to_netcdf(path)
    names = [model["name"] for model in models_of(explorer.script(tmp_path))]
    assert names == [*PRECOMPUTED, "mine"]


@needs_browser
def test_a_click_pins_a_shift_click_compares_and_arrows_change_the_prompt(address, explored):
    suite = explored[MODEL]["suites"]["words"]

    def click(name, **how):
        circles = page.locator(".heads-plane circle")
        circles.filter(has_text=re.compile(f"^{name}$")).click(force=True, **how)

    with browser(address, reduced_motion="reduce") as page:
        first = page.text_content(".heads-looks")  # more on right labels than on others
        right, other = map(int, re.findall(r"(\d+)% on (?:right|other)", first))
        assert right > other
        page.locator(".heads-plane circle").filter(has_text=re.compile("^24-4$")).hover(force=True)
        assert page.locator(".heads-plane > text").text_content().startswith("24-4: ")
        click("24-4")
        assert page.get_by_role("heading", name="Head 24-4").is_visible()
        lowered = -suite["columns"]["effect"]["mean"][24 * 9 + 4]
        rows = page.locator(".heads-card tbody tr")
        row = rows.filter(has_text="total effect of its attention").text_content()
        near(float(re.search(r"−(\d+\.\d\d)", row)[1]), lowered, atol=0.0051)
        click("18-6", modifiers=["Shift"])
        assert page.get_by_role("heading", name="Heads 24-4 and 18-6").is_visible()
        page.locator(".heads-prompt").focus()
        for key, number in (("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowLeft", 24)):
            page.keyboard.press(key)
            assert f"prompt {number} of 24" in page.text_content(".heads-prompt")
        texts = [row[0] for row in suite["prompts"][23]["rows"]]
        assert page.locator(".heads-prompt li bdi").all_text_contents() == texts


@needs_browser
def test_two_words_show_their_score_and_the_nearest_words(address, explored):
    similarity = explored[MODEL]["suites"]["words"]["similarity"]
    (animals,) = (part for two in similarity["pairs"] for name, part in two if name == "animal")
    table = read_csv(data_folder() / "words/similarity.csv").query("`class` == 'animal'")
    table = table[table["first"] == "dog"]  # which is the first word of the list
    to_dog = table.set_index("second")["sentence_embedding"]
    to_dog = to_dog[to_dog.index.isin(animals)]
    words = [w for two in similarity["pairs"] if two[0][0] == "animal" for _, p in two for w in p]
    nats = centred(recorded_data("word_towers"), "18-6", words)
    nearest = nats.loc["dog", [word for word in animals if word != "dog"]]
    with browser(address) as page:
        query, demonstration = (
            page.get_by_label(name, exact=True) for name in ("query", "demonstration")
        )
        query.fill("Dog ")
        query.press("Tab")
        assert query.input_value() == "dog" and demonstration.input_value() in animals
        demonstration.fill("horse")
        demonstration.press("Tab")
        said = page.locator(".heads-two-words p").filter(has_text="S[").text_content()
        numbers = [float(x.replace("−", "-")) for x in re.findall(r"= (−?\d+\.\d+)", said)]
        both = ("dog", "horse"), ("horse", "dog")
        expected = [nats.loc[of] for of in both]
        near(numbers, expected, atol=0.2)
        assert "Sentence embedding: 0.5" in said
        cells = page.locator(".heads-two-words tbody td").all_text_contents()
        by_head = [text.split()[0] for text in cells[::2]]
        assert nearest[by_head].min() >= nearest.drop(by_head).max() - 0.2
        by_meaning = [text.split()[0] for text in cells[1::2]]
        assert to_dog[by_meaning].min() >= to_dog.drop(by_meaning).max() - 0.02
        page.get_by_role("button", name="exchange", exact=True).click()
        assert (query.input_value(), demonstration.input_value()) == ("horse", "dog")
        query.fill("no-word")
        query.press("Tab")
        assert query.input_value() == "horse"
        assert "“no-word” is not one of the words" in page.text_content(".heads-two-words")
        page.get_by_label("head", exact=True).select_option("0-0")
        others = page.locator(".heads-others button")
        assert others.all_text_contents() == list(similarity["heads"])
        others.first.click()
        assert page.locator(".heads-two-words tbody tr").count() == 5
        page.get_by_label("texts").select_option("sentences")
        assert not page.locator(".heads-two-words").is_visible()
        assert broken_rules(page) == []


@needs_browser
def test_scenes_are_guessed_first_and_their_words_are_true(address):
    """The third, first, ... answer is the right one: what each scene says after it was written for
    that."""
    right = [1, 2, 2, 2, 1]
    with browser(address) as page:
        scenes = page.locator(".playground-scenes button")
        assert scenes.count() == len(right)
        for i, option in enumerate(right, 1):
            scenes.nth(i - 1).click()
            assert page.locator(".heads-card table").count() == 0
            page.locator(".playground-question button").nth(option).click()
            assert text(page, "score") == f"{i} of {i} right"
            assert page.locator(".heads-card table").count() == 1


@needs_browser
def test_the_address_holds_the_state_and_refuses_another(address):
    with browser(address) as page:
        page.get_by_label("model").select_option(QWEN)
        page.get_by_label("axes").select_option("parts")
        page.get_by_label("beside").select_option("20-4")
        page.get_by_role("button", name="mirror").click()
        page.wait_for_url("**prompt=1**")
        link, before = page.url, page.text_content(".heads-card")
    with browser(link) as page:
        assert page.text_content(".heads-card") == before
        assert "prompt 2 of 24" in page.text_content(".heads-prompt")
        state = link.partition("#")[2]
        for wrong in ("head=99-9", "x=abc", "axes=<b>", "model=none", "more=1"):
            refuses(page, f"{state}&{wrong}")
            assert page.text_content(".heads-card") == before
            page.evaluate("(hash) => { location.hash = hash; }", state)
            page.wait_for_function("!document.querySelector('.playground-error').textContent")
