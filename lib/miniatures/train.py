"""Train a miniature from nothing: python -m miniatures.train mini-gpt2 (or mini-llama, mini-sentences).

A run that was stopped goes on where it stood when the same command is given again.
"""

import argparse
from pathlib import Path

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

from miniatures.sentence_trainer import SentenceTrainer
from miniatures.trainer import Trainer

TRAINERS: dict[str, type[Trainer]] = {"mini-gpt2": Trainer, "mini-llama": Trainer, "mini-sentences": SentenceTrainer}
SEED = 0  # of the shipped models


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m miniatures.train", description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=TRAINERS)
    parser.add_argument("--seed", type=int, default=SEED, help="default: the seed of the shipped model")
    parser.add_argument("--out", type=Path, help="default: data/models/NAME")
    parser.add_argument("--checkpoints", type=Path, help="default: checkpoints/NAME")
    args = parser.parse_args()
    try:
        out = args.out or data_folder() / "models" / args.name
        checkpoints = args.checkpoints or data_folder().parent / "checkpoints" / args.name
        TRAINERS[args.name](args.name, args.seed, checkpoints).run(out)
    except TwoTowersError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("Stopped. Nothing half-written is left; the same command goes on from here.") from None


if __name__ == "__main__":
    main()
