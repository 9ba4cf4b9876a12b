# The way from chapters to pages, for `make book`, `twotowers run` and `twotowers record`: they write a plan (see
# lib/twotowers/chapters/plan.py), remove the stamps of what must be done again, and start Snakemake in the plan's root.
#
#   book/CHAPTER.ipynb --papermill--> HOME/CHAPTER.ipynb, HOME/tables/CHAPTER-*.csv; then HOME/.done/CHAPTER.json
#   before it, of a plan with shards: HOME/.parts/CHAPTER/*.npz; then HOME/.shards/CHAPTER-i-of-n.json
#   all of them --book/_ext/build.py--> _build/html; then pages.json
#
# A plan comes as a file, so that no name, label or path in it is ever read by a shell. What is done is told by the
# stamps alone (`ancient`: no file's time counts).

import sys

from twotowers.chapters.stamps import shards_of, stamp_of

PYTHON, PLAN = sys.executable, config["plan"]
BUILD = f"{workflow.basedir}/book/_ext/build.py"


def key_of(wildcards):
    return f"{wildcards.home}/{wildcards.chapter}"


def before(wildcards):
    return [ancient(stamp_of(key)) for key in config["after"][key_of(wildcards)]]


def shards(wildcards):
    key = key_of(wildcards)
    return [] if key in config["given_up"] else [ancient(path) for path in shards_of(key, config["shards"].get(key, 1))]


def gpus(wildcards):
    """One for a chapter that asks for any, none for the others: profiles share them out by this."""
    given = config["jobs"][key_of(wildcards)]["parameters"]
    return int(bool(given.get("device_map")) or str(given.get("device")).startswith("cuda"))


wildcard_constraints:
    home="[^/]+",
    chapter="[^/]+",
    i="[0-9]+",
    n="[0-9]+",


rule shard:
    input:
        before,
    output:
        "{home}/.shards/{chapter}-{i}-of-{n}.json",
    threads: config["threads"]
    resources:
        gpu=gpus,
    shell:
        "exec {PYTHON:q} -m twotowers.chapters.shard {PLAN:q} {output:q}"


rule chapter:
    input:
        before,
        shards,
    output:
        "{home}/.done/{chapter}.json",
    threads: config["threads"]
    resources:
        gpu=gpus,
    shell:
        "exec {PYTHON:q} -m twotowers.chapters.execute {PLAN:q} {output:q}"


rule pages:
    input:
        [ancient(stamp_of(key)) for key in config["jobs"]],
    output:
        "pages.json",
    shell:
        "exec {PYTHON:q} {BUILD:q} {PLAN:q} {output:q}"
