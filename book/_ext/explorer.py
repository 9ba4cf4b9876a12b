"""Data of the page "Heads you can open": every head of every model, on real prompts.

    write_data(source, target)    # heads-data.js next to the page's other scripts
    explored("smollm2-135m", "words", folder)

Numbers of a head are means over the prompts with arbitrary labels, as in the chapters. Attention is
shown for the prompts of SHOWN blocks, with one character for each label. A page that is opened from
a file cannot fetch anything, so all data are in one script.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from twotowers import catalogue, files, head_selection, identity, intervals, matrices
from twotowers.errors import TwoTowersError
from twotowers.heads import head_names
from twotowers.paths import data_folder
from twotowers.tables import read_csv, shown_name
from twotowers.towers import best_pair, project

SCRIPTS = (
    "heads-data.js",
    "playground-draw.js",
    "heads-plane.js",
    "heads-card.js",
    "heads-scenes.js",
    "heads-words.js",
    "heads.js",
)
SUITES = ("words", "sentences")
SHOWN = 6  # number of blocks, each of another class pair
LEVELS, FIRST = 250, 40  # a share of attention is the character FIRST + LEVELS * share
WORD_HEADS = 3  # maximum number of heads of a model with scores of words
FIVE = 5  # number of words that the page shows of a value and of a key
READINGS = (("value", "kept"), ("key", "taken out"))  # a mean key does not depend on the label
PATHS = {
    "at once": "direct",
    "by later queries": "later queries",
    "by MLPs": "MLPs",
    "all paths": "all",
}
"""Readers that receive a head's output (`effect_by_route`), by their name on the page"""

Read = Callable[[str], xr.Dataset | None]


def reader(model: str, suite: str, folder: Path) -> Read:
    """Return a function that opens a model's measurements.

    It prefers precomputed measurements to the measurements in `folder`. It returns the prompts with
    arbitrary labels, or None if there is no measurement.

    Args:
        model: Name of the model.
        suite: Suite of the texts.
        folder: Folder of measurements.
    """

    def read(name: str) -> xr.Dataset | None:
        path = folder / model / suite / f"{name}.nc"
        try:
            data = files.open_precomputed(model, suite, name)
            if data is None and path.is_file():
                data = _current(files.load(path), model, suite, name)
        except TwoTowersError:  # a file of older code, or a copy
            return None
        if data is None or catalogue.NOT_TESTABLE in data.attrs:
            return None
        return files.select_labels(data, "arbitrary")

    return read


def _current(data: xr.Dataset, model: str, suite: str, name: str) -> xr.Dataset | None:
    """Return a measurement if it is of this model, and of current texts and code, or None."""
    has_texts = identity.agrees(data, texts=identity.text_digest(suite))
    is_current = has_texts and identity.has_current_code(data, name)
    return data if is_current and data.attrs["model"] == model else None


def _effect_columns(effects: xr.Dataset) -> Iterator[tuple[str, xr.DataArray, bool]]:
    """Yield the columns of the measurement "head_effects".

    Args:
        effects: Measurement "head_effects".

    Yields:
        Name, values (prompt, layer, head), and whether the page shows their interval.
    """
    difference = effects["attention_difference"]
    own, other = (difference.sel(query_source=of, drop=True) for of in ("own", "labels exchanged"))
    yield "by text", (own + other) / 2, False
    yield "by predicted label", (own - other) / 2, False
    direct = effects["direct_effect"].sel(contrast="attention swapped", drop=True)
    yield "direct effect", direct, False
    for name, contrast in {
        "effect": "attention swapped",
        "label sent": "labels exchanged",
        "place sent": "texts exchanged",
    }.items():
        # Sentences are precomputed without prompts with exchanged labels.
        if contrast in effects["contrast"].values:
            yield name, effects["effect"].sel(contrast=contrast, drop=True), True


def columns(read: Read) -> dict[str, dict[str, list]]:
    """Return the mean of each quantity for every head, layer by layer.

    Args:
        read: Function of `reader`.

    Returns:
        "mean", and if the page shows them "low" and "high" (95% bounds) and "prompts", by quantity.
    """
    heads, increases, effects, singles = (
        read(name) for name in ("heads", "increases", "head_effects", "single_head_ablations")
    )
    assert heads is not None
    every = [("attention difference", head_selection.attention_difference(heads), False)]
    for name in ("written_logit_difference", "attribution"):
        every.append((name.replace("_", " "), heads[name], False))
    every += [("increase", increases["increase"], False)] if increases is not None else []
    every += _effect_columns(effects) if effects is not None else []
    every += [("lost", singles["logit_difference_lost"], True)] if singles is not None else []
    out = {}
    for name, values, bounded in every:
        flat = values.transpose("prompt", "layer", "head").stack(
            at=("layer", "head"), create_index=False
        )
        out[name] = {"mean": _short(flat.mean("prompt").values)}
        if bounded:
            others = {*flat.coords} - {*intervals.CLUSTERS}  # a slice copies each of them
            of_heads = flat.drop_vars(others).transpose("at", "prompt")
            means = [intervals.mean(of) for of in of_heads]
            out[name] |= {
                bound: _short(np.array([getattr(of, bound) for of in means]))
                for bound in ("low", "high")
            }
            out[name]["prompts"] = flat.sizes["prompt"]
    return out


def demonstrations(text: str, labels: str) -> list[list[str]]:
    """Return the rows of a prompt, the query last.

    For the prompt "love : foo two : bar one :" with labels "foo/bar", these are [["love", "foo"],
    ["two", "bar"], ["one", ""]].

    Args:
        text: Text of the prompt.
        labels: Labels of the prompt, such as "foo/bar".
    """
    parts = re.split(rf" : ({'|'.join(map(re.escape, labels.split('/')))})\s", text)
    return [
        *map(list, zip(parts[:-1:2], parts[1::2], strict=True)),
        [parts[-1].removesuffix(" :"), ""],
    ]


def prompts(heads: xr.Dataset) -> tuple[list[dict], str]:
    """Return the prompts of SHOWN blocks, and their attention on every label.

    Class pairs alternate. A block is an order of the demonstrations, its mirror image, and both
    with exchanged labels.

    Args:
        heads: Measurement "heads".

    Returns:
        Prompts, and a text with one character for each prompt, head and label position.
    """
    blocks = pd.DataFrame(
        {name: heads[name].values for name in ("block", "class_pair")}
    ).drop_duplicates()
    in_turn = blocks.assign(turn=blocks.groupby("class_pair").cumcount()).sort_values(
        "turn", kind="stable"
    )
    few = heads.isel(prompt=heads["block"].isin(in_turn["block"][:SHOWN]).values)
    out = [
        {
            "pair": p["class_pair"].item(),
            "rows": demonstrations(p["text"].item(), p["label_pair"].item()),
            "right": p["true_label"].item(),
        }
        for p in (few.isel(prompt=i) for i in range(few.sizes["prompt"]))
    ]
    share = few["attention"].transpose("prompt", "layer", "head", "demonstration").values
    return out, "".join(map(chr, (FIRST + np.rint(LEVELS * share)).astype(int).ravel()))


def path_effects(effects: xr.Dataset) -> dict[str, dict[str, float]]:
    """Return effects of heads' outputs from the prompt with exchanged labels, by head and path.

    Args:
        effects: Measurement "head_effects", in which paths were opened one at a time.

    Returns:
        Effects in nats.
    """
    by_route = effects["effect_by_route"].mean("prompt")
    senders = head_names(
        zip(
            effects["sender_layer"].values.tolist(),
            effects["sender_head"].values.tolist(),
            strict=True,
        )
    )
    by_path = {path: by_route.sel(route=route).values for path, route in PATHS.items()}
    return {
        name: {path: _short(values)[i] for path, values in by_path.items()}
        for i, name in enumerate(senders)
    }


def words(tokens: xr.Dataset) -> dict[str, list]:
    """Return the top words of value and key at a right and at another label, by head.

    They are from the first prompt of the head.

    Args:
        tokens: Measurement "top_tokens".

    Returns:
        For each of the two labels: its row in the prompt, top words of the value, top words of the
            key.
    """
    p, out = tokens.isel(prompt=0), {}
    rows = demonstrations(p["text"].item(), p["label_pair"].item())
    for single in tokens["selected_head"].values:
        value, key = (
            p["token"].sel(selected_head=single, vector=vector, mean=mean).values
            for vector, mean in READINGS
        )
        out[str(single)] = [
            [" : ".join(rows[i]), *(list(map(str, of[i, :FIVE])) for of in (value, key))]
            for i in (
                int(p["is_true_label"].values.argmax()),
                int((~p["is_true_label"].values).argmax()),
            )
        ]
    return out


def ranks(reads: xr.Dataset) -> dict[str, list]:
    """Return two mean reciprocal ranks by head (chapter 3).

    In the words that the head would write, they are the ranks of the label that the head attends
    to, and of the other label.

    Args:
        reads: Measurement "label_reads".
    """
    both = [
        (1 / reads[name]).mean(("prompt", "demonstration")).values
        for name in ("own_rank", "other_rank")
    ]
    return dict(
        zip(
            map(str, reads["selected_head"].values),
            map(list, zip(*map(_short, both), strict=True)),
            strict=True,
        )
    )


def towers(vectors: xr.Dataset) -> dict[str, dict]:
    """Return queries and keys of the class pair that a head separates best, on a plane, by head.

    As in Figure 4.5 (`twotowers.towers`), moved and scaled to the range from 0 to 100.

    Args:
        vectors: Measurement "query_key_vectors".

    Returns:
        The pair, and points [x, y, class, is a query].
    """
    out = {}
    for i, name in enumerate(vectors["selected_head"].values):
        single = vectors.isel(selected_head=i)
        pair = best_pair(single)
        table = project(single, pair)
        xy = table[["x", "y"]].values
        shown = np.rint(100 * (xy - xy.min(0)) / np.ptp(xy, 0)).astype(int).tolist()
        is_second = (table["class"] == pair.split("/")[1]).astype(int)
        is_query = (table["tower"] == "query").astype(int)
        kinds = zip(is_second.tolist(), is_query.tolist(), strict=True)
        points = [[*at, *kind] for at, kind in zip(shown, kinds, strict=True)]
        out[str(name)] = {"pair": pair, "points": points}
    return out


def similarities(word_towers: xr.Dataset) -> dict[str, object]:
    """Return scores of the words of each class pair in a few heads, and yardsticks of a class.

    In each class pair, scores are centred by row and by column.

    Args:
        word_towers: Measurement "word_towers".

    Returns:
        "pairs", two classes with their words for each class pair; "heads", their scores pair by
            pair and row by row as characters, with the largest score (nats) by head; and "cosines",
            those of the sentence embedding of a class, row by row above the diagonal, as
            characters. Words that users add have none.
    """
    classes = word_towers["asked_class"].to_series()
    pairs = word_towers["class_pair"].to_series()
    words = [
        [[name, classes.index[classes == name].tolist()] for name in part.index]
        for _, part in pairs.groupby(pairs, sort=False)
    ]
    selected = word_towers["selected_head"][(word_towers["role"] == "by attention").values]
    heads = {}
    for name in map(str, selected.values[:WORD_HEADS]):
        nats = np.concatenate([*_centred_scores(word_towers.sel(selected_head=name), words)])
        largest = float(abs(nats).max()) or 1.0
        heads[name] = {"largest": round(largest, 4), "scores": matrices.encode(nats / largest)}
    every_pair = [
        (name, *pair)
        for two in words
        for name, part in two
        for pair in itertools.combinations(part, 2)
    ]
    table = read_csv(data_folder() / "words/similarity.csv")
    cosine = table.set_index(["class", "first", "second"])["sentence_embedding"]
    cosines = cosine.reindex(pd.MultiIndex.from_tuples(every_pair)).values
    return {"pairs": words, "heads": heads, "cosines": matrices.encode(cosines)}


def _centred_scores(towers: xr.Dataset, words: list) -> Iterator[np.ndarray]:
    """Yield the scores (nats) of one head in each class pair, centred, row by row."""
    scores = (towers["similarity"] * towers["similarity_step"]).transpose("asked", "demonstrated")
    for two in words:
        of_pair = [word for _, part in two for word in part]
        x = scores.sel(asked=of_pair, demonstrated=of_pair).values
        yield (x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()).ravel()


def explored(model: str, suite: str, folder: Path) -> dict | None:
    """Return all data of the page for a model and a suite, None if its heads were not measured.

    Args:
        model: Name of the model.
        suite: Suite of the texts.
        folder: Folder of measurements.
    """
    read = reader(model, suite, folder)
    heads = read("heads")
    if heads is None:
        return None
    examples, attention = prompts(heads)
    about = {
        "layers": heads.sizes["layer"],
        "heads": heads.sizes["head"],
        "parameters": int(heads.attrs["parameters"]),
    }
    out = {
        "model": about,
        "prompts": examples,
        "attention": attention,
        "columns": columns(read),
        "measured": heads.sizes["prompt"],
    }
    for name, measurement, of in (
        ("path_effects", "head_effects", path_effects),
        ("words", "top_tokens", words),
        ("ranks", "label_reads", ranks),
        ("towers", "query_key_vectors", towers),
        ("similarity", "word_towers", similarities),
    ):
        out[name] = of(data) if (data := read(measurement)) is not None else {}
    effects = read("head_effects")
    out["logit_difference"] = (
        None if effects is None else intervals.mean(effects["logit_difference"]).estimate
    )
    return out


def script(folder: Path) -> str:
    """Return every model with measured heads as a script.

    Precomputed models come first, and small models come before large ones.

    Args:
        folder: Folder of measurements.
    """
    models = []
    for model in dict.fromkeys(
        [
            *files.precomputed_models(),
            *(path.name for path in sorted(folder.glob("*")) if path.is_dir()),
        ]
    ):
        suites = {
            suite: of for suite in SUITES if (of := explored(model, suite, folder)) is not None
        }
        if suites:
            about = next(iter(suites.values()))["model"]
            models.append({"name": model, "shown": shown_name(model), **about, "suites": suites})
    models.sort(
        key=lambda model: (model["name"] not in files.precomputed_models(), model["parameters"])
    )
    data = {"models": models, "levels": LEVELS, "first": FIRST}
    data["characters"] = matrices.CHARACTERS
    data["bounds"] = {
        "attention difference": head_selection.MIN_ATTENTION_DIFFERENCE,
        "written logit difference": head_selection.MIN_WRITTEN,
        "top": head_selection.HEADS_PER_SET,
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"window.twotowersHeads = {text};\n"


def write_data(source: Path, target: Path) -> None:
    """Write `heads-data.js` into the folder of the built book's scripts.

    Args:
        source: Folder of the sources.
        target: Folder of the scripts.
    """
    (target / SCRIPTS[0]).write_text(script(source.parent / "measurements"), "utf8")


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Add the scripts to the explorer's page only."""
    if 'id="heads"' in (context.get("body") or ""):
        for name in ("playground-page.css", "heads.css"):
            app.add_css_file(f"book/{name}")
        for name in SCRIPTS:
            app.add_js_file(f"book/{name}", loading_method="defer")


def _short(values: np.ndarray) -> list[float | None]:
    """Return values with four decimals, and None for NaN, which JSON does not have."""
    return [None if np.isnan(x) else round(x, 4) + 0.0 for x in values.tolist()]
