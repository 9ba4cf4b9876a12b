"""How a miniature is trained from nothing; the command is `python -m miniatures.train mini-gpt2` (or mini-llama).

Stages, each until the loss of the last steps is low enough (episodes.py draws the text):
    repeats      arbitrary tokens twice over                   -> induction heads
    recall       "word label", the same pairs in two orders    -> look a word up
    echoes       "word : label word"                           -> labels look two places back
    half         recall, with a colon in the first copy        -> labels are found by their word
    colon        recall, with a colon in both copies           -> colons ask for their word
    episodes     "word : label" with one label for each class  -> look a class up
The last stage runs a fixed number of steps. Every 50 steps the validation prompts are measured, and the
shipped weights are those of the measured step that `Choice` prefers. One thread and one seed: the same
machine and the same version of torch give the same weights, others give similar ones.

Everything that the next update depends on is written to CHECKPOINTS/state.pt now and then, so a run that was killed
goes on from there and ends with the same weights as one that was not.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers.utils import logging
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

from miniatures.card import write_card
from miniatures.choice import Choice
from miniatures.episodes import Text, Unevenness
from miniatures.new_model import new_model
from miniatures.tokenizer import build_tokenizer

logging.disable_progress_bar()  # one bar is enough
# The same text leaves the Llama with less of a bias, so its last stage is a little less tidy still.
UNEVEN = {"mini-gpt2": Unevenness(), "mini-llama": Unevenness(wrong_label=0.18, wrong_word=0.18)}
BATCH, RATE = 64, 2e-3
EPISODE_STEPS = {"mini-gpt2": 1500, "mini-llama": 1500}
KEPT = (100, 300, 600, 900, 1200)  # steps of the last stage of which a checkpoint is kept
STATE, STATE_EVERY = "state.pt", 100  # batches between two saved states
# What the weights depend on; a state that other files left behind is not taken up.
RECIPE = ("tokenizer", "episodes", "measure", "choice", "new_model", "trainer", "sentence_text", "sentence_trainer")


def recipe() -> str:
    """12 hexadecimal digits over the files that make the weights, the word lists and the version of torch."""
    digest = hashlib.sha256(torch.__version__.encode())
    for file in [*(Path(__file__).with_name(f"{name}.py") for name in RECIPE), data_folder() / "words" / "words.csv"]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def whole_or_nothing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` on success and is thrown away on failure or Ctrl-C."""
    partial = folder.with_name(f".{folder.name}.partial")
    old = folder.with_name(f".{folder.name}.old")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            old.rename(folder)


@dataclass
class Progress:
    """Where a stage stands: its batches so far, the smoothed loss, and of episodes how many words repeat exactly."""

    stage: str = ""
    count: int = 0
    smooth: float = 9.0
    repeat: float = 1.0
    last_repeat: int = 0


class Trainer:
    """A model, its optimiser and its text; `step` counts the updates of all stages."""

    def __init__(self, name: str, seed: int, checkpoints: Path | None, quiet: bool = False):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.name, self.seed, self.checkpoints, self.quiet = name, seed, checkpoints, quiet
        self.run_id = [name, seed, recipe()]
        self.prepare()
        self.optimiser = self.new_optimiser()
        self.step, self.rate = 0, RATE
        self.stages: list[tuple[str, int]] = []  # name of a stage and the step it ended at
        self.at = Progress()
        self.choice = Choice()

    @property
    def log(self) -> list[dict]:
        """What was measured on the way."""
        return self.choice.log

    def prepare(self) -> None:
        """Set `tokenizer`, `text` and `model`."""
        self.tokenizer = build_tokenizer()
        vocabulary = self.tokenizer.get_vocab()
        self.text = Text({p[1:]: i for p, i in vocabulary.items() if p.startswith("Ġ") and len(p) > 1}, self.seed)
        self.model = new_model(self.name, len(self.tokenizer))

    def networks(self) -> torch.nn.ModuleDict:
        """Everything that is trained."""
        return torch.nn.ModuleDict({"model": self.model})

    def new_optimiser(self) -> torch.optim.Optimizer:
        """AdamW without a past."""
        return torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)

    def train(self, batch) -> float:
        """One update on (ids, mask), both (batch, length); returns the loss in nats."""
        ids, mask = (torch.from_numpy(array) for array in batch)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1.0, (self.step + 1) / 100)
        states = self.model.base_model(ids, use_cache=False).last_hidden_state[:, :-1]
        asked = mask[:, 1:].bool()
        # Only where something is asked: half of the time would go into the unembedding otherwise.
        loss = cross_entropy(self.model.lm_head(states[asked]), ids[:, 1:][asked])
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def bar(self, stage: str, total: int | None = None) -> tqdm:
        """A progress bar that begins where the stage stands; in a log file it says something twice a minute."""
        return tqdm(
            desc=f"{self.name} {stage}", total=total, initial=self.at.count, unit="step", disable=self.quiet,
            mininterval=0.1 if sys.stderr.isatty() else 30,
        )  # fmt: skip

    def until(self, name: str, draw, enough: float, beside=None, patience: int = 6000) -> None:
        """Train on draw(), and on beside() at every second step, until draw's loss is under enough."""
        if name in dict(self.stages):
            return
        if self.at.stage != name:
            self.at = Progress(name)
        with self.bar(name) as bar:
            while self.at.smooth >= enough:
                if self.at.count == patience:
                    raise TwoTowersError(f"{name}: the loss stayed at {self.at.smooth:.2f}: try another --seed")
                self.at.smooth = 0.97 * self.at.smooth + 0.03 * self.train(draw())
                if beside is not None and self.at.count % 2 == 0:
                    self.train(beside())
                bar.set_postfix(loss=f"{self.at.smooth:.2f}", refresh=False)
                self.advance(bar)
        self.stages.append((name, self.step))
        self.keep()
        self.save_state()

    def advance(self, bar: tqdm) -> None:
        """One batch of the stage is done: keep what is to be kept."""
        self.at.count += 1
        if self.keeps(self.at.count):
            self.keep()
        if self.at.count % STATE_EVERY == 0:
            self.save_state()
        bar.update()

    def keeps(self, count: int) -> bool:
        """Whether a checkpoint is kept after this many batches of the stage; those at its end are kept anyway."""
        return self.at.stage == "episodes" and count in KEPT

    def begin_episodes(self) -> None:
        """A fresh optimiser and a fresh seed."""
        self.text = Text(self.text.words, self.seed + 1, UNEVEN[self.name])
        self.optimiser = self.new_optimiser()

    def episodes(self) -> None:
        """The last stage: steps batches of episodes, a little recall and plain lists beside them."""
        steps = EPISODE_STEPS[self.name]
        if self.at.stage != "episodes":
            self.at = Progress("episodes", smooth=3.0)
            self.begin_episodes()
        at, right = self.at, {}
        with self.bar("episodes", steps) as bar:
            for count in range(at.count + 1, steps + 1):
                self.rate = RATE * (1 - 0.9 * count / steps)
                if count % 8 == 0:
                    self.train(self.text.recall(BATCH // 2, True, True))
                if count % 4 == 0:
                    self.train(self.text.lists(BATCH // 2))
                at.smooth = 0.95 * at.smooth + 0.05 * self.train(self.text.episodes(BATCH, at.repeat))
                if at.repeat > 0 and at.smooth < 0.75:
                    at.repeat, at.smooth = max(0.0, round(at.repeat - 0.1, 1)), at.smooth + 0.1
                    at.last_repeat = self.step
                if count % Choice.EVERY == 0:
                    row = self.choice.offer(self.step, self.model, self.tokenizer)
                    right = {key: f"{value:.0f}" for key, value in row.items() if key != "step"}
                bar.set_postfix(loss=f"{at.smooth:.2f}", **right, refresh=False)
                self.advance(bar)
        self.stages += [("episodes without exact repeats from", at.last_repeat), ("end", self.step)]
        self.keep()

    def keep(self) -> None:
        """Keep a checkpoint of this step, if asked to: a folder that loads like a model."""
        if self.checkpoints is not None:
            self.save(self.checkpoints / f"step-{self.step:06d}")

    def save(self, folder: Path, card=None) -> None:
        """Write model and tokenizer to `folder`, wholly or not at all; card(partial folder) may add to it."""
        with whole_or_nothing(folder) as partial:
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            record = {"name": self.name, "seed": self.seed, "step": self.step, "stages": self.stages}
            record["recipe"] = self.run_id[-1]
            record["validation"] = [{k: round(v, 2) for k, v in row.items()} for row in self.log]
            (partial / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            if card is not None:
                card(partial)

    def save_state(self) -> None:
        """Write all that the next update depends on to CHECKPOINTS/state.pt, wholly or not at all."""
        if self.checkpoints is None:
            return
        choice = self.choice
        state = {
            "run": self.run_id,
            "networks": self.networks().state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": [self.text.random.getstate(), self.text.numpy.bit_generator.state],
            "reached": {"step": self.step, "rate": self.rate, "stages": self.stages},
            "progress": asdict(self.at),
            "choice": {"log": choice.log, "best": choice.best, "weights": choice.weights},
        }
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoints / f"{STATE}.partial"
        torch.save(state, partial)
        os.replace(partial, self.checkpoints / STATE)

    def take_up(self) -> bool:
        """Go on from the saved state of a run of this name, seed and recipe; whether there was one."""
        path = None if self.checkpoints is None else self.checkpoints / STATE
        if path is None or not path.is_file():
            return False
        state = torch.load(path, weights_only=True)
        if state["run"] != self.run_id:
            return False
        self.at = Progress(**state["progress"])
        if self.at.stage == "episodes":
            self.begin_episodes()
        self.networks().load_state_dict(state["networks"])
        self.optimiser.load_state_dict(state["optimiser"])
        python, numpy = state["random"]
        self.text.random.setstate(python)
        self.text.numpy.bit_generator.state = numpy
        vars(self).update(state["reached"])
        self.choice = Choice(**state["choice"])
        return True

    def early_stages(self) -> None:
        """From random weights to looking up a word over a colon."""
        if self.step == 0:
            self.keep()
        text = self.text
        learned_positions = self.name == "mini-gpt2"
        if learned_positions:
            self.until("few repeats", lambda: text.repeats(BATCH, True, pool=100), 0.8)
        self.until("repeats", lambda: text.repeats(BATCH, hide_distance=learned_positions), 0.8)
        self.until("recall", lambda: text.recall(BATCH, False, False), 0.4)
        # A colon is put in one copy at a time: first the labels have to find their word two places back (which
        # echoes teach by itself), then the colon has to ask in the place of the word.
        self.until("echoes", lambda: text.echoes(BATCH), 0.4, lambda: text.recall(BATCH, False, False))
        self.until("half", lambda: text.recall(BATCH, True, False), 0.4, lambda: text.echoes(BATCH // 2))
        self.until("colon", lambda: text.recall(BATCH, True, True), 0.4, lambda: text.recall(BATCH, True, False))

    def run(self, out: Path) -> None:
        """All stages, from where an interrupted run of the same kind stood; the chosen weights and their card in `out`.

        Checkpoints of any other run are removed first: two runs must not mix.
        """
        if not self.take_up() and self.checkpoints is not None:
            for old in self.checkpoints.glob("step-*"):
                shutil.rmtree(old)
        self.early_stages()
        self.episodes()
        self.choose()
        self.save(out, card=self.write_card)
        if self.checkpoints is not None:
            (self.checkpoints / STATE).unlink(missing_ok=True)

    def choose(self) -> None:
        """Take up the weights that are shipped."""
        self.model.load_state_dict(self.choice.weights)
        self.step = self.choice.best["step"]

    def write_card(self, folder: Path) -> None:
        """Measure the model and write its card into `folder`."""
        write_card(folder, self)
