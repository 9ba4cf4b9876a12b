"""What lies in data/results is what its pages ask for: the studies as they are, under the parameters of its run.yml."""

import pytest
from conftest import ROOT
from twotowers.chapters import shard
from twotowers.chapters.chapter import open_chapter
from twotowers.chapters.notebooks import declared
from twotowers.chapters.plan import record
from twotowers.exhibits.scorecard import RULES, Model
from twotowers.parameters import Parameters
from twotowers.stats import tables
from twotowers.studies.context import CHAPTERS
from twotowers.studies.run import Run

RECORDS = sorted((ROOT / "data/results").glob("*/run.yml"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_every_recorded_table_is_one_that_a_page_shows(path, tmp_path):
    model, settings = record(path, computed=False)
    found = {one.stem: tables.load(path.parent, one.stem) for one in path.parent.glob("[0-9]*.csv")}
    shown = set()
    for chapter, values in settings.items():
        shard.studies_of(chapter)  # registers all studies
        given = declared(chapter) | values | {"model": model, "recorded": "only", "out": str(tmp_path)}
        run = Run(Parameters.of(given))
        sets = [run.parameters.datasets, Parameters().datasets, *([one] for one in run.parameters.datasets)]
        for part in map(run.on, sets):  # chapter 8 looks which sets are at hand, and at words beside sentences
            for study in [*CHAPTERS[chapter], *CHAPTERS["01-locate"]]:
                name = part.file_of(study)
                if name in found and found[name].attrs["provenance"]["identity"] == part.identity(study):
                    shown.add(name)
    assert shown == set(found)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_every_rule_can_read_its_recorded_table(path):
    found = {one.stem: tables.load(path.parent, one.stem) for one in path.parent.glob("[0-9]*.csv")}
    model = Model(path.parent.name, "", found)
    for rule in RULES:
        if rule.table in found:
            assert "cannot be read" not in model.judged(rule)[1], rule.table


def test_a_shared_table_has_a_file_for_each_choice_of_sets_and_of_prompts_to_locate_on():
    shard.studies_of("01-locate")
    shared, own = (
        next(one for one in CHAPTERS["01-locate"] if one.name == name)
        for name in ("01-locate-heads", "01-locate-order")
    )
    given = [{}, {"n_locate": 40}, {"datasets": ["sst2"]}, {"datasets": ["sst2"], "n_locate": 40}]
    runs = [Run(Parameters.of(one)) for one in given]
    names = [run.file_of(shared) for run in runs]
    assert names[0] == "01-locate-heads" and len(set(names)) == len(names)
    assert {run.file_of(own) for run in runs} == {"01-locate-order"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_recorded_page_names_every_machine_that_made_its_tables(path, tmp_path):
    model, settings = record(path, computed=False)
    for name, values in settings.items():
        page = open_chapter(name, declared(name) | values | {"model": model, "recorded": "only", "out": str(tmp_path)})
        files = [path.parent / f"{page.file_of(study)}.csv" for study in CHAPTERS[name]]
        machines = {tables.provenance_of(file)["machine"] for file in files if file.is_file()}
        assert all(f"`{machine}`" in page._recorded() for machine in machines), name
