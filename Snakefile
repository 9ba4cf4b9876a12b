# The way from chapters to pages. `make book` runs this; nothing here imports torch.
#
#   book/NAME.ipynb --papermill--> _build/executed/MODEL/NAME.ipynb, tables in _build/tables/MODEL/
#   all of them, with the Markdown pages --assemble, jupyter-book--> _build/html/index.html
#
# A chapter is added by one line in _toc.yml. What `twotowers run` left in runs/MODEL/ becomes pages too.

import json
import re
import sys
from pathlib import Path

import yaml

# Every command is the one of the environment that snakemake itself runs in, activated or not.
shell.prefix(f"set -euo pipefail; export NO_COLOR=1 PATH={Path(sys.executable).parent}:$PATH; ")

MODEL = str(config.get("model", "mini-gpt2"))
# Chapters about a model of their own; the miniatures that know single words cannot read chapter 9's sentences.
OWN_MODEL = {"08-llama": str(config.get("llama", "mini-sentences"))}
if MODEL in ("mini-gpt2", "mini-llama"):
    OWN_MODEL["09-sentence-case"] = "mini-sentences"
# Chapters whose tables a chapter reads; they run first. One that is not named here reads the first chapter's.
READS = dict.fromkeys(["01-locate", "08-llama", "09-sentence-case", "playground", "the-miniatures", "cost"], [])
READS["scorecard"] = None  # all others
PARAMETERS = (
    "datasets", "n_prompts", "labels", "k", "long", "norm", "top_k", "seed", "device", "dtype", "device_map",
)  # fmt: skip
THREADS = int(config.get("threads", 1))  # torch threads of one chapter


def slug(model):
    """A model id or path as a folder name."""
    return re.sub(r"[^\w.-]+", "--", model.strip("/"))


def toc_files(node):
    """Every page that _toc.yml names, in order."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in ("root", "file"):
            yield value
        for child in value if isinstance(value, list) else ():
            yield from toc_files(child)


TOC = list(toc_files(yaml.safe_load(Path("_toc.yml").read_text())))
CHAPTERS = [Path(page).name for page in TOC if Path(f"{page}.ipynb").exists()]
MODEL_OF = {chapter: OWN_MODEL.get(chapter, MODEL) for chapter in CHAPTERS}
MODEL_NAMED = {slug(model): model for model in [MODEL, *MODEL_OF.values()]}
EXECUTED = {chapter: f"_build/executed/{slug(MODEL_OF[chapter])}/{chapter}.ipynb" for chapter in CHAPTERS}


def files(*patterns):
    return sorted(str(f) for pattern in patterns for f in Path().glob(pattern) if f.is_file())


def model_files(model):
    """The files of a model that lies on this machine; a model from the hub is named by its id alone."""
    folder = next((f for f in (Path("data/models") / model, Path(model)) if f.is_dir()), None)
    return sorted(str(f) for f in folder.iterdir() if f.is_file()) if folder else []


def run_before(wildcards):
    reads = READS.get(wildcards.chapter, ["01-locate"])
    reads = [c for c in CHAPTERS if c != wildcards.chapter] if reads is None else reads
    own = files("data/scorecard_rules.csv", "runs/*/tables/*.csv", "data/results/*/*.csv")
    before = [EXECUTED[c] for c in reads if c in EXECUTED and c != wildcards.chapter]
    own = {"scorecard": own, "cost": files("benchmarks/results/*")}
    return before + own.get(wildcards.chapter, [])


def parameters(wildcards):
    chosen = {name: config[name] for name in PARAMETERS if name in config}
    return json.dumps({"model": MODEL_NAMED[wildcards.model], "out": f"_build/tables/{wildcards.model}", **chosen})


rule book:
    input:
        "_build/html/index.html",


# papermill leaves its output behind when a cell fails, so it writes elsewhere and the file is moved on success.
rule chapter:
    input:
        run_before,
        notebook="book/{chapter}.ipynb",
        sources=files("lib/twotowers/**/*.py", "data/words/*", "data/published.csv", "requirements.lock"),
        model=lambda wildcards: model_files(MODEL_NAMED[wildcards.model]),
    output:
        "_build/executed/{model}/{chapter}.ipynb",
    params:
        parameters=parameters,
    log:
        "_build/log/{model}/{chapter}.txt",
    shell:
        """
        part=_build/log/{wildcards.model}/{wildcards.chapter}.ipynb
        mkdir -p _build/tables/{wildcards.model}
        start=$(date +%s)
        echo "  {wildcards.chapter}  running on {wildcards.model} ..."
        export OMP_NUM_THREADS={THREADS} MKL_NUM_THREADS={THREADS} TOKENIZERS_PARALLELISM=false
        if ! papermill --kernel python3 --no-progress-bar --log-output -y {params.parameters:q} {input.notebook} $part > {log} 2>&1
        then
            echo; tail -n 40 {log}
            echo "  {wildcards.chapter}  FAILED. The chapter as far as it came: $part; all it said: {log}"
            exit 1
        fi
        mv $part {output}
        echo "  {wildcards.chapter}  done in $(($(date +%s) - start)) s"
        """


# The pages are built aside and put in place whole, so that a failed build leaves the last good book.
rule pages:
    input:
        executed=list(EXECUTED.values()),
        runs=files("runs/*/*.ipynb"),
        sources=files(
            *(f"book/**/*.{kind}" for kind in ("md", "bib", "py", "js", "css", "png", "svg")),
            *(f"data/**/*.{kind}" for kind in ("md", "csv", "json", "png", "svg")),
        ),
        settings=["_config.yml", "_toc.yml", "requirements.lock"],
    output:
        "_build/html/index.html",
    log:
        "_build/log/pages.txt",
    shell:
        """
        echo "  pages  building ..."
        if ! {{ python book/_ext/assemble.py _build/stage {input.executed} --runs {input.runs} &&
                jupyter-book build _build/stage --path-output _build/sphinx -W --keep-going; }} > {log} 2>&1
        then
            echo; grep -E "WARNING|ERROR|Error|warning:" {log} || tail -n 40 {log}
            echo "  pages  FAILED. All it said: {log}"
            exit 1
        fi
        rm -rf _build/html && cp -R _build/sphinx/_build/html _build/html
        echo "  pages  done"
        """
