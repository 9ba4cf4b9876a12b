"""Charts of large matrices: the picture is the matrix, and the pointer reads its scores."""

import base64
import json
import struct
import zlib

import numpy as np
import pandas as pd
import vl_convert
from browser import PAGE, browser, needs_browser
from tolerances import near
from twotowers import colours, matrices, theme

WORDS = ["dog", "cat", "one", "two", "three"]
CLASSES = ["animal", "animal", "number", "number", "number"]
SCORES = np.random.default_rng(0).normal(size=(5, 5)) + 3 * np.eye(5)


def pixels(address):
    """Colours with opacity of a PNG, (row, column, 4), read by the rules of its format."""
    png = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    parts, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        name, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.pack(">I", zlib.crc32(name + content)) == png[at + 8 + length :][:4]
        parts[name], at = content, at + 12 + length
    columns, rows, bits, kind = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert (bits, kind) == (4, 3)
    palette = np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3)
    palette = np.column_stack([palette, np.frombuffer(parts[b"tRNS"], np.uint8)])
    lines = zlib.decompress(parts[b"IDAT"])
    lines = np.frombuffer(lines, np.uint8).reshape(rows, -1)
    assert (lines[:, 0] == 0).all()
    halves = np.stack([lines[:, 1:] >> 4, lines[:, 1:] & 15], -1).reshape(rows, -1)
    return palette[halves[:, :columns]]


def table(**models):
    return pd.DataFrame([
        {"model": model, "title": title} | matrices.pack(sign * scores, WORDS, CLASSES)
        for model, scores in models.items() for title, sign in (("one", 1), ("other", -1))
    ])  # fmt: skip


def test_a_picture_has_the_sign_and_the_order_of_the_scores():
    rgba = pixels(matrices.pack(SCORES, WORDS, CLASSES)["picture"]).astype(int)
    violet = (rgba[..., :3] == list(bytes.fromhex(colours.VIOLET[1:]))).all(-1)
    signed = np.where(violet, 1, -1) * rgba[..., 3]
    inner = abs(SCORES) < np.quantile(abs(SCORES), 1 - matrices.CLIPPED)
    step = 255 / matrices.COLOUR_STEPS
    expected = 255 * SCORES / np.quantile(abs(SCORES), 1 - matrices.CLIPPED)
    near(signed[inner], expected[inner], atol=0.51 * step + 1)
    assert (signed[~inner] == 255 * np.sign(SCORES[~inner])).all() and (~inner).any()


def test_characters_of_scores_need_no_escape():
    """That they hold the scores is proven in test_explorer."""
    assert json.dumps(matrices.CHARACTERS) == f'"{matrices.CHARACTERS}"'
    assert not {*matrices.CHARACTERS} & {*"<'\"\\"} and len(matrices.CHARACTERS) % 2


def test_a_matrix_of_zeros_and_one_of_one_word_are_drawn():
    for size in (1, 3):
        packed = matrices.pack(np.zeros((size, size)), WORDS[:size], CLASSES[:size])
        assert (pixels(packed["picture"])[..., 3] == 0).all()
    svg = theme.svg(matrices.draw(table(a=np.zeros((5, 5)))).to_dict())
    assert "<image" in svg and ">animal<" in svg and "row: query" in svg


@needs_browser
def test_the_pointer_reads_words_and_score_of_the_chosen_model(tmp_path):
    spec = json.dumps(matrices.draw(table(a=SCORES, b=SCORES.T)).to_dict()).replace("<", "\\u003c")
    (tmp_path / "vega.js").write_text(
        f"(() => {{{vl_convert.javascript_bundle()}\nwindow.vegaEmbed = vegaEmbed;}})();", "utf8"
    )
    (tmp_path / "page.html").write_text(
        f"""<!doctype html><meta charset="utf-8"><body><div style="width: 680px">
        <div class="chart" data-name="c"></div><script type="application/json">{spec}</script></div>
        <script src="vega.js"></script><script src="{(PAGE / "charts.js").as_uri()}"></script>""",
        "utf8",
    )

    def line(row, column):
        box = page.locator("svg.marks image").first.bounding_box()
        at = [start + (i + 0.5) / 5 * box["width"]
              for start, i in ((box["x"], column), (box["y"], row))]  # fmt: skip
        page.mouse.move(*at)
        lines = page.locator("svg.marks text").filter(has_text="S[")
        lines.first.wait_for()
        return lines.all_text_contents()

    with browser((tmp_path / "page.html").as_uri()) as page:
        page.wait_for_selector("svg.marks image")
        assert page.locator("svg.marks image").count() == 2
        lines = line(0, 3)
        assert [text.split(" = ")[0] for text in lines] == ["S[dog, two]"] * 2
        numbers = [float(text.split(" = ")[1].split()[0].replace("−", "-")) for text in lines]
        near(numbers, [SCORES[0, 3], -SCORES[0, 3]], atol=0.15)
        page.locator("select").select_option("b")
        numbers = [text.split(" = ")[1].split()[0].replace("−", "-") for text in line(0, 3)]
        near(float(numbers[0]), SCORES[3, 0], atol=0.15)
