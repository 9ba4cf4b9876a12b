"""Train a model of the book from random weights.

    python -m training.train mini-gpt2

The same command continues a run that was stopped.
"""

import argparse
from pathlib import Path

from twotowers.errors import TwoTowersError

from training.configuration import CONFIGURATIONS
from training.tokenizer import DATA
from training.trainer import Trainer

SEED = 0  # of the included models


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=CONFIGURATIONS, help="model to train")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="seed (default: that of the included model)"
    )
    parser.add_argument("--out", type=Path, help="folder of the model (default: data/models/NAME)")
    parser.add_argument(
        "--checkpoints", type=Path, help="folder of checkpoints (default: checkpoints/NAME)"
    )
    args = parser.parse_args()
    out = args.out or DATA / "models" / args.name
    try:
        checkpoints = args.checkpoints or DATA.parent / "checkpoints" / args.name
        Trainer(CONFIGURATIONS[args.name], args.seed, checkpoints).run(out)
    except (TwoTowersError, OSError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(
            "interrupted: results so far are kept; run the same command to continue"
        ) from None


if __name__ == "__main__":
    main()
