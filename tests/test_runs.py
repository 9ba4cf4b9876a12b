"""`twotowers run`: what is refused before a model loads, what stays after a failure or Ctrl-C, what is skipped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
from conftest import ROOT
from twotowers import cli
from twotowers.chapters import runs
from twotowers.errors import TwoTowersError
from twotowers.model import chat, loading
from twotowers.paper import verify
from twotowers.prompts import download, sentences

TABLE = """
import time
from pathlib import Path
import pandas as pd
def save(name, value):
    pd.DataFrame({"model_fingerprint": ["m@1"], "value": [value]}).to_csv(Path(out) / f"{name}.csv", index=False)
"""
CHAPTERS = {
    "01-locate": ["model = 'mini'\nn_prompts = 5\nout = 'x'", TABLE, "save('01-locate-heads', n_prompts)"],
    "02-next": [
        "model = 'mini'\nn_prompts = 5\nlabels = ['foo', 'bar']\nout = 'x'", TABLE,
        "before = pd.read_csv(Path(out) / '01-locate-heads.csv').value[0]\nsave('02-next-sum', before + 1)",
        "if n_prompts == 13:\n    raise ValueError('thirteen\\nand more')",
        "if n_prompts == 60:\n    (Path(out).parent / 'here').touch(); time.sleep(60)",
    ],
}  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A book of two chapters that load no model, and a folder that looks like one."""
    (tmp_path / "data").mkdir()
    shutil.copytree(ROOT / "data/words", tmp_path / "data/words")
    shutil.copy(ROOT / "data/published.csv", tmp_path / "data")
    for name, cells in CHAPTERS.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        notebook.cells[0].metadata["tags"] = ["parameters"]
        (tmp_path / "book").mkdir(exist_ok=True)
        nbformat.write(notebook, tmp_path / f"book/{name}.ipynb")
    (tmp_path / "m").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "m" / name).write_text("{}")
    monkeypatch.setenv("TWOTOWERS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_chapters_run_pass_tables_on_and_are_skipped_until_something_changes(home, capsys):
    assert cli.main(["run", "--model", "m", "--n-prompts", "7"]) == 0
    tables = ["01-locate-heads.csv", "02-next-sum.csv"]
    assert files(home / "data/results") == [f"m/{name}" for name in tables]
    assert (home / "runs/m/tables/02-next-sum.csv").read_text().endswith("m@1,8\n")
    notebook = (home / "runs/m/02-next.ipynb").read_text()
    assert 'out = \\"runs/m/tables\\"' in notebook
    assert "labels = " not in json.loads(notebook)["cells"][1]["source"]
    assert files(home / "runs/m") == [
        ".inputs/01-locate.json", ".inputs/02-next.json", "01-locate.ipynb", "02-next.ipynb",
        *(f"tables/{name}" for name in tables),
    ]  # fmt: skip
    capsys.readouterr()
    assert cli.main(["run", "--model", "m", "--n-prompts", "7"]) == 0
    assert capsys.readouterr().out.count("nothing changed") == 2
    source = home / "book/02-next.ipynb"
    source.write_text(source.read_text().replace("before + 1", "before + 2"))
    assert cli.main(["run", "--model", "m", "--n-prompts", "7"]) == 0
    assert capsys.readouterr().out.count("nothing changed") == 1
    assert (home / "data/results/m/02-next-sum.csv").read_text().endswith("m@1,9\n")
    (home / "m/model.safetensors").write_text("other weights")
    assert cli.main(["run", "--model", "m", "--n-prompts", "7", "--chapters", "01-locate"]) == 0
    assert "nothing changed" not in capsys.readouterr().out
    assert cli.main(["run", "--model", "m", "--n-prompts", "7", "--chapters", "01-locate", "--force"]) == 0
    assert "nothing changed" not in capsys.readouterr().out


def test_a_failing_cell_is_one_line_and_the_last_good_chapter_stays(home, capsys):
    assert cli.main(["run", "--model", "m"]) == 0
    before = {name: (home / "runs/m" / name).read_bytes() for name in ("02-next.ipynb", "tables/02-next-sum.csv")}
    capsys.readouterr()
    assert cli.main(["run", "--model", "m", "--n-prompts", "13"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("twotowers: 02-next on m failed, cell 5 says ValueError: thirteen (as far as it came: ")
    assert before == {name: (home / "runs/m" / name).read_bytes() for name in before}
    assert not [name for name in files(home / "runs/m") if name.startswith(".0")]
    assert (home / "runs/m/failed/02-next.ipynb").exists()
    assert cli.main(["run", "--model", "m"]) == 0
    assert not (home / "runs/m/failed/02-next.ipynb").exists()


@pytest.mark.parametrize("how, status", [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interruption_leaves_nothing_half_written_and_no_kernel(home, how, status):
    command = [sys.executable, "-m", "twotowers.cli", "run", "--model", "m", "--n-prompts", "60"]
    with open(home / "said", "w") as said:
        running = subprocess.Popen(  # a shell's background jobs ignore SIGINT, and so would what they start
            command, cwd=home, stdout=said, stderr=said, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    until = time.monotonic() + 120
    while not list(home.glob("runs/m/.02-next.*/here")):
        assert running.poll() is None and time.monotonic() < until, (home / "said").read_text()
        time.sleep(0.1)
    running.send_signal(how)
    assert running.wait(300) == status
    assert "interrupted" in (home / "said").read_text().splitlines()[-1]
    assert [p for p in files(home / "runs/m") if "02-next" in p] == []
    assert not list(home.glob("runs/m/.02-next*"))
    with pytest.raises(ProcessLookupError):  # nobody of its session is left
        for _ in range(50):
            os.killpg(running.pid, 0)
            time.sleep(0.1)


BAD = [
    (["--chapters", "03-mr"], "unknown chapter '03-mr': known are 01-locate, 02-next"),
    (["--chapters", "02-nexd"], "did you mean '02-next'"),
    (["--n-prompts", "0"], "n_prompts=0: give a whole number of at least 1"),
    (["--n-prompts", "many"], "n_prompts='many': give a whole number"),
    (["--labels", "foo"], "give two different label words"),
    (["--norm", "none"], "norm"),
    (["--dtype", "int8"], "unknown dtype 'int8'"),
    (["--device", "cuda:99"], "device 'cuda:99' is not here"),
    (["--model", "no/such/folder"], "there is no folder"),
    (["--k", "two"], "k='two': give a whole number"),
    (["--k", "90", "--datasets", "animal/country"], "k=90 needs 90 words of the class animal"),
    (["--long", "cut"], "long='cut': choose drop or truncate"),
    (["--device-map", "everywhere"], "unknown device_map 'everywhere': choose one of auto"),
    (["--device", "cpu", "--datasets", "trec:location/planet"], "unknown pair 'location/planet' of trec"),
    (["--long", "drop"], "no chosen chapter has the parameter 'long'"),
    (["--more-models", "m,no/such/folder"], "there is no folder"),
    (["--more-models", "m,"], "more_models='m,': give one or more words"),
    (["--more-models", "elsewhere/m"], "would share the folder m: rename one"),
    (["--more-models", "m"], "no chosen chapter has the parameter 'more_models'"),
    (["--chat-model", "no/such/folder"], "there is no folder"),
    (["--chat-model", "plain"], "has no chat template, so it is no chat model"),
    (["--top-k", "3"], "no chosen chapter has the parameter 'top_k'"),
    (["--chapters", "01-locate", "--labels", "foo,bar"], "no chosen chapter has the parameter 'labels'"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line_before_anything_runs(home, capsys, arguments, message):
    shutil.copytree(home / "m", home / "elsewhere/m")
    shutil.copytree(ROOT / "data/models/mini-gpt2", home / "plain")  # a model, but none for chat
    assert cli.main(["run", "--model", "m", *arguments]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("twotowers: ") and message in said.err and said.err.count("\n") == 1
    assert not said.out and not (home / "runs").exists()


def test_data_sets_are_drawn_before_a_model_loads(home):
    path = home / "book/02-next.ipynb"
    path.write_text(path.read_text().replace("n_prompts = 5", "datasets = []\\nn_prompts = 5"))
    for datasets, message in ((["animal/planet"], "unknown dataset"), (["animal/animal"], "unknown dataset")):
        with pytest.raises(TwoTowersError, match=message):
            runs.plan(["m"], None, {"datasets": datasets})
    with pytest.raises(TwoTowersError, match="is a word of the class"):
        runs.plan(["m"], None, {"datasets": ["animal/country"], "labels": ["foo", "france"]})


@pytest.mark.parametrize(
    "content, message", [(None, "lacks trec/train_5500.label.txt"), (b"x", "is not the pinned file")]
)
def test_sentences_that_are_not_there_or_not_the_pinned_ones_are_one_line(home, capsys, monkeypatch, content, message):
    shutil.copytree(ROOT / "data/sentences", home / "data/sentences")
    (home / "mine/trec").mkdir(parents=True)
    if content:
        (home / "mine/trec/train_5500.label.txt").write_bytes(content)
    monkeypatch.setenv("TWOTOWERS_DATA", str(home / "mine"))
    download.pins.cache_clear()
    sentences._read.cache_clear()
    assert cli.main(["run", "--model", "m", "--datasets", "trec"]) == 1
    said = capsys.readouterr().err
    assert message in said and said.startswith("twotowers: ") and said.count("\n") == 1
    assert not (home / "runs").exists()


def test_a_class_with_too_few_sentences_is_one_line(home, capsys, monkeypatch):
    parts = [("pool", "location", 1), ("pool", "human", 3), ("input", "location", 2), ("input", "human", 2)]
    rows = [(f"{part} {cls} {i}", cls, part) for part, cls, n in parts for i in range(n)]
    monkeypatch.setattr(sentences, "rows", lambda name: pd.DataFrame(rows, columns=["text", "class", "part"]))
    assert cli.main(["run", "--model", "m", "--datasets", "trec:location/human"]) == 1
    said = capsys.readouterr().err
    assert "k=2 needs 2 demonstrations of the class location and trec:location/human has 1" in said
    assert said.count("\n") == 1


def test_two_models_of_one_folder_name_are_refused(home):
    shutil.copytree(home / "m", home / "other/m")
    with pytest.raises(TwoTowersError, match="would share the folder m"):
        runs.plan(["m", "other/m"], None, {})
    assert [job.model for job in runs.plan(["m", "m"], ["01-locate"], {})] == ["m"]
    assert runs.folder_of("openai-community/gpt2-large") == "openai-community--gpt2-large"


def test_verify_saves_what_it_measured_and_says_when_it_differs(home, monkeypatch, capsys):
    table = pd.DataFrame({"quantity": ["a", "b"], "published": [1.0, 2.0], "measured": [1.0, 2.0], "agrees": True})
    loaded = SimpleNamespace(fingerprint="huggyllama/llama-7b@0")
    monkeypatch.setattr(loading, "load", lambda name, **options: loaded)
    monkeypatch.setattr(verify, "authors_numbers", lambda model: table)
    assert cli.main(["verify", "--model", "llama-7b"]) == 0
    assert "all 2 numbers agree" in capsys.readouterr().out
    assert (home / "data/results/huggyllama--llama-7b/authors-numbers.csv").exists()
    table.loc[1, "agrees"] = False
    assert cli.main(["verify", "--model", "llama-7b"]) == 1
    assert "1 of 2 differ" in capsys.readouterr().err
    assert cli.main(["verify", "--model", "m"]) == 1
    assert "print no numbers for 'm': choose gpt2-large or llama-7b" in capsys.readouterr().err


def test_only_small_tables_are_kept(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/a.csv").write_text("x" * runs.LARGEST_TABLE)
    (tmp_path / "tables/b.csv").write_text("x" * (runs.LARGEST_TABLE + 1))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/old.csv").write_text("old")
    assert runs.keep(tmp_path / "tables", tmp_path / "kept") == ["b"]
    assert files(tmp_path / "kept") == ["a.csv"]
    for i in range(runs.LARGEST_MODEL // runs.LARGEST_TABLE):
        shutil.copy(tmp_path / "tables/a.csv", tmp_path / f"tables/a{i}.csv")
    left = runs.keep(tmp_path / "tables", tmp_path / "kept")
    assert len(left) == 2 and sum(p.stat().st_size for p in (tmp_path / "kept").iterdir()) == runs.LARGEST_MODEL


def test_models_beside_and_a_chat_model_go_to_the_chapters_that_have_them(home, monkeypatch, capsys):
    for name, line in (("01-locate", "more_models = []"), ("02-next", "chat_model = ''")):
        path = home / f"book/{name}.ipynb"
        path.write_text(path.read_text().replace("n_prompts = 5", f"{line}\\nn_prompts = 5"))
    for name in ("other", "talker"):
        shutil.copytree(home / "m", home / name)
    monkeypatch.setattr(chat, "check", lambda name: None)  # the folders here hold no tokenizer
    arguments = ["run", "--model", "m", "--more-models", "other,m", "--chat-model", "talker"]
    jobs = runs.plan(["m"], None, {"more_models": "other,m", "chat_model": " talker "})
    assert [(job.model, job.parameters) for job in jobs] == [
        ("m", {"more_models": ["other", "m"]}), ("m", {"chat_model": "talker"}),
    ]  # fmt: skip
    assert cli.main(arguments) == 0
    assert 'more_models = [\\"other\\", \\"m\\"]' in (home / "runs/m/01-locate.ipynb").read_text()
    assert 'chat_model = \\"talker\\"' in (home / "runs/m/02-next.ipynb").read_text()
    for folder, left in (("other", 1), ("talker", 1), ("m", 0)):  # other weights: what took them runs again, no more
        (home / folder / "model.safetensors").write_text("other weights")
        capsys.readouterr()
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out.count("nothing changed") == left
    assert cli.main(["run", "--model", "m", "--more-models", "", "--chat-model", ""]) == 0


def test_chapters_8_and_9_have_these_parameters():
    declared = {name: runs.parameters_of(path) for name, path in runs.chapters().items()}
    assert {name for name, has in declared.items() if "more_models" in has} == {"08-llama"}
    assert {name for name, has in declared.items() if "chat_model" in has} == {"09-sentence-case"}
