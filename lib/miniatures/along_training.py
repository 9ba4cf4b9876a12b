"""How the in-context heads of mini-gpt2 come to be: its training, measured at some 45 checkpoints.

    python -m miniatures.along_training --seeds 0,1,2 --out FOLDER

The training is that of the shipped model (seed 0), only more checkpoints are kept: in every stage after 50, 100, 200
... batches, in the last one after 25, 35, 50, 71 ..., and at each stage's end. They stay in the checkpoints folder.
Given again after a kill, the command goes on where it stood: what is trained and measured is not done again.

Tables in FOLDER: along-training-measures, -heads, -stages; see the functions of these names, and `wide`. Chapter 13
shows those in data/results/mini-gpt2. All prompts are counterbalanced, so neither a place nor a label word tells the class.
"""

import argparse
import json
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from twotowers.analysis import locate
from twotowers.analysis.at_labels import read_labels
from twotowers.analysis.edit_heads import all_heads
from twotowers.analysis.label_reading import label_readings
from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.model import loading
from twotowers.model.answers import Answers, clusters
from twotowers.model.model import Model
from twotowers.paths import data_folder
from twotowers.prompts.datasets import WORD_SETS, counterbalanced, draw
from twotowers.prompts.prompt import Encoded, encode_all
from twotowers.stats import tables
from twotowers.studies.context import LOCATING_SEED, machine
from twotowers.studies.training import ALL, HEADS, INDUCTION, INTERACTION, MEASURES, READING, STAGES

from miniatures.repeated_tokens import induction
from miniatures.trainer import Trainer, recipe

NAME, STUDY, VERSION = "mini-gpt2", "along-training", 1
KEPT_IN_DRILLS = frozenset(50 * 2**i for i in range(7))
KEPT_IN_EPISODES = frozenset(round(25 * 2 ** (i / 2)) for i in range(13))
PROMPTS = 120  # a word set; a multiple of 12, the number of orders times the two ways to give out the labels
TOP = 5  # heads of a final model that count as in-context heads, as in the chapters


class ManyCheckpoints(Trainer):
    """The unchanged training, with a denser row of checkpoints."""

    def keeps(self, count: int) -> bool:
        return count in (KEPT_IN_EPISODES if self.at.stage == "episodes" else KEPT_IN_DRILLS)


def trained(seed: int, folder: Path) -> Path:
    """Train one seed, unless it was done; the folder of its final weights, which validation prompts chose."""
    final = folder / "final"
    record = final / "training.json"
    if not record.is_file() or json.loads(record.read_text(encoding="utf-8")).get("recipe") != recipe():
        ManyCheckpoints(NAME, seed, folder).run(final)
    return final


def prompts(model: Model, seed: int, n: int = PROMPTS) -> list[Encoded]:
    """n counterbalanced prompts of each of the paper's four word sets; no two of their classes met in an episode."""
    drawn = [counterbalanced(draw(name, n, seed=seed)) for name in WORD_SETS]
    return encode_all([prompt for some in drawn for prompt in some], model.tokenizer, model.context)


def head_values(
    model: Model, encoded: Sequence[Encoded], increases: Float[np.ndarray, "prompt layer head"]
) -> dict[str, Float[np.ndarray, "prompt every_head"]]:
    """Per prompt and head (layer by layer), OF_HEADS but for induction; `increases` are those of `locate.increases`:

    - increase: log-probability increase of the true label (nats);
    - label margin: what label positions add to the true label's lead over the other (nats); ranks in-context heads;
    - label reading: own label less the other in the value, mean over label positions (nats): what would be written,
      whatever is attended to;
    - class interaction: score of the last position at true less false labels, before the softmax, means (nats): the
      two towers, whatever is written; infinite or missing where a sliding window hides a label;
    - attention difference: attention weight on all true less on all false labels.
    """
    seen, read = read_labels(model, encoded), label_readings(model, encoded)
    true = np.broadcast_to(seen.true[:, None, None], read.shape)
    with np.errstate(invalid="ignore"):  # a label that a sliding window hides has the score -inf; GPT-2 has no window
        interaction = seen.scores.mean(-1, where=true) - seen.scores.mean(-1, where=~true)
    found = {
        "increase": increases,
        "label margin": (np.where(true, 1, -1) * seen.weights * read).sum(-1),
        READING: read.mean(-1),
        INTERACTION: interaction,
        "attention difference": seen.difference(),
    }
    return {quantity: values.reshape(len(encoded), -1) for quantity, values in found.items()}


def measures(model: Model, encoded: Sequence[Encoded], seed: int) -> pd.DataFrame:
    """What one checkpoint does: head ("3-5", or "model"), quantity, value, error, n.

    Of the model: accuracy over the vocabulary and between the two labels, the margin (nats), and the share of repeated
    tokens that it copies. Of every head: see `head_values`, and `induction`; `seed` is that of the training. `value` is
    a mean over prompts, `error` its standard error over clusters, `n` their number: prompts that ask for the same word
    are one cluster.
    """
    found = locate.increases(model, encoded)
    answers = Answers.read(found.predicted, found.log_prob[list(encoded[0].label_ids)].to_numpy(), encoded)
    group, names = clusters([e.prompt for e in encoded]), named(all_heads(model))
    scores, copied = induction(model, seed)
    rows = np.arange(len(copied))
    of_model = {"accuracy, vocabulary": answers.correct, "accuracy, two labels": answers.two_label}
    of_model |= {"margin": answers.margin}
    parts = [_rows([ALL], quantity, column[:, None], group) for quantity, column in of_model.items()]
    parts.append(_rows([ALL], "repeated tokens copied", copied[:, None], rows))
    of_heads = head_values(model, encoded, found.heads)
    parts += [_rows(names, quantity, values, group) for quantity, values in of_heads.items()]
    parts.append(_rows(names, INDUCTION, scores.reshape(len(scores), -1), rows))
    return pd.concat(parts, ignore_index=True)


def _rows(heads: list[str], quantity: str, values: np.ndarray, group: np.ndarray) -> pd.DataFrame:
    mean, error, n = clustered_mean(np.asarray(values, dtype=float), group)
    rounded = {"value": mean.round(5), "error": error.round(5)}
    return pd.DataFrame({"head": heads, "quantity": quantity, **rounded, "n": n})


def clustered_mean(
    values: Float[np.ndarray, "prompt column"], group: np.ndarray
) -> tuple[Float[np.ndarray, " column"], Float[np.ndarray, " column"], int]:
    """Mean of each column, its standard error with prompts of a group as one draw, and the number of groups."""
    code = pd.factorize(group)[0]
    n = int(code.max()) + 1
    mean = np.mean(values, 0)
    sums = np.zeros((n, values.shape[1]))
    np.add.at(sums, code, values - mean)
    return mean, np.sqrt(n / (n - 1) * (sums**2).sum(0)) / len(values), n


def heads(model: Model) -> pd.DataFrame:
    """Every head of a final model: head, layer, label_margin, increase (nats, with errors), n, in_context.

    Located on prompts of another draw than those that measure. `in_context`: among the TOP by label margin, above 0.
    """
    encoded = prompts(model, LOCATING_SEED)
    values = head_values(model, encoded, locate.increases(model, encoded).heads)
    group = clusters([e.prompt for e in encoded])
    every = all_heads(model)
    table = pd.DataFrame({"head": named(every), "layer": [head.layer for head in every]})
    for column in ("label margin", "increase"):
        mean, error, n = clustered_mean(values[column], group)
        name = column.replace(" ", "_")
        table[name], table[f"{name}_error"], table["n"] = mean, error, n
    margin = table["label_margin"]
    return table.assign(in_context=(margin.rank(ascending=False) <= TOP) & (margin > 0))


def checkpoint_measures(folder: Path) -> pd.DataFrame:
    """`measures` of one checkpoint, with its step in front; made once and kept beside its weights."""
    identity = {"study": STUDY, "version": VERSION, "prompts": PROMPTS}
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    try:
        table = tables.load(folder, "measures")
    except TwoTowersError:
        table = None
    if table is None or table.attrs["provenance"].get("identity") != identity:
        model = loading.load(folder)
        table = measures(model, prompts(model, 0), record["seed"])
        table.insert(0, "step", record["step"])
        tables.save(table, folder, "measures", {"identity": identity})
    return table


def stages(final: Path) -> pd.DataFrame:
    """The stages of a training in their order: stage, start, end (updates); the last has the update that was chosen."""
    record = json.loads((final / "training.json").read_text(encoding="utf-8"))
    ends = [(name, end) for name, end in record["stages"] if not name.startswith("episodes")]
    table = pd.DataFrame([("episodes" if name == "end" else name, end) for name, end in ends], columns=["stage", "end"])
    table.insert(1, "start", [0, *table["end"][:-1]])
    last = table["stage"] == "episodes"
    return table.assign(chosen=np.where(last, record["step"], None))


def wide(measured: pd.DataFrame) -> pd.DataFrame:
    """`measures` of many checkpoints in a third of the room: seed, step, head, a column for each quantity and for its error."""
    table = measured.pivot(index=["seed", "step", "head"], columns="quantity", values=["value", "error"])
    table.columns = [name if what == "value" else f"{name}, error" for what, name in table.columns]
    return table.reset_index()


def study(seeds: Sequence[int], out: Path, checkpoints: Path) -> list[str]:
    """Train and measure every seed in turn and write the tables after each; what kept a seed from it, if anything."""
    measured, of_stages, of_heads, failed = [], [], [], []
    for seed in seeds:
        start, folder = time.monotonic(), checkpoints / f"seed-{seed}"
        try:
            final = trained(seed, folder)
        except TwoTowersError as error:
            failed.append(f"seed {seed}: {error}")
            continue
        of_steps = [checkpoint_measures(step) for step in [*sorted(folder.glob("step-*")), final]]
        # The chosen step may be one of the checkpoints.
        table = pd.concat(of_steps, ignore_index=True).drop_duplicates(["step", "head", "quantity"])
        table = table.sort_values("step", kind="stable", ignore_index=True)
        measured.append(table.assign(seed=seed)[["seed", *table]])
        of_stages.append(stages(final).assign(seed=seed))
        of_heads.append(heads(loading.load(final)).assign(seed=seed))
        done = [int(part["seed"].iloc[0]) for part in measured]
        provenance = {
            "study": STUDY, "version": VERSION, "model": NAME, "seeds": done, "recipe": recipe(), "prompts": PROMPTS,
            "n": table.groupby("quantity")["n"].max().to_dict(), "date": date.today().isoformat(), "machine": machine(),
            "libraries": {name: version(name) for name in ("torch", "transformers", "numpy")},
        }  # fmt: skip
        together = [pd.concat(parts, ignore_index=True) for parts in (measured, of_heads, of_stages)]
        together[0] = wide(together[0])
        for name, one in zip((MEASURES, HEADS, STAGES), together, strict=True):
            tables.save(one[["seed", *one.columns.drop("seed")]], out, name, provenance)
        print(f"seed {seed}: {len(of_steps)} checkpoints, {(time.monotonic() - start) / 60:.0f} minutes", flush=True)
    return failed


def main() -> None:
    """Read the command line, train and measure."""
    parser = argparse.ArgumentParser(prog="python -m miniatures.along_training", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", default="0,1,2", help="numbers with commas between them; default: 0,1,2")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the tables")
    parser.add_argument("--checkpoints", type=Path, help="default: checkpoints/along-training")
    args = parser.parse_args()
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {args.seeds}: give whole numbers with commas between them, such as 0,1,2")
    try:
        checkpoints = args.checkpoints or data_folder().parent / "checkpoints" / STUDY
        tables.writable(args.out)
        failed = study(seeds, args.out, checkpoints)
    except TwoTowersError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("Stopped. Nothing half-written is left; the same command goes on from here.") from None
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
