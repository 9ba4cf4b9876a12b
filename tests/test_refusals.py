"""Bad input, door by door: what is said of it, at once and in one line, before a kernel starts and without torch."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book_builder import ROOT, model_folder
from twotowers import cli
from twotowers.chapters import plan, runs
from twotowers.errors import TwoTowersError
from twotowers.model import token_text
from twotowers.paper import published
from twotowers.prompts import datasets, download

RUN = ["run", "--model", "mini-gpt2", "--chapters"]
ONE, ALL = [*RUN, "01-locate"], [*RUN, "03-mrr"]

# name -> (value, what is said) of a parameter, through `twotowers run`
VALUES = {
    "n-prompts": [("0", "at least 1"), ("-3", "at least 1"), ("many", "whole number"), ("2.5", "whole number"),
                  ("1e3", "whole number"), ("", "whole number"), ("0x10", "whole number"), ("20 30", "whole number"),
                  ("١", "at least 2 prompts"), ("1", "at least 2 prompts a set"), ("nan", "whole number"),
                  ("999999999", "cannot be drawn"), ("[20]", "whole number"), ("None", "whole number")],
    "n-locate": [("0", "at least 1"), ("x", "whole number"), ("999999999", "cannot be drawn"), ("-1", "at least 1")],
    "labels": [("foo", "two different"), ("foo,foo", "give different ones"), ("foo,bar,baz", "two different"),
               ("", "two different"), (",", "give different ones"), ("foo,", "plain word"), ("foo,france", "a word of the class"),
               ("foo,Cat", "a word of the class"), ("<|endoftext|>,bar", "a special token"),
               ("foo<|endoftext|>,bar", "a special token"), ("zork,bar", "holds with its space"),
               ("tiger,tigers", "a word of the class"), ("foobar,foobaz", "labels that differ"), ("日本,bar", "label"),
               ("☃,bar", "label"), ("foo, foo", "different"), ("[foo]", "two different"),
               ("one,two", "is a word of the class number")],
    "k": [("0", "at least 1"), ("-1", "at least 1"), ("few", "or auto"), ("2.0", "or auto"), ("1000", "take a smaller k"),
          ("", "or auto")],
    "heads": [("22", "write layer-head"), ("3-7;2-5", "write layer-head"), ("a-b", "write layer-head"),
              ("-1-2", "write layer-head"), ("1-2-3", "write layer-head"), ("1.5-2", "write layer-head"),
              ("99-0", "layers go to"), ("0-99", "heads to"), ("3-7,99-99", "is not in mini-gpt2")],
    "datasets": [("animal/planet", "unknown dataset"), ("animal/animal", "unknown dataset"), ("", "one or more"),
                 ("animal", "unknown dataset"), ("animal/country,animal/country", "different sets"),
                 ("animal/country,", "unknown"), ("animal\\country", "unknown"), ("../words", "unknown dataset"),
                 ("trec:location/planet", "unknown pair"), ("trec:location/location", "unknown pair"),
                 ("trec:", "unknown pair"), ("sst3", "unknown dataset"), ("Animal/country", "unknown dataset")],
    "seed": [("-1", "at least 0"), ("x", "whole number"), ("1.5", "whole number")],
    "separator": [("comma", "'space'"), ("\n", "'space'"), ("", "'space'")],
    "long": [("cut", "'drop'"), ("", "'drop'")],
    "norm": [("frosen", "'frozen'"), ("none", "'frozen'")],
    "ranking": [("best", "'label'")],
    "recorded": [("maybe", "'use'")],
    "top-k": [("0", "at least 1"), ("x", "whole number"), ("-5", "at least 1")],
    "dtype": [("int8", "'float32'"), ("float8", "'float32'"), ("", "'float32'"), ("FLOAT32", "'float32'")],
    "device-map": [("nowhere", "unknown device_map"), ("cuda:0", "unknown device_map")],
}  # fmt: skip

DOORS = [
    ([*RUN, "03-mr"], "did you mean '03-mrr'"), ([*RUN, ""], "unknown chapter ''"), ([*RUN, "01-locate,"], "unknown chapter"),
    ([*RUN, "../01-locate"], "unknown chapter"), ([*RUN, "08-llama", "--n-prompts", "7"], "needs at least 8 prompts"),
    ([*RUN, "04-attention-weights", "--n-prompts", "2"], "needs at least 3 prompts"),
    ([*RUN, "06-interventions", "--n-prompts", "3"], "needs at least 4 prompts"),
    ([*RUN, "01-locate", "--a-c", "0.1"], "no chosen chapter has the parameter 'a_c'"),
    ([*RUN, "07-mitigation", "--a-c", "inf"], "finite"), ([*RUN, "07-mitigation", "--a-c", "0,03"], "number"),
    ([*RUN, "07-mitigation", "--a-c", "nan"], "finite"), ([*RUN, "02-project", "--n-words", "0"], "at least 1"),
    ([*RUN, "09-sentence-case", "--chat-model", "no/such/folder"], "there is no folder"),
    ([*RUN, "09-sentence-case", "--max-new-tokens", "0"], "at least 1"),
    ([*ONE, "--model", ""], "names nothing"), ([*ONE, "--model", "no/such/folder"], "there is no folder"),
    ([*ONE, "--model", "a\nb"], "there is no folder 'a\\nb'"), ([*ONE, "--model", "\x1b[31m"], "there is no folder '\\x1b"),
    ([*ONE, "--model", "lost.gguf"], "there is no file 'lost.gguf'"), ([*ONE, "--model", "x" * 5000], "there is no"),
    ([*ONE, "--model", "empty"], "holds no config.json"), ([*ONE, "--model", "text.gguf"], "text.gguf"),
    ([*ONE, "--model", "no_weights"], "holds no weights"), ([*ONE, "--model", "no_tokenizer"], "holds no tokenizer"),
    ([*ONE, "--model", "cut"], "cut off or no"), ([*ONE, "--model", "pickled"], "pickled weights"),
    ([*ONE, "--model", "no_json"], "no valid JSON"), ([*ONE, "--model", "other_kind"], "not supported"),
    ([*ONE, "--model", "quantised"], "is quantised"), ([*ONE, "--model", "pointer"], "git lfs pull"),
    ([*ONE, "--model", "elsewhere/mini-gpt2"], "would share the folder"),
    ([*ONE, "--jobs", "0"], "at least 1"), ([*ONE, "--jobs", "x"], "whole number"), ([*ONE, "--threads", "-1"], "at least 1"),
    ([*ONE, "--threads", ""], "whole number"), ([*ONE, "--profile", "no-such"], "folder of a profile"),
    ([*ONE, "--profile", ""], "folder of a profile"), ([*ONE, "--sweep", "s.yml"], "leave out the other options"),
    (["run"], "name a model"), (["run", "--sweep", "none.yml"], "cannot read 'none.yml'"),
    (["run", "--sweep", "empty"], "cannot read 'empty'"), (["run", "--sweep", "text.gguf"], "is no mapping"),
    (["book", "--set", "n_promts=20"], "did you mean 'n_prompts'"), (["book", "--set", "n_prompts"], "is no name=value"),
    (["book", "--set", "=20"], "is no name=value"), (["book", "--set", "labels='a"], "open quote"),
    (["book", "--set", "n_prompts=5"], "chapter 08-llama needs at least 8"), (["book", "--set", "out=x"], "its own folder"),
    (["book", "--set", "model=x"], "name it with --model"), (["book", "--set", "heads=3:7"], "write layer-head"),
    (["book", "--set", "labels=foo,foo"], "different"), (["book", "--set", "k=1000"], "take a smaller k"),
    (["book", "--set", "dtype=int4"], "'float32'"), (["book", "--model", "a`b"], "there is no folder"),
    (["book", "--model", "$(touch x)"], "there is no folder"), (["book", "--jobs", "1.5"], "whole number"),
    (["book", "--model", "mini-gpt2", "--set", "heads=99-9"], "layers go to"),
    (["book", "--model", "mini-gpt2", "--set", "labels=zork,bar"], "holds with its space"),
    (["record", "nothing"], "write it, such as"), (["record", ""], "write it, such as"),
    (["record", "mini-gpt2", "--jobs", "none"], "whole number"),
    (["verify", "--model", "nonsense"], "choose gpt2-large or llama-7b"), (["models", "huge"], "choose one of"),
]  # fmt: skip
ROWS = [([*ALL, f"--{name}={value}"], says) for name, many in VALUES.items() for value, says in many] + DOORS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Broken models in a folder of their own."""
    home = tmp_path_factory.mktemp("broken")

    def model(name, lost=(), **files):
        made = model_folder(home / name)
        for file in lost:
            (made / file).unlink()
        for file, content in files.items():
            target = made / {"weights": "model.safetensors", "config": "config.json", "bin": "pytorch_model.bin"}[file]
            target.unlink(missing_ok=True)
            target.write_bytes(content)

    config = (ROOT / "data/models/mini-gpt2/config.json").read_text()
    weights = (ROOT / "data/models/mini-gpt2/model.safetensors").read_bytes()
    (home / "empty").mkdir()
    (home / "text.gguf").write_text("a text")
    model("no_weights", ["model.safetensors"])
    model("no_tokenizer", ["tokenizer.json"])
    model("pickled", ["model.safetensors"], bin=b"x")
    model("cut", weights=weights[: len(weights) // 2])
    model("pointer", weights=b"version https://git-lfs.github.com/spec/v1\n")
    model("no_json", config=b"{")
    model("other_kind", config=b'{"model_type": "mamba"}')
    model("quantised", config=config.replace("{", '{"quantization_config": {"quant_method": "gptq"},', 1).encode())
    model("elsewhere/mini-gpt2")
    return home


def test_there_are_many():
    assert len({tuple(arguments) for arguments, _ in ROWS}) >= 140


@pytest.mark.parametrize(
    "arguments, says", ROWS, ids=[" ".join(a[-2:])[:50].encode("unicode_escape").decode() for a, _ in ROWS]
)
def test_bad_input_is_refused_at_once_in_one_line_with_the_remedy(folder, capsys, monkeypatch, arguments, says):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(runs.subprocess, "Popen", lambda *a, **k: pytest.fail("something was started"))
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert said.err.startswith("twotowers: ") and says in said.err and said.err.count("\n") == 1
    assert not said.out and said.err[:-1].isprintable() and not Path("runs").exists()


def test_refusing_loads_no_torch(folder):
    rows = [row for row, _ in ROWS[::5] if row[0] != "verify" and not any(arg.startswith("--device") for arg in row)]
    code = f"""
import sys
from twotowers import cli
for arguments in {rows!r}:
    assert cli.main(arguments) == 1, arguments
    assert not {{"torch", "transformers", "papermill"}} & set(sys.modules), arguments
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-600:]


# --- the book's own data files ---

FILES = {
    "words/words.csv": (datasets._read_words, lambda path: datasets._read_words(path)),
    "sentences/files.csv": (download.pins, lambda path: download.pins()),
    "words/stop_words.txt": (token_text.stop_words, lambda path: token_text.stop_words()),
    "published.csv": (None, lambda path: published.published()),
}
DAMAGE = {
    "empty": lambda raw: b"", "spaces": lambda raw: b" \n\n", "binary": lambda raw: bytes(range(256)) * 4,
    "latin-1": lambda raw: raw + "é,é\n".encode("latin-1"), "nul": lambda raw: raw + b"a\0b\n",
    "open quote": lambda raw: raw + b'"open,number,0,0\n', "header alone": lambda raw: raw.split(b"\n")[0] + b"\n",
    "cut in a row": lambda raw: raw[: raw.rindex(b",")], "no end of line": lambda raw: raw[:-1],
    "extra column": lambda raw: raw.replace(b"\n", b",1\n"), "renamed column": lambda raw: b"x" + raw,
    "a row too long": lambda raw: raw + b"a,b,c,d,e,f,g,h,i\n", "a row too short": lambda raw: raw + b"a,b\n",
    "0,94": lambda raw: raw.replace(b"0.94", b'"0,94"').replace(b",0,0\n", b',"0,94",0\n', 1).replace(b",739272", b',"0,94"'),
    "quote in the middle": lambda raw: raw.replace(b"\n", b'\n"', 3).replace(b'\n"', b"\n", 1),
    "semicolons": lambda raw: raw.replace(b",", b";"),
}  # fmt: skip
TEXT = ("empty", "spaces", "binary", "latin-1", "nul", "open quote")  # what can be said of a plain list of words


@pytest.mark.parametrize("name, damage", [(n, d) for n in FILES for d in DAMAGE if not n.endswith("txt") or d in TEXT])
def test_a_damaged_data_file_is_named_with_its_remedy(tmp_path, monkeypatch, name, damage):
    cached, read = FILES[name]
    path = tmp_path / "data" / name
    for other in ("published.csv", name):
        (tmp_path / "data" / other).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "data" / other, tmp_path / "data" / other)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    monkeypatch.setenv("TWOTOWERS_HOME", str(tmp_path))
    if cached:
        cached.cache_clear()
    try:
        with pytest.raises(TwoTowersError, match=r"damaged \(.*\): restore it from the repository") as error:
            read(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    finally:
        if cached:
            cached.cache_clear()


@pytest.mark.parametrize("file", ["../../evil", "/etc/evil", "a/../../evil", "C:/evil", "a\\b", "~/evil", "a//b", ""])
def test_a_pin_reaches_no_file_outside_the_cache(tmp_path, monkeypatch, file):
    (tmp_path / "data/sentences").mkdir(parents=True)
    shutil.copy(ROOT / "data/published.csv", tmp_path / "data")
    text = (ROOT / "data/sentences/files.csv").read_text()
    (tmp_path / "data/sentences/files.csv").write_text(text.replace("sst2-sentences/train.tsv", file, 1))
    monkeypatch.setenv("TWOTOWERS_HOME", str(tmp_path))
    download.pins.cache_clear()
    try:
        with pytest.raises(TwoTowersError, match="is no file in a folder"):
            download.pins()
    finally:
        download.pins.cache_clear()


def test_the_plan_of_good_input_is_made(folder, monkeypatch):
    monkeypatch.chdir(folder)
    given = {"n_prompts": "20", "labels": "a,the", "heads": "3-7", "k": "3"}
    assert plan.for_run(["mini-gpt2"], ["03-mrr"], given, "runs").jobs
