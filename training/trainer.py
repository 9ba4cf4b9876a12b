"""How a model is trained from nothing: drills, then episodes. The shipped step is chosen on
validation prompts.

Stages, each until the loss of its last batches is low enough (`text.Text` draws them):
    repeats      arbitrary tokens, then the same again         -> induction heads
    recall       "word label", the same pairs in two orders    -> look a word up
    echoes       "word : label word"                           -> labels look two positions back
    half         recall, with a colon in the first copy        -> labels are found by their word
    colon        recall, with a colon in both copies           -> colons ask for their word
    episodes     "word : label" with one label for each class  -> look a class up
The last stage runs a fixed number of updates. One thread and one seed: the same machine and the
same version of torch give the same weights, others give similar ones.

All that the next update depends on is written to CHECKPOINTS/state.pt now and then: a run that was
killed goes on from there and ends with the same weights as one that was not.
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
    """12 hexadecimal digits over the code of this folder, the word lists and the version of
    torch."""
    digest = hashlib.sha256(torch.__version__.encode())
    for file in [
        *sorted(Path(__file__).parent.glob("*.py")),
        *(DATA / "words" / name for name in ("words.csv", "common.txt")),
    ]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@dataclass
class Progress:
    """Where a stage stands: batches so far, the smoothed loss, and the probability that a word
    repeats exactly."""

    stage: str = ""
    count: int = 0
    smooth: float = 9.0
    repeat: float = 1.0
    last_repeat: int = 0


def worth(row: dict) -> tuple[int, float]:
    """By what the shipped step is chosen, larger is better.

    Among the steps that are right on at least FLOOR percent in the weakest set, that fall by at
    least FALL points in both other orders and are right in half of them (one that answers by place
    is not): how often a step is right over the three orders. Without such a step: how far it is
    off.
    """
    in_others = row["original"] - max(row["balance"], row["order"])
    short = min(row["weakest"] - FLOOR, row["balance"] - FALL, row["order"] - FALL, in_others - 50)
    return (0, short) if short < 0 else (1, row["original"] - (row["balance"] + row["order"]) / 3)


class Trainer:
    """A model, its optimiser and its text; `step` counts the updates of all stages."""

    def __init__(
        self, configuration: Configuration, seed: int, checkpoints: Path | None, quiet: bool = False
    ):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.configuration, self.seed = configuration, seed
        self.checkpoints, self.quiet = checkpoints, quiet
        self.recipe = recipe()
        self.tokenizer = build_tokenizer()
        self.text = Text(word_ids(self.tokenizer), seed)
        self.model = new_model(configuration, len(self.tokenizer))
        self.optimiser = self.new_optimiser()
        self.step, self.rate = 0, configuration.rate
        self.stages: list[tuple[str, int]] = []  # name of a stage and the step at which it ended
        self.at = Progress()
        self.log: list[dict] = []  # validations
        self.best: dict | None = None  # the one whose weights are shipped
        self.best_weights: dict | None = None

    def new_optimiser(self) -> torch.optim.Optimizer:
        rate, decay = self.configuration.rate, self.configuration.weight_decay
        return torch.optim.AdamW(
            self.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=True
        )

    def train(self, batch) -> float:
        """One update on (ids, mask), both (batch, length); returns the loss where something is
        asked for (nats)."""
        ids, mask = (torch.from_numpy(array) for array in batch)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1.0, (self.step + 1) / 100)
        states = self.model.base_model(ids, use_cache=False).last_hidden_state[:, :-1]
        targets = mask[:, 1:].bool()
        # Logits only where something is asked for: half of the time would go into the unembedding
        # otherwise.
        loss = cross_entropy(self.model.lm_head(states[targets]), ids[:, 1:][targets])
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def bar(self, stage: str, total: int | None = None) -> tqdm:
        """A progress bar from where the stage stands; in a log file it writes twice a minute."""
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
        """Train on draw(), and on beside() at every second step, until the smoothed loss of draw()
        is under enough."""
        if name in dict(self.stages):
            return
        if self.at.stage != name:
            self.at = Progress(name)
        with self.bar(name) as bar:
            while self.at.smooth >= enough:
                if self.at.count == patience:
                    raise TwoTowersError(
                        f"{name}: the loss stayed at {self.at.smooth:.2f}: try another --seed"
                    )
                self.at.smooth = 0.97 * self.at.smooth + 0.03 * self.train(draw())
                if beside is not None and self.at.count % 2 == 0:
                    self.train(beside())
                self.advance(bar)
        self.end_stage(name)
        self.save_state()

    def advance(self, bar: tqdm) -> None:
        """One batch of the stage is done."""
        self.at.count += 1
        if self.at.count % self.configuration.save_every == 0:
            self.save_state()
        bar.set_postfix(loss=f"{self.at.smooth:.2f}", refresh=False)
        bar.update()

    def end_stage(self, name: str) -> None:
        """Keep the weights with which a stage ends."""
        self.stages.append((name, self.step))
        if self.checkpoints is not None:  # a folder that loads like a model
            self.save(self.checkpoints / f"step-{self.step:06d}")

    def early_stages(self) -> None:
        """From random weights to looking up a word over a colon."""
        text, batch = self.text, self.configuration.batch
        self.until("few repeats", lambda: text.repeats(batch, pool=100), 0.8)
        self.until("repeats", lambda: text.repeats(batch), 0.8)
        self.until("recall", lambda: text.recall(batch, False, False), 0.4)
        # One copy at a time gets its colon: first labels have to find their word two positions back
        # (which echoes teach by itself), then the colon has to ask in place of the word.
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
        """The last stage."""
        if self.at.stage != "episodes":
            self.at = Progress("episodes", smooth=3.0)
            self.begin_episodes()
        with self.bar("episodes", self.configuration.updates) as bar:
            for count in range(self.at.count + 1, self.configuration.updates + 1):
                self.episode(count)
                if count % self.configuration.validate_every == 0:
                    self.log.append({"step": self.step, **self.validate()})
                self.advance(bar)
        if self.at.last_repeat:
            self.stages.append(("episodes without exact repeats from", self.at.last_repeat))
        self.end_stage("end")

    def begin_episodes(self) -> None:
        """Text of another seed, and a fresh optimiser."""
        self.optimiser = self.new_optimiser()
        self.text = Text(self.text.words, self.seed + 1)

    def episode(self, count: int) -> None:
        """A batch of episodes, numbered from 1; beside it a little recall and plain lists. Exact
        repeats get fewer as the loss falls."""
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

    def validate(self) -> dict[str, float]:
        """Accuracy (percent), that of the weakest set, and the falls without a true demonstration
        and reordered (points).

        Keeps the weights when this step is the best so far.
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
        """All stages, from where an interrupted run of the same kind stood; the shipped weights and
        their card in `out`.

        Checkpoints of any other run are removed first: two runs must not mix.
        """
        if not self.take_up() and self.checkpoints is not None:
            for old in self.checkpoints.glob("step-*"):
                shutil.rmtree(old)
        self.early_stages()
        self.episodes()
        assert self.best is not None and self.best_weights is not None
        self.model.load_state_dict(self.best_weights)
        self.step = self.best["step"]
        self.save(out, with_card=True)
        if self.checkpoints is not None:
            (self.checkpoints / STATE).unlink(missing_ok=True)

    def record(self) -> dict:
        """training.json: how the weights came about, and what prompts they were made for."""
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
        """Write model, tokenizer and training.json to `folder`, whole or not at all."""
        partial, old = (folder.with_name(f".{folder.name}.{what}") for what in ("partial", "old"))
        for path in (partial, old):
            shutil.rmtree(path, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            (partial / "training.json").write_text(
                json.dumps(self.record(), indent=1) + "\n", encoding="utf-8"
            )
            if with_card:
                card.write(partial, self.model.eval(), self.tokenizer, self.record())
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)

    def save_state(self) -> None:
        """Write all that the next update depends on to CHECKPOINTS/state.pt, whole or not at
        all."""
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
        """Go on from the saved state of a run of this configuration, seed and recipe; whether there
        was one."""
        if self.checkpoints is None or not (self.checkpoints / STATE).is_file():
            return False
        state = torch.load(self.checkpoints / STATE, weights_only=True)
        if state["run"] != [repr(self.configuration), self.seed, self.recipe]:
            return False
        self.at = Progress(**state["at"])
        if self.at.stage == "episodes":
            self.begin_episodes()
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        python, self.text.numpy.bit_generator.state = state["random"]
        self.text.random.setstate(python)
        vars(self).update(state["reached"])
        return True
