"""Which step of the last stage is shipped."""

import copy
from dataclasses import dataclass, field

from miniatures.episodes import VALIDATION_PAIRS
from miniatures.measure import mean, measure

VALIDATION_SEED, VALIDATION_COUNT = 1000, 100
VALIDATION_SETS = tuple(f"{a}/{b}" for pair in VALIDATION_PAIRS for a, b in (pair, pair[::-1]))


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
