"""Training of a model from random weights: drills, then episodes, then a choice of the step.

Each stage ends when the loss of its last batches is low enough (`text.Text` draws them):
    repeats      arbitrary tokens, then the same again         -> induction heads
    recall       "word label", the same pairs in two orders    -> look a word up
    echoes       "word : label word"                           -> labels look two positions back
    half         recall, with a colon in the first copy        -> labels are found by their word
    colon        recall, with a colon in both copies           -> colons ask for their word
    episodes     "word : label" with one label for each class  -> look a class up
The last stage has a fixed number of updates. The step is chosen on validation prompts. With
one thread and one seed, the same machine and the same version of torch give the same weights, and
others give similar ones.

Everything that the next update depends on is written to CHECKPOINTS/state.pt at intervals. A run
that was killed continues from this file, and ends with the same weights as an uninterrupted run.
"""

import copy
import hashlib
import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers.utils import logging
from twotowers.errors import TwoTowersError

from training import card, prompts
from training.configuration import Configuration, new_model
from training.text import VALIDATION_PAIRS, Text
from training.tokenizer import DATA, LABELS, build_tokenizer, word_ids

logging.disable_progress_bar()  # one bar is enough
STATE = "state.pt"
VALIDATION_SEED = 1000
VALIDATION_SETS = tuple(f"{a}/{b}" for pair in VALIDATION_PAIRS for a, b in (pair, pair[::-1]))
FLOOR, FALL = 94.0, 7.0  # percent, points: see `worth`


def recipe() -> str:
    """Return 12 hexadecimal digits of a digest of the training's sources.

    The sources are the code of this folder, the word lists and the version of torch.
    """
    digest = hashlib.sha256(torch.__version__.encode())
    for file in [
        *sorted(Path(__file__).parent.glob("*.py")),
        *(DATA / "words" / name for name in ("words.csv", "common.txt")),
    ]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@dataclass
class Progress:
    """Progress of a stage.

    Attributes:
        stage: Name of the stage.
        count: Number of batches so far.
        smooth: Smoothed loss (nats).
        repeat: Probability that a word repeats exactly.
        last_repeat: Step at which this probability fell last.
    """

    stage: str = ""
    count: int = 0
    smooth: float = 9.0
    repeat: float = 1.0
    last_repeat: int = 0


def worth(row: dict) -> tuple[int, float]:
    """Return the criterion by which the step is chosen; larger is better.

    A step is eligible if it is right on at least FLOOR percent in the weakest set, falls by at
    least FALL points in both other orders, and is right on half of the prompts in these. A step
    that answers by position is not eligible. The worth of an eligible step is its mean accuracy
    over the three orders. The worth of any other step is its distance from these bounds.

    Args:
        row: A validation (`Trainer._validate`).
    """
    in_others = row["original"] - max(row["balance"], row["order"])
    short = min(row["weakest"] - FLOOR, row["balance"] - FALL, row["order"] - FALL, in_others - 50)
    return (0, short) if short < 0 else (1, row["original"] - (row["balance"] + row["order"]) / 3)


class Trainer:
    """A model, its optimiser and its text; `step` counts the updates of all stages."""

    def __init__(
        self, configuration: Configuration, seed: int, checkpoints: Path | None, quiet: bool = False
    ):
        """Make a model with random weights.

        Args:
            configuration: Configuration of the model.
            seed: Seed of weights and text.
            checkpoints: Folder of saved states; None to save none.
            quiet: Whether progress bars are hidden.
        """
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.configuration, self.seed = configuration, seed
        self.checkpoints, self.quiet = checkpoints, quiet
        self.recipe = recipe()
        self.tokenizer = build_tokenizer()
        self.text = Text(word_ids(self.tokenizer), seed)
        self.model = new_model(configuration, len(self.tokenizer))
        self.optimiser = self._new_optimiser()
        self.step, self.rate = 0, configuration.rate
        self.stages: list[tuple[str, int]] = []  # stage and the step at which it ended
        self.at = Progress()
        self.log: list[dict] = []  # validations
        self.best: dict | None = None  # the validation whose weights are chosen
        self.best_weights: dict | None = None

    def _new_optimiser(self) -> torch.optim.Optimizer:
        """Return an optimiser of the model without any history."""
        rate, decay = self.configuration.rate, self.configuration.weight_decay
        return torch.optim.AdamW(
            self.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=True
        )

    def train(self, batch) -> float:
        """Update the model on one batch.

        Args:
            batch: ids and mask, both (batch, length).

        Returns:
            Loss at the tokens that are asked (nats).
        """
        ids, mask = (torch.from_numpy(array) for array in batch)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1.0, (self.step + 1) / 100)
        states = self.model.base_model(ids, use_cache=False).last_hidden_state[:, :-1]
        targets = mask[:, 1:].bool()
        # Logits are computed only for targets: otherwise the unembedding takes half of the time.
        loss = cross_entropy(self.model.lm_head(states[targets]), ids[:, 1:][targets])
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def bar(self, stage: str, total: int | None = None) -> tqdm:
        """Return a progress bar that begins at the current batch of the stage.

        In a log file it writes twice a minute.

        Args:
            stage: Name of the stage.
            total: Number of batches, if it is known.
        """
        name, interval = f"{self.configuration.name} {stage}", 0.1 if sys.stderr.isatty() else 30
        return tqdm(
            desc=name,
            total=total,
            initial=self.at.count,
            unit="step",
            disable=self.quiet,
            mininterval=interval,
        )

    def until(self, name: str, draw, enough: float, beside=None, patience: int = 6000) -> None:
        """Train until the smoothed loss on the batches of a stage is low enough.

        Args:
            name: Name of the stage.
            draw: Function that draws a batch of the stage.
            enough: Loss below which the stage ends (nats).
            beside: Function that draws a further batch for every second step.
            patience: Maximum number of batches.

        Raises:
            TwoTowersError: If the loss is not low enough after this number of batches.
        """
        if name in dict(self.stages):
            return
        if self.at.stage != name:
            self.at = Progress(name)
        with self.bar(name) as bar:
            while self.at.smooth >= enough:
                if self.at.count == patience:
                    raise TwoTowersError(
                        f"cannot train '{name}': the loss stayed at {self.at.smooth:.2f}; try "
                        "another --seed"
                    )
                self.at.smooth = 0.97 * self.at.smooth + 0.03 * self.train(draw())
                if beside is not None and self.at.count % 2 == 0:
                    self.train(beside())
                self.advance(bar)
        self._end_stage(name)
        self._save_state()

    def advance(self, bar: tqdm) -> None:
        """Count one batch of the stage, and save the state at intervals.

        Args:
            bar: Progress bar of the stage.
        """
        self.at.count += 1
        if self.at.count % self.configuration.save_every == 0:
            self._save_state()
        bar.set_postfix(loss=f"{self.at.smooth:.2f}", refresh=False)
        bar.update()

    def _end_stage(self, name: str) -> None:
        """Save the weights with which a stage ends.

        Args:
            name: Name of the stage.
        """
        self.stages.append((name, self.step))
        if self.checkpoints is not None:  # a folder that loads like a model
            self.save(self.checkpoints / f"step-{self.step:06d}")

    def _early_stages(self) -> None:
        """Train all drills, from random weights to looking up a word over a colon."""
        text, batch = self.text, self.configuration.batch
        self.until("few repeats", lambda: text.repeats(batch, pool=100), 0.8)
        self.until("repeats", lambda: text.repeats(batch), 0.8)
        self.until("recall", lambda: text.recall(batch, False, False), 0.4)
        # One copy at a time gets its colon. First, labels have to find their word two positions
        # back, which echoes alone teach. Then the colon has to ask in place of the word.
        self.until(
            "echoes", lambda: text.echoes(batch), 0.4, lambda: text.recall(batch, False, False)
        )
        self.until(
            "half", lambda: text.recall(batch, True, False), 0.4, lambda: text.echoes(batch // 2)
        )
        self.until(
            "colon",
            lambda: text.recall(batch, True, True),
            0.4,
            lambda: text.recall(batch, True, False),
        )

    def episodes(self) -> None:
        """Train the last stage."""
        if self.at.stage != "episodes":
            self.at = Progress("episodes", smooth=3.0)
            self._begin_episodes()
        with self.bar("episodes", self.configuration.updates) as bar:
            for count in range(self.at.count + 1, self.configuration.updates + 1):
                self.episode(count)
                if count % self.configuration.validate_every == 0:
                    self.log.append({"step": self.step, **self._validate()})
                self.advance(bar)
        if self.at.last_repeat:
            self.stages.append(("episodes without exact repeats from", self.at.last_repeat))
        self._end_stage("end")

    def _begin_episodes(self) -> None:
        """Begin text of another seed, with a new optimiser."""
        self.optimiser = self._new_optimiser()
        self.text = Text(self.text.words, self.seed + 1)

    def episode(self, count: int) -> None:
        """Train on a batch of episodes, with a little recall and plain lists.

        Exact repeats become fewer as the loss falls.

        Args:
            count: Number of the batch, counted from 1.
        """
        at, text, batch = self.at, self.text, self.configuration.batch
        self.rate = self.configuration.rate * (1 - 0.9 * count / self.configuration.updates)
        if count % 8 == 0:
            self.train(text.recall(batch // 2, True, True))
        if count % 4 == 0:
            self.train(text.lists(batch // 2))
        at.smooth = 0.95 * at.smooth + 0.05 * self.train(text.episodes(batch, at.repeat))
        if at.repeat > 0 and at.smooth < 0.75:
            at.repeat, at.smooth = max(0.0, round(at.repeat - 0.1, 1)), at.smooth + 0.1
            at.last_repeat = self.step

    def _validate(self) -> dict[str, float]:
        """Measure the model on validation prompts, and keep the weights of the best step so far.

        Returns:
            Accuracy and the accuracy of the weakest set (percent); the falls without a true
                demonstration and with reordered demonstrations (points).
        """
        self.model.eval()
        n = self.configuration.validation_prompts
        sets = [
            prompts.word_prompts(name, n, VALIDATION_SEED, label)
            for name in VALIDATION_SETS
            for label in prompts.LABELS
        ]
        percent = {
            order: [prompts.accuracy(self.model, self.tokenizer, some, order) for some in sets]
            for order in prompts.ORDERS
        }
        self.model.train()
        mean = {order: sum(values) / len(values) for order, values in percent.items()}
        original = mean["original"]
        row = {"original": original, "weakest": min(percent["original"])}
        row |= {"balance": original - mean["imbalanced"], "order": original - mean["reordered"]}
        if self.best is None or worth(row) > worth(self.best):
            self.best = {"step": self.step, **row}
            self.best_weights = copy.deepcopy(self.model.state_dict())
        return row

    def run(self, out: Path) -> None:
        """Train all stages, and save the chosen weights and their card.

        An interrupted run with the same configuration, seed and recipe continues. Checkpoints of
        any other run are removed first, so that two runs do not mix.

        Args:
            out: Folder of the included model.
        """
        if not self.take_up() and self.checkpoints is not None:
            for old in self.checkpoints.glob("step-*"):
                shutil.rmtree(old)
        self._early_stages()
        self.episodes()
        assert self.best is not None and self.best_weights is not None
        self.model.load_state_dict(self.best_weights)
        self.step = self.best["step"]
        self.save(out, with_card=True)
        if self.checkpoints is not None:
            (self.checkpoints / STATE).unlink(missing_ok=True)

    def summary(self) -> dict:
        """Return the contents of training.json: origin and prompt template of the weights."""
        return {
            "name": self.configuration.name,
            "seed": self.seed,
            "step": self.step,
            "recipe": self.recipe,
            "made_with": f"torch {torch.__version__}, Python {platform.python_version()}",
            "labels": LABELS,
            "form": {"k": prompts.K, "separator": "space"},
            "stages": self.stages,
            "validation": [{key: round(of, 2) for key, of in row.items()} for row in self.log],
        }

    def save(self, folder: Path, with_card: bool = False) -> None:
        """Write model, tokenizer and training.json to a folder, whole or not at all.

        Args:
            folder: Folder of the model.
            with_card: Whether the model is measured for its card.
        """
        partial, old = (folder.with_name(f".{folder.name}.{what}") for what in ("partial", "old"))
        for path in (partial, old):
            shutil.rmtree(path, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            (partial / "training.json").write_text(
                json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8"
            )
            if with_card:
                card.write(partial, self.model.eval(), self.tokenizer, self.summary())
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)

    def _save_state(self) -> None:
        """Write the state of the run to CHECKPOINTS/state.pt, whole or not at all.

        The next update depends on nothing else.
        """
        if self.checkpoints is None:
            return
        state = {
            "run": [repr(self.configuration), self.seed, self.recipe],
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": [self.text.random.getstate(), self.text.numpy.bit_generator.state],
            "at": asdict(self.at),
            "reached": {
                name: getattr(self, name)
                for name in ("step", "rate", "stages", "log", "best", "best_weights")
            },
        }
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoints / f"{STATE}.partial"
        torch.save(state, partial)
        os.replace(partial, self.checkpoints / STATE)

    def take_up(self) -> bool:
        """Continue from the saved state of a run with this configuration, seed and recipe.

        Returns:
            Whether there was such a state.
        """
        if self.checkpoints is None or not (self.checkpoints / STATE).is_file():
            return False
        state = torch.load(self.checkpoints / STATE, weights_only=True)
        if state["run"] != [repr(self.configuration), self.seed, self.recipe]:
            return False
        self.at = Progress(**state["at"])
        if self.at.stage == "episodes":
            self._begin_episodes()
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        python, self.text.numpy.bit_generator.state = state["random"]
        self.text.random.setstate(python)
        vars(self).update(state["reached"])
        return True
