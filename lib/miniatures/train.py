"""Train a miniature from nothing: python data/models/train.py mini-gpt2 (or mini-llama, mini-sentences).

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
"""

import argparse
import copy
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from build_tokenizer import CONTEXT, build_tokenizer
from card import write_card
from episodes import VALIDATION_PAIRS, Text, Unevenness
from measure import mean, measure
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging
from twotowers.errors import TwoTowersError

logging.disable_progress_bar()  # one bar is enough
NAMES = ("mini-gpt2", "mini-llama", "mini-sentences")
SEEDS = dict.fromkeys(NAMES, 0)
# The same text leaves the Llama with less of a bias, so its last stage is a little less tidy still.
UNEVEN = {"mini-gpt2": Unevenness(), "mini-llama": Unevenness(wrong_label=0.18, wrong_word=0.18)}
HERE = Path(__file__).parent
WIDTH, LAYERS, HEADS = 96, 4, 8
BATCH, RATE = 64, 2e-3
EPISODE_STEPS = {"mini-gpt2": 1500, "mini-llama": 1500}
VALIDATION_SEED, VALIDATION_COUNT = 1000, 100
VALIDATION_SETS = tuple(f"{a}/{b}" for pair in VALIDATION_PAIRS for a, b in (pair, pair[::-1]))
KEPT = (100, 300, 600, 900, 1200)  # steps of the last stage of which a checkpoint is kept


def new_model(name: str, vocabulary: int) -> PreTrainedModel:
    """A small model of the paper's two kinds, with random weights."""
    shared = {
        "vocab_size": vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    if name == "mini-llama":
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=WIDTH,
                intermediate_size=8 * WIDTH // 3,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                num_key_value_heads=HEADS // 2,
                max_position_embeddings=CONTEXT,
                **shared,
            )
        )
    model = GPT2LMHeadModel(
        GPT2Config(
            n_positions=CONTEXT,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=0.06,
            **shared,
        )
    )
    # Learned positions start as waves: neighbours are alike from the first step, and positions beyond the
    # longest training text (51 tokens) are not mere noise.
    half = WIDTH // 2
    angles = torch.arange(CONTEXT)[:, None] * 2.5 * torch.exp(-math.log(60) * torch.arange(half) / half)
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(0.05 * torch.cat([angles.sin(), angles.cos()], dim=-1))
    return model


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
class Choice:
    """The measured step to ship, chosen on validation prompts only.

    Among the steps that are right on at least FLOOR percent of the prompts in the weakest set, and that fall by at
    least FALL points without the last true demonstration and with the true ones first: the one that is right most
    often over the three orders. In words: the best learner to which balance and order still matter.
    """

    EVERY, FLOOR, FALL = 50, 94.0, 7.0
    log: list[dict] = field(default_factory=list)
    best: dict | None = None
    weights: dict | None = None

    def offer(self, step: int, model, tokenizer) -> dict:
        """Measure the model as it stands and keep it if it is preferred; returns the row of the log."""
        rows = measure(model, tokenizer, VALIDATION_SETS, VALIDATION_COUNT, VALIDATION_SEED)
        original = mean(rows, "original")
        row = {
            "step": step,
            "original": original,
            "weakest": min(r["original"] for r in rows),
            "balance": original - mean(rows, "imbalanced"),
            "order": original - mean(rows, "reordered"),
        }
        self.log.append(row)
        if self.best is None or self.worth(row) > self.worth(self.best):
            self.best, self.weights = row, copy.deepcopy(model.state_dict())
        return row

    def worth(self, row: dict) -> tuple[int, float]:
        """What is compared: does the step qualify, then how often it is right; without one, how far it is off."""
        short = min(row["weakest"] - self.FLOOR, row["balance"] - self.FALL, row["order"] - self.FALL)
        if short < 0:
            return (0, short)
        return (1, row["original"] - (row["balance"] + row["order"]) / 3)


class Trainer:
    """A model, its optimiser and its text; `step` counts the updates of all stages."""

    def __init__(self, name: str, seed: int, checkpoints: Path | None, quiet: bool = False):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.name, self.seed, self.checkpoints, self.quiet = name, seed, checkpoints, quiet
        self.prepare()
        self.optimiser = self.new_optimiser()
        self.step, self.rate = 0, RATE
        self.stages: list[tuple[str, int]] = []  # name of a stage and the step it ended at
        self.choice = Choice()
        self.log = self.choice.log  # what was measured on the way

    def prepare(self) -> None:
        """Set `tokenizer`, `text` and `model`."""
        self.tokenizer = build_tokenizer()
        vocabulary = self.tokenizer.get_vocab()
        self.text = Text({p[1:]: i for p, i in vocabulary.items() if p.startswith("Ġ") and len(p) > 1}, self.seed)
        self.model = new_model(self.name, len(self.tokenizer))

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

    def until(self, name: str, draw, enough: float, beside=None, patience: int = 6000) -> None:
        """Train on draw(), and on beside() at every second step, until draw's loss is under enough."""
        smooth = 9.0
        with tqdm(desc=f"{self.name} {name}", unit="step", disable=self.quiet) as bar:
            for count in range(patience):
                smooth = 0.97 * smooth + 0.03 * self.train(draw())
                if beside is not None and count % 2 == 0:
                    self.train(beside())
                bar.update()
                bar.set_postfix(loss=f"{smooth:.2f}", refresh=False)
                if smooth < enough:
                    break
            else:
                raise SystemExit(f"{name}: the loss stayed at {smooth:.2f}; try another --seed")
        self.stages.append((name, self.step))
        self.keep()

    def episodes(self) -> None:
        """The last stage: steps batches of episodes, a little recall and plain lists beside them."""
        steps = EPISODE_STEPS[self.name]
        # A fresh optimiser and a fresh seed, so that this stage can be run by itself from a checkpoint.
        self.text = Text(self.text.words, self.seed + 1, UNEVEN[self.name])
        self.optimiser = self.new_optimiser()
        smooth, repeat, ended, right = 3.0, 1.0, 0, {}
        with tqdm(desc=f"{self.name} episodes", total=steps, unit="step", disable=self.quiet) as bar:
            for count in range(1, steps + 1):
                self.rate = RATE * (1 - 0.9 * count / steps)
                if count % 8 == 0:
                    self.train(self.text.recall(BATCH // 2, True, True))
                if count % 4 == 0:
                    self.train(self.text.lists(BATCH // 2))
                smooth = 0.95 * smooth + 0.05 * self.train(self.text.episodes(BATCH, repeat))
                if repeat > 0 and smooth < 0.75:
                    repeat, smooth = max(0.0, round(repeat - 0.1, 1)), smooth + 0.1
                    ended = self.step
                if count % Choice.EVERY == 0:
                    row = self.choice.offer(self.step, self.model, self.tokenizer)
                    right = {key: f"{value:.0f}" for key, value in row.items() if key != "step"}
                if count in KEPT:
                    self.keep()
                bar.update()
                bar.set_postfix(loss=f"{smooth:.2f}", **right, refresh=False)
        self.stages += [("episodes without exact repeats from", ended), ("end", self.step)]
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
            record["validation"] = [{k: round(v, 2) for k, v in row.items()} for row in self.log]
            (partial / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            if card is not None:
                card(partial)

    def resume(self, checkpoint: Path) -> None:
        """Take up the weights of a checkpoint kept at the end of the stage "colon"."""
        record = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))
        if record["name"] != self.name or record["stages"][-1][0] != "colon":
            raise SystemExit(f'{checkpoint} is not where the stage "colon" of {self.name} ended')
        self.model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=False)  # tied weights once
        self.seed, self.step, self.stages = record["seed"], record["step"], record["stages"]

    def early_stages(self) -> None:
        """From random weights to looking up a word over a colon."""
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

    def run(self, out: Path, checkpoint: Path | None = None) -> None:
        """All stages, or the last from a checkpoint; then the chosen weights and their card in `out`."""
        if checkpoint is None:
            self.early_stages()
        else:
            self.resume(checkpoint)
        self.episodes()
        self.choose()
        self.save(out, card=self.write_card)

    def choose(self) -> None:
        """Take up the weights that are shipped."""
        self.model.load_state_dict(self.choice.weights)
        self.step = self.choice.best["step"]

    def write_card(self, folder: Path) -> None:
        """Measure the model and write its card into `folder`."""
        write_card(folder, self)


def trainer(name: str) -> type[Trainer]:
    """What trains a miniature; reading sentences needs their files, so it is imported only where it is asked for."""
    if name != "mini-sentences":
        return Trainer
    from train_sentences import SentenceTrainer

    return SentenceTrainer


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a miniature and write its folder, card included.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--seed", type=int, help="default: the seed of the shipped model")
    parser.add_argument("--out", type=Path, help="default: data/models/NAME")
    parser.add_argument("--checkpoints", type=Path, help="default: checkpoints/NAME")
    parser.add_argument("--resume", type=Path, help="a checkpoint at the end of `colon`: run the last stage only")
    args = parser.parse_args()
    seed = SEEDS[args.name] if args.seed is None else args.seed
    checkpoints = args.checkpoints or HERE.parents[1] / "checkpoints" / args.name
    if args.resume is None:
        for old in checkpoints.glob("step-*"):
            shutil.rmtree(old)  # checkpoints of two runs must not mix
    try:
        trainer(args.name)(args.name, seed, checkpoints).run(args.out or HERE / args.name, args.resume)
    except TwoTowersError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("Stopped. Nothing half-written is left; the finished checkpoints are.") from None


if __name__ == "__main__":
    main()
