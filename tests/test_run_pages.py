"""Chapters of other models as pages: nothing collides, nothing is lost, Sphinx has no warning."""

import sys

import nbformat
import pytest
import tokenizers
import transformers
import yaml
from book_builder import ROOT, build, lay_out
from twotowers import cli
from twotowers.prompts import datasets

sys.path.insert(0, str(ROOT / "book/_ext"))
import run_pages

TEXT = """(start)=
# A title

See {eq}`score`, {ref}`the start <start>`, [here](#start), {doc}`02-second`, {doc}`03-third`, [it](03-third.ipynb#x),
[a host](https://example.org/a.html), [a label of another page](elsewhere), [the intro](intro), ![alt](one.png).

$$ x $$ (score)

```{figure} one.png
:name: figure-one
```
"""


NAMED = "(place)=\n## Named\n\n$$\nx\n$$ (score)\n\n{eq}`score`, [](#place)"
SAVES = """
found = locate.increases(lm, chapter.encoded(first))
chapter.save(found.heads_table().assign(dataset=first, norm=chapter.norm), "heads")
"""


def notebook(text: str) -> dict:
    return {"cells": [{"cell_type": "markdown", "source": text.splitlines(keepends=True), "metadata": {}}]}


def test_names_and_references_get_the_model_and_links_leave_the_run():
    found = run_pages.run_pages({"01-a": notebook(TEXT), "02-second": notebook("# Two")}, "m", {"03-third", "intro"})
    text = found["01-a"]["cells"][0]["source"]
    assert text.startswith("(start-m)=\n# A title")
    for expected in (
        "{eq}`score-m`", "{ref}`the start <start-m>`", "[here](#start-m)", "{doc}`02-second`", "{doc}`../../03-third`",
        "[it](../../03-third.ipynb#x)", "(https://example.org/a.html)", "(elsewhere)", "[the intro](../../intro)",
        "![alt](../../one.png)", "$$ x $$ (score-m)", ":name: figure-one-m",
    ):  # fmt: skip
        assert expected in text, expected
    assert found["02-second"]["cells"][0]["source"] == "# Two (`m`)"


@pytest.mark.parametrize("toc", [{"root": "r"}, {"root": "r", "chapters": [{"file": "a"}]}])
def test_the_table_of_contents_gains_a_page_for_each_run(toc):
    assert run_pages.with_runs(toc, {}) == toc
    found = run_pages.with_runs(toc, {"m": ["01-a"]})
    last = {"file": "book/runs/m/index", "sections": [{"file": "book/runs/m/01-a"}]}
    assert found["chapters"] == [*toc.get("chapters", []), last]
    parts = run_pages.with_runs({"root": "r", "parts": [{"chapters": []}]}, {"m": ["01-a"]})
    assert parts["parts"][1]["chapters"] == [last]


def random_model(folder, config) -> str:
    """A random model with a vocabulary of the book's words, saved to a folder."""
    words = ["<unk>", ":", "foo", "bar", *datasets.words_table()["word"]]
    words += [word for text in words for word in text.split()]
    ids = {word: i for i, word in enumerate(dict.fromkeys(words))}
    inside = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))
    inside.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inside, unk_token="<unk>")
    config.vocab_size = len(tokenizer)
    transformers.set_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_two_models_run_and_their_pages_build_without_a_warning(tmp_path, monkeypatch, capsys):
    home = lay_out(tmp_path / "book", trial=True)
    for name in ("words", "published.csv"):
        target = home / "data" / name
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(ROOT / "data" / name)
    # The head of a real chapter, with what collides: a named formula, a named place, references to both.
    chapter = nbformat.read(ROOT / "book/01-locate.ipynb", 4)
    del chapter.cells[3:]
    chapter.cells += [nbformat.v4.new_code_cell(SAVES), nbformat.v4.new_markdown_cell(NAMED)]
    nbformat.write(chapter, home / "book/01-locate.ipynb")
    (home / "book/02-second.ipynb").unlink()
    toc = yaml.safe_load((home / "_toc.yml").read_text())
    (home / "_toc.yml").write_text(yaml.safe_dump(toc | {"chapters": toc["chapters"][:1]}))
    sizes = dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=16, intermediate_size=24)
    random_model(tmp_path / "tiny-llama", transformers.LlamaConfig(num_key_value_heads=2, **sizes))
    random_model(tmp_path / "tiny-gpt2", transformers.GPT2Config(n_layer=2, n_head=4, n_embd=16, n_positions=64))
    monkeypatch.setenv("TWOTOWERS_HOME", str(home))
    monkeypatch.chdir(home)
    models = ["--model", str(tmp_path / "tiny-llama"), "--model", str(tmp_path / "tiny-gpt2")]
    assert cli.main(["run", *models, "--n-prompts", "5", "--top-k", "2"]) == 0, capsys.readouterr().err
    assert (home / "data/results/tiny-gpt2/01-locate-heads.csv").exists()
    done = build(home, model=str(tmp_path / "tiny-gpt2"), top_k=2, n_prompts=5)
    assert done.returncode == 0, done.stdout
    for name in ("tiny-llama", "tiny-gpt2"):
        page = (home / f"_build/html/book/runs/{name}/01-locate.html").read_text()
        assert f"{name}&#64;" in page and f'id="place-{name}"' in page and f'id="equation-score-{name}"' in page
        assert f"runs/{name}/01-locate.html" in (home / "_build/html/book/intro.html").read_text()
    assert 'id="place"' in (home / "_build/html/book/01-locate.html").read_text()
