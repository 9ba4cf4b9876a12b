# From measurements to chapters to pages. `make book` calls it; by itself:  snakemake --cores 2 --config model=NAME evaluation_blocks=20
#   model, settings, texts, versions (data/versions.csv)  ->  _build/measurements/MODEL/SUITE/NAME.nc (SUITE-DIGITS: not the default settings)
#   those it names, data/measurements, its notebook, the rest of lib  ->  _build/chapters/NAME.ipynb, _build/evidence/N.csv
#   all of them, book/_ext, book/_page  ->  _build/html
#
# A notebook names what it reads in its metadata: "twotowers": {"measurements": ["heads", "query_key_vectors"]}; with
# "evidence": true it reads the evidence of all other chapters. `update` keeps the last good file when a job fails.
#
# One rule says when a measurement is made again: when its identity is another (`cache.identity`), as `twotowers measure`
# and chapters do; it is a parameter of the rule, and no code is an input.

import csv, functools, itertools, json, logging, os, sys
from pathlib import Path
import twotowers, yaml
from towerlab import building
from towerlab.measure import cache
from towerlab.measure.pipeline import Pipeline
from twotowers import catalogue, files
from twotowers.paths import data_folder
from twotowers.settings import Settings

PYTHON, LIB = sys.executable, Path(twotowers.__file__).parents[1]
THREADS = int(config.pop("threads", 1))
settings = Settings.from_values(config)  # raises for a name of no setting
given = {name: value for name, value in config.items() if value not in ("", None)}  # empty: auto
MODEL, OUT = Pipeline(settings).name, settings.out
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Chapters run with this environment's kernel, also where JUPYTER_PATH names another Python's first.
os.environ["JUPYTER_PATH"] = os.pathsep.join([f"{sys.prefix}/share/jupyter", os.environ.get("JUPYTER_PATH", "")])
LIB_OF_CHAPTERS = [str(p) for p in LIB.glob("*/*.py") if p.stem not in ("cli", "building")]
TABLES = itertools.chain.from_iterable(map(data_folder().glob, ("*.csv", "registered/*.csv", "models/names.csv", "words/counts.csv", "words/similarity.csv")))
DATA_OF_CHAPTERS = [str(p) for p in TABLES if p.stem != "versions"]
PAGES = [str(p) for p in Path("book").rglob("*") if p.suffix in (".md", ".py", ".js", ".css", ".html", ".svg", ".png")]
PAGES += ["CITATION.cff"] if Path("CITATION.cff").is_file() else []  # part of a page

toc = yaml.safe_load(Path("_toc.yml").read_text())
notebooks = [Path(f"{page}.ipynb") for page in building.listed(toc)]
about = {path.stem: json.loads(path.read_text("utf8"))["metadata"]["twotowers"] for path in notebooks if path.is_file()}
claimed = {row["chapter"] for of in ("claims", "figures") for row in csv.DictReader((data_folder() / f"{of}.csv").open())}

def reads(name):
    """The files of a chapter's measurements: of the default model, unless it is precomputed under these settings, and of all that are."""
    suites = about[name].get("suites", [settings.suite])
    for suite, measurement in itertools.product(suites, about[name].get("measurements", [])):
        found = {path.parts[-3]: path for path in data_folder().glob(f"measurements/*/{suite}/{measurement}.nc")}
        yield from map(str, found.values())
        served = MODEL in found and files.matches_settings(files.load(found[MODEL]), run(suite).settings)
        yield from [] if served or own(name) else [str(run(suite).path(measurement))]

def own(name):
    """Whether a chapter has a default model of its own, named in its metadata (chapter 8: a precomputed one); settings are not its."""
    return "model" in about[name] and "model" not in given

@functools.cache
def run(suite):
    return Pipeline(settings.model_copy(update={"suite": suite}))

def rests_on(name):
    """The model, and texts and versions of a chapter's measurements, precomputed ones too."""
    suites = about[name].get("suites", [settings.suite])
    return [(s, run(s).fingerprint, cache.text_digest(s), catalogue.versions(m)) for s in suites for m in about[name].get("measurements", [])]

def number(name):
    """04-attention-weights -> 4: the chapter of its claims in data/claims.csv."""
    return name.partition("-")[0].lstrip("0").upper()

rule pages:
    input: [f"_build/chapters/{name}.ipynb" for name in about], PAGES, "_toc.yml", "_config.yml",
    output: update("_build/html/index.html"),
    params: repository=os.environ.get("BOOK_REPOSITORY") or os.environ.get("GITHUB_REPOSITORY", ""),
    shell: "{PYTHON:q} book/_ext/build.py"

rule measure:
    input: lambda w: [str(run(w.suite).path(name)) for name in catalogue.row_of(w.name).needs],
    output: f"{OUT}/{MODEL}/{{suite,[a-z]+}}{{settings,(-[0-9a-f]+)?}}/{{name}}.nc",
    params:
        identity=lambda w: run(w.suite).identity(w.name),
        options=[f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "suite"],
    threads: THREADS
    resources: **({"gpu": 1} if settings.device.startswith("cuda") or settings.device_map else {}),
    shell: "{PYTHON:q} -m towerlab.cli measure {wildcards.name} --suite {wildcards.suite} {params.options:q} 2>&1 > /dev/null | cat >&2"

for name in about:
    others = [f"_build/chapters/{other}.ipynb" for other in about if "evidence" in about[name] and "evidence" not in about[other]]
    evidence = [f"_build/evidence/{number(name)}.csv"] if number(name) in claimed else []
    rule:
        name: f"chapter_{name}"
        input: f"book/{name}.ipynb", list(reads(name)), LIB_OF_CHAPTERS, DATA_OF_CHAPTERS, others,
        output: update(f"_build/chapters/{name}.ipynb"), [update(path) for path in evidence],
        params:
            rests_on=rests_on(name),
            part=f"_build/chapters/.{name}.part", failed=f"_build/chapters/{name}.failed.ipynb",
            given=[word for pair in given.items() for word in ("-r", *map(str, pair))] if "measurements" in about[name] and not own(name) else [],
        log: f"_build/log/{name}.txt",
        threads: THREADS
        shell:
            "export TWOTOWERS_EVIDENCE=_build/evidence; trap 'exit 130' INT; rm -f {params.part:q}.* {params.failed:q}; part={params.part:q}.$$.ipynb; "
            "if {PYTHON:q} -m papermill {input[0]:q} $part -k python3 -l python {params.given:q} --no-progress-bar 2> {log:q}; "
            "then mv $part {output[0]:q}; echo '{rule}: done' >&2; else touch $part; mv $part {params.failed:q}; exit 1; fi"

LOG = "_build/log/snakemake.txt"

onstart:  # the terminal is for measurements and chapters from here on
    Path(LOG).parent.mkdir(parents=True, exist_ok=True)
    for handler in logging.getLogger("snakemake.logging").handlers:
        handler.setStream(open(LOG, "w"))

onerror:  # pages are built with the last good chapters
    failed = sorted(Path("_build/chapters").glob(f"*{building.FAILED}"))
    for path in failed:
        name = path.name.removesuffix(building.FAILED)
        why = building.failure(Path(f"_build/log/{name}.txt"))
        print(f"twotowers: {name} failed: {why} (as far as it came: {path}; log: _build/log/{name}.txt)", file=sys.stderr)
    if failed:
        shell("{PYTHON:q} book/_ext/build.py")
    print(f"twotowers: not all is made: see above, or {LOG}; what was made is kept, and the same command goes on", file=sys.stderr)
