# The way from chapters to pages, for `make book`, `twotowers run` and `twotowers record`: they write a plan (see
# lib/twotowers/chapters/plan.py), remove the stamps of what must be done again, and start Snakemake in the plan's root.
#
#   book/CHAPTER.ipynb --papermill--> HOME/CHAPTER.ipynb, HOME/tables/CHAPTER-*.csv; then HOME/.done/CHAPTER.json
#   all of them --book/_ext/build.py--> _build/html; then pages.json
#
# A plan comes as a file, so that no name, label or path in it is ever read by a shell. What is done is told by the
# stamps alone (`ancient`: no file's time counts).

import sys

from twotowers.chapters.stamps import stamp_of

PYTHON, PLAN = sys.executable, config["plan"]
BUILD = f"{workflow.basedir}/book/_ext/build.py"


def before(wildcards):
    return [ancient(stamp_of(key)) for key in config["after"][f"{wildcards.home}/{wildcards.chapter}"]]


rule chapter:
    input:
        before,
    output:
        "{home}/.done/{chapter}.json",
    wildcard_constraints:
        home="[^/]+",
        chapter="[^/]+",
    shell:
        "exec {PYTHON:q} -m twotowers.chapters.execute {PLAN:q} {output:q}"


rule pages:
    input:
        [ancient(stamp_of(key)) for key in config["jobs"]],
    output:
        "pages.json",
    shell:
        "exec {PYTHON:q} {BUILD:q} {PLAN:q} {output:q}"
