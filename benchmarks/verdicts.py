"""Judge all claims of the book on one model, and compare verdicts with predictions.

    python -m benchmarks.verdicts path/to/model --evaluation-blocks 50    # in OUT/MODEL/SUITE
    python -m benchmarks.verdicts mini-gpt2 --seed 1 --save   # other prompts, -> data/seeds.csv

Missing measurements are made, and the chapters are run. Registered predictions are in
data/preregistration.csv: written down, with probabilities, before a model was run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr
from towerlab import building, cli
from towerlab.measure.pipeline import Pipeline
from towerlab.model import loading
from towerlab.progress import say
from twotowers import claims, evidence, files, identity
from twotowers.errors import TwoTowersError
from twotowers.paths import book_folder, chapter_names, data_folder
from twotowers.settings import Settings
from twotowers.tables import read_csv, read_text

COLUMNS = [
    "claim",
    "statement",
    "verdict",
    "effect",
    "effect_low",
    "effect_high",
    "unit",
    "control",
    "p",
    "p_holm",
    "words",
]


def chapters(only: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the chapters that judge claims, in order, with the measurements that they read.

    Args:
        only: Numbers of chapters; all without them.

    Returns:
        Names of measurements by name of the chapter's notebook.

    Raises:
        TwoTowersError: If a chapter judges no claims.
    """
    judging = {claim.chapter for claim in claims.claims().values()}
    if unknown := {*only} - judging:
        raise TwoTowersError(
            f"unknown chapter '{min(unknown)}': expected some of {','.join(sorted(judging))}"
        )
    judging &= {*only} or judging
    names = sorted(name for number, name in chapter_names().items() if number in judging)
    notebooks = {name: read_text(book_folder() / f"{name}.ipynb") for name in names}
    about = {name: json.loads(text)["metadata"]["twotowers"] for name, text in notebooks.items()}
    return {name: of["measurements"] for name, of in about.items() if "suites" not in of}


def folder(pipeline: Pipeline) -> Path:
    """Return the folder of verdicts, evidence and chapters, next to the measurements.

    Args:
        pipeline: Pipeline of the model.
    """
    return identity.folder_of(pipeline.settings, pipeline.name, "heads")


def verdicts(
    pipeline: Pipeline, values: Mapping[str, Any], only: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the evidence of every claim on a model, next to its registered prediction.

    The table is also saved as verdicts.csv next to the measurements.

    Args:
        pipeline: Pipeline of the model.
        values: Settings as typed, which are parameters of every chapter.
        only: Numbers of chapters; all without them.

    Raises:
        TwoTowersError: If a chapter fails. The message gives the reason.
    """
    rows_of, runs, logs = (folder(pipeline) / name for name in ("evidence", "chapters", "log"))
    for place in (rows_of, runs, logs):
        place.mkdir(parents=True, exist_ok=True)
    needs = dict.fromkeys(name for measurements in chapters(only).values() for name in measurements)
    for name in needs:
        _measurement(pipeline, name)
    # -r passes values as text.
    parameters = [word for name, value in values.items() for word in ("-r", name, str(value))]
    for name in chapters(only):
        say(f"{pipeline.name}: chapter {name}")
        out = runs / f"{name}.ipynb"
        command = [sys.executable, "-m", "papermill", "-k", "python3", "-l", "python", *parameters]
        with (logs / f"{out.name}.txt").open("w") as log:
            command += ["--no-progress-bar", str(book_folder() / out.name), str(out)]
            environment = os.environ | {"TWOTOWERS_EVIDENCE": str(rows_of.resolve())}
            code = subprocess.run(
                command, stderr=log, stdin=subprocess.DEVNULL, env=environment
            ).returncode
        if code:
            why = building.failure(Path(log.name))
            raise TwoTowersError(
                f"cannot run chapter '{name}': {why}; see {out} for the cells before the error"
            )
    rows = evidence.read(rows_of)
    table = beside_predictions(rows[rows["model"] == pipeline.name])
    table.to_csv(folder(pipeline) / "verdicts.csv", index=False)
    return table


def _measurement(pipeline: Pipeline, name: str) -> xr.Dataset:
    """Return a measurement as chapters open it: the precomputed one if it has these settings."""
    data = files.open_precomputed(pipeline.name, pipeline.settings.suite, name)
    matches = data is not None and identity.matches_settings(data, pipeline.settings)
    return data if matches else pipeline.measured(name)


def save_rows(pipeline: Pipeline, table: pd.DataFrame) -> None:
    """Write verdicts to data/seeds.csv, and replace rows of the same model, seed and claim.

    Args:
        pipeline: Pipeline of the model.
        table: Rows of `verdicts`.
    """
    path, seed = data_folder() / "seeds.csv", pipeline.settings.seed
    blocks = json.loads(_measurement(pipeline, "heads").attrs["identity"])["evaluation_blocks"]
    old, rows = (
        read_csv(path),
        table.assign(model=pipeline.name, seed=seed, evaluation_blocks=blocks),
    )
    again = (
        (old["model"] == pipeline.name) & (old["seed"] == seed) & old["claim"].isin(rows["claim"])
    )
    short = rows[old.columns].map(
        lambda value: float(f"{value:.4g}") if isinstance(value, float) else value
    )
    pd.concat([old[~again], short]).sort_values(["model", "seed"], kind="stable").to_csv(
        path, index=False
    )


def beside_predictions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of evidence of one model next to the predicted verdicts.

    A prediction is neither hit nor miss if its claim is not testable on the model, or if the claim
    has a younger rule: the prediction is about the previous rule.

    Args:
        rows: Rows of evidence.

    Returns:
        The rows with the columns predicted, probability and hit.
    """
    predictions = read_csv(data_folder() / "preregistration.csv")
    predictions = predictions[["claim", "predicted", "probability", "date"]]
    table = rows[[name for name in COLUMNS if name in rows]].merge(
        predictions, on="claim", how="left"
    )
    rule = table["claim"].map({claim.id: claim.rule for claim in claims.claims().values()})
    testable = (
        table["predicted"].notna()
        & (table["verdict"] != claims.NOT_TESTABLE)
        & (rule.fillna("") <= table["date"].fillna(""))
    )
    table["hit"] = (table["verdict"] == table["predicted"]).where(testable)
    return table.drop(columns="date")


def brier(table: pd.DataFrame) -> float:
    """Return the Brier score: the mean squared difference of probabilities and outcomes.

    0 is perfect. `base_rate` is the score to compare it with.

    Args:
        table: Rows of `beside_predictions`.
    """
    rows = table.dropna(subset="hit")
    return float(((rows["probability"] - rows["hit"].astype(float)) ** 2).mean())


def base_rate(table: pd.DataFrame) -> float:
    """Return the Brier score of a forecast that is always the observed share of hits.

    Args:
        table: Rows of `beside_predictions`.
    """
    share = table["hit"].dropna().astype(float).mean()
    return float(share * (1 - share))


def main(words: Sequence[str]) -> int:
    """Measure, run the chapters, and print the verdicts and their path.

    Args:
        words: Arguments of the command line.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verdicts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("model", help=Settings.model_fields["model"].description)
    parser.add_argument(
        "--chapters", default="", metavar="N,N", help="chapters, such as 4,6 (default: all)"
    )
    parser.add_argument(
        "--save", action="store_true", help="also add the verdicts to data/seeds.csv"
    )
    cli.add_settings(parser, ("model", "suite"))
    arguments = parser.parse_args(words)
    values = {
        name: value for name, value in vars(arguments).items() if name in Settings.model_fields
    }
    settings = Settings.from_values(values)
    loading.check(settings.model, settings.device)
    pipeline = Pipeline(settings, shlex.join(["python", "-m", "benchmarks.verdicts", *words]))
    table = verdicts(
        pipeline, values, [number for number in arguments.chapters.split(",") if number]
    )
    if arguments.save:
        save_rows(pipeline, table)
    print(
        table[
            ["claim", "verdict", "effect", "effect_low", "effect_high", "predicted", "probability"]
        ].to_string(index=False)
    )
    for why, of in table[table["verdict"] == claims.NOT_TESTABLE].groupby("words"):
        print(f"not testable, {why}: {', '.join(of['claim'])}")
    if len(hits := table["hit"].dropna()):
        print(
            f"registered: {int(hits.sum())} of {len(hits)} came; Brier score {brier(table):.2f} "
            f"({base_rate(table):.2f} for always saying the share that came)"
        )
    print(folder(pipeline) / "verdicts.csv")
    return 0


if __name__ == "__main__":
    sys.exit(cli.guarded(lambda: main(sys.argv[1:])))
