# From measurements to chapters to pages. `make book` calls it; by itself:  snakemake --cores 2 --config model=NAME evaluation_blocks=20
#   model, settings, texts, versions (data/versions.csv)  ->  _build/measurements/MODEL/SUITE/NAME.nc (SUITE-DIGITS: not the default settings)
#   those it names, data/measurements, its notebook, its rows of data tables, the rest of lib  ->  _build/chapters/NAME.ipynb, _build/evidence/N.csv
#   all of them, book/_ext, book/_page  ->  _build/html
#
# `towerlab.plan` says what each notebook reads. `update` keeps the last good file when a job fails.
#
# One rule says when a measurement is made again: when its identity is another (`twotowers.identity`). `twotowers book` makes what is
# missing or stale before Snakemake starts; with a profile it forces these jobs. Whatever is left, chapters measure themselves.

import logging, os, sys
from pathlib import Path
import twotowers
from towerlab import building
from towerlab.plan import Plan, all_tables
from twotowers import catalogue
from twotowers.paths import chapter_number
from twotowers.settings import Settings

PYTHON, LIB = sys.executable, Path(twotowers.__file__).parents[1]
THREADS = int(config.pop("threads", 1))
settings = Settings.from_values(config)  # raises for a name of no setting
given = {name: value for name, value in config.items() if value not in ("", None)}  # empty: auto
plan = Plan(settings, has_chosen_model="model" in given)
MODEL, OUT = plan.pipeline(settings.suite).name, settings.out
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Chapters run with this environment's kernel, also where JUPYTER_PATH names another Python's first.
os.environ["JUPYTER_PATH"] = os.pathsep.join([f"{sys.prefix}/share/jupyter", os.environ.get("JUPYTER_PATH", "")])
LIB_OF_CHAPTERS = [str(p) for p in LIB.glob("*/*.py") if p.stem not in ("cli", "building", "plan")]
PAGES = [str(p) for p in Path("book").rglob("[!.]*") if p.suffix in (".md", ".py", ".js", ".css", ".html", ".svg", ".png")]
PAGES += ["CITATION.cff"] if Path("CITATION.cff").is_file() else []  # part of a page

rule pages:
    input: [f"_build/chapters/{name}.ipynb" for name in plan.notebooks], PAGES, "_toc.yml", "_config.yml",
    output: update("_build/html/index.html"),
    params:
        repository=os.environ.get("BOOK_REPOSITORY") or os.environ.get("GITHUB_REPOSITORY", ""),
        tables=all_tables(),
    shell: "{PYTHON:q} book/_ext/build.py"

rule measure:
    input: lambda w: [str(path) for path in plan.paths({w.suite: catalogue.row_of(w.name).needs})],
    output: update(f"{OUT}/{MODEL}/{{suite,[a-z]+}}{{settings,(-[0-9a-f]+)?}}/{{name}}.nc"),
    params: options=[f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "suite"],
    threads: THREADS
    resources: **({"gpu": 1} if settings.device.startswith("cuda") or settings.device_map else {}),
    shell: "{PYTHON:q} -m towerlab.cli measure {wildcards.name} --suite {wildcards.suite} {params.options:q} 2>&1 > /dev/null | cat >&2"

for name in plan.notebooks:
    others = [f"_build/chapters/{other}.ipynb" for other in plan.notebooks if plan.reads_evidence(name) and not plan.reads_evidence(other)]
    evidence = [f"_build/evidence/{chapter_number(name)}.csv"] if plan.writes_evidence(name) else []
    rule:
        name: f"chapter_{name}"
        input: f"book/{name}.ipynb", plan.inputs(name), LIB_OF_CHAPTERS, others,
        output: update(f"_build/chapters/{name}.ipynb"), [update(path) for path in evidence],
        params:
            rests_on=plan.rests_on(name),
            part=f"_build/chapters/.{name}.part", failed=f"_build/chapters/{name}{building.FAILED}",
            given=[word for pair in given.items() for word in ("-r", *map(str, pair))] if plan.takes_settings(name) else [],
        log: f"_build/log/{name}.txt",
        threads: THREADS
        priority: len([*plan.measurements(name)])  # what reads most takes longest, and begins first
        shell:
            "export TWOTOWERS_EVIDENCE=_build/evidence; trap 'exit 130' INT; rm -f {params.part:q}.* {params.failed:q}; part={params.part:q}.$$.ipynb; cp {input[0]:q} $part; "
            "if {PYTHON:q} -m papermill {input[0]:q} $part -k python3 -l python {params.given:q} --no-progress-bar --no-request-save-on-cell-execute 2> {log:q}; "
            "then mv $part {output[0]:q}; echo '{rule}: done' >&2; else mv $part {params.failed:q}; exit 1; fi"

LOG = "_build/log/snakemake.txt"

onstart:  # the terminal is for measurements and chapters from here on
    Path(LOG).parent.mkdir(parents=True, exist_ok=True)
    for handler in logging.getLogger("snakemake.logging").handlers:
        handler.setStream(open(LOG, "w"))

onerror:  # pages are built with the last good chapters
    failed = [name for name in plan.notebooks if Path(f"_build/chapters/{name}{building.FAILED}").is_file()]
    for name in sorted(failed):
        why = building.failure(Path(f"_build/log/{name}.txt"))
        path = f"_build/chapters/{name}{building.FAILED}"
        print(f"twotowers: {name} failed: {why} (as far as it came: {path}; log: _build/log/{name}.txt)", file=sys.stderr)
    if failed:
        shell("{PYTHON:q} book/_ext/build.py")
    print(f"twotowers: not all is made: see above, or {LOG}; what was made is kept, and the same command goes on", file=sys.stderr)
