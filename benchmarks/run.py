"""The cost of the book's measurements: their time over that of a plain batched forward pass.

    python -m benchmarks.run                                          # CASES: twenty minutes
    python -m benchmarks.run --works heads --tokens 16 --prompts 8    # only prints

The model has the shape of GPT-2 small and random weights. Prompts are random tokens, and there is
one thread. The plain pass and the work are timed in turn on the same prompts, in one process, and
the ratio is taken pair by pair. TransformerLens and nnsight take part if they are installed (make
peers). The numbers of each way are first compared with the numbers of the plain way. A whole run
writes the table in README.md.
"""

import argparse
import importlib.util
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
import transformers
from towerlab.model import attention, unembed
from towerlab.model.architectures import ARCHITECTURES
from towerlab.model.model import Model
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt
from towerlab_experiments.ablations import single_head_ablations
from towerlab_experiments.head_values import increases
from transformers import AutoModelForCausalLM, GPT2Config

from benchmarks.operations import operations

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- written by benchmarks/run.py: begin -->", "<!-- end -->"
CASES = [
    ("heads", 8, 16),
    ("heads", 8, 128),
    ("heads", 200, 16),
    ("ablate all", 8, 16),
    ("ablate last", 8, 16),
]
"""Cases of a whole run: work, number of prompts, number of tokens"""
# Number of tokens of a batch of the plain forward pass. Larger batches are slower on a CPU, and all
# ratios would be too small.
PLAIN_TOKENS = 1024
# Computed anew at each call: increases or falls of log p(true label), (prompt, layer, head), nats
Work = Callable[[], np.ndarray]


def build(config: GPT2Config) -> Model:
    """Return a model with random weights and without a tokenizer.

    Args:
        config: Shape of the model.
    """
    torch.manual_seed(0)
    row = ARCHITECTURES["gpt2"]
    hf = AutoModelForCausalLM.from_config(config, attn_implementation=attention.implementation(row))
    return Model("gpt2", hf.eval().requires_grad_(False), None, row)


def stock(model: Model) -> torch.nn.Module:
    """Return a model with the same weights, as transformers makes it by default.

    It has the cost of a plain forward pass.

    Args:
        model: Any model.
    """
    hf = AutoModelForCausalLM.from_config(type(model.config).from_dict(model.config.to_dict()))
    hf.load_state_dict(model.hf.state_dict(), assign=True)
    return hf.eval().requires_grad_(False)


def draw(config: GPT2Config, n: int, tokens: int) -> list[Encoded]:
    """Return prompts of random tokens with two labels each; all have the same true label.

    Args:
        config: Shape of the model.
        n: Number of prompts.
        tokens: Number of tokens of a prompt.
    """
    prompt = Prompt(
        (Demonstration("a", "foo"), Demonstration("b", "bar")), "c", "foo", ("foo", "bar")
    )
    ids = np.random.default_rng(1).integers(config.vocab_size, size=(n, tokens)).tolist()
    return [
        Encoded(
            prompt, tuple(row), (2, 5), ((0, 1), (3, 4)), (6, 7), tokens - 1, {"foo": 5, "bar": 7}
        )
        for row in ids
    ]


@torch.inference_mode()
def _log_probs(hf: torch.nn.Module, encoded: list[Encoded]) -> torch.Tensor:
    """Return the log-probability of the true label (prompt,) from a plain forward pass.

    Logits are computed only at the last position.

    Args:
        hf: Model of transformers.
        encoded: Prompts.
    """
    ids = torch.tensor([e.ids for e in encoded])
    batches = ids.split(max(1, PLAIN_TOKENS // ids.shape[1]))
    logits = [
        hf(input_ids=some, use_cache=False, logits_to_keep=1).logits[:, -1] for some in batches
    ]
    return torch.cat(logits).log_softmax(-1)[:, encoded[0].true_id]


def book_heads(model: Model, encoded: list[Encoded]) -> Work:
    """Return this book's way to the increases of all heads.

    Args:
        model: Any model.
        encoded: Prompts.
    """
    return lambda: increases(model, encoded)["increase"].values


def _per_layer(model: Model, encoded: list[Encoded], pieces: Callable) -> Work:
    """Return a way to the increases of all heads with one unembedding call for each layer.

    Args:
        model: Any model.
        encoded: Prompts.
        pieces: Function of token ids. At the last position it returns (input, input of W_O,
            attention output, FFN output) of each layer, and the scale of the final norm.
    """
    batches = torch.tensor([e.ids for e in encoded]).split(
        max(1, PLAIN_TOKENS // len(encoded[0].ids))
    )

    def of_layer(layer: int, scale, x, z, attention, ffn) -> torch.Tensor:
        x, z = x[:, None], z.reshape(len(x), model.n_heads, model.d_head)
        after = x + attention[:, None]
        vectors = torch.einsum("bhk,hkd->bhd", z, model.output_weight(layer))
        rows = torch.cat([x, after, after + ffn[:, None], x + vectors], 1)
        log_p = unembed.bs_values(rows, model.unembedding, scale).log_softmax(-1)[
            ..., encoded[0].true_id
        ]
        return log_p[:, 3:] - log_p[:, :1]

    @torch.inference_mode()
    def work():
        passes = map(pieces, batches)
        out = [
            torch.stack([of_layer(i, scale, *of) for i, of in enumerate(layers)], 1)
            for layers, scale in passes
        ]
        return torch.cat(out).numpy()

    return work


def plain_heads(model: Model, encoded: list[Encoded]) -> Work:
    """Return the way to the increases of all heads with plain hooks.

    Args:
        model: Any model.
        encoded: Prompts.
    """
    hf, parts = stock(model), {}
    for i, block in enumerate(hf.transformer.h):
        block.register_forward_pre_hook(lambda _, a, i=i: parts.update({("x", i): a[0][:, -1]}))
        block.attn.c_proj.register_forward_pre_hook(
            lambda _, a, i=i: parts.update({("z", i): a[0][:, -1]})
        )
        block.attn.c_proj.register_forward_hook(
            lambda _, a, o, i=i: parts.update({("a", i): o[:, -1]})
        )
        block.mlp.register_forward_hook(lambda _, a, o, i=i: parts.update({("f", i): o[:, -1]}))
    hf.transformer.ln_f.register_forward_pre_hook(lambda _, a: parts.update(final=a[0][:, -1]))

    def pieces(ids):
        hf(input_ids=ids, use_cache=False, logits_to_keep=1)
        layers = [[parts[kind, i] for kind in "xzaf"] for i in range(model.n_layers)]
        return layers, model.unembedding.norm.scale(parts["final"])[:, None]

    return _per_layer(model, encoded, pieces)


def transformer_lens(model: Model, encoded: list[Encoded]) -> Work:
    """Return TransformerLens' way: run_with_cache of the last position.

    Args:
        model: Any model.
        encoded: Prompts.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf = stock(model)
    lens = build_bridge_from_module(hf, type(hf).__name__, hf_config=hf.config, dtype=torch.float32)
    kinds = ("hook_resid_pre", "attn.hook_z", "hook_attn_out", "hook_mlp_out")
    names = [[f"blocks.{i}.{kind}" for kind in kinds] for i in range(model.n_layers)]
    hooks = ["ln_final.hook_scale", *(name for of in names for name in of)]

    def pieces(ids):
        _, cache = lens.run_with_cache(
            ids,
            names_filter=hooks,
            pos_slice=-1,
            return_type=None,
            use_cache=False,
            logits_to_keep=1,
        )
        return [[cache[name][:, -1] for name in of] for of in names], cache[hooks[0]][:, -1]

    return _per_layer(model, encoded, pieces)


def nnsight(model: Model, encoded: list[Encoded]) -> Work:
    """Return nnsight's way: a trace that saves the last position.

    Args:
        model: Any model.
        encoded: Prompts.
    """
    from nnsight import NNsight, save

    network = NNsight(stock(model))

    def pieces(ids):
        with network.trace(input_ids=ids, use_cache=False, logits_to_keep=1):
            layers = save([])
            for block in network.transformer.h:
                x, z = block.input[:, -1], block.attn.c_proj.input[:, -1]
                layers.append(
                    (x, z, block.attn.c_proj.output[:, -1], block.mlp.c_proj.output[:, -1])
                )
            final = network.transformer.ln_f.input[:, -1].save()
        return layers, model.unembedding.norm.scale(final)[:, None]

    return _per_layer(model, encoded, pieces)


def book_ablate(positions: str, model: Model, encoded: list[Encoded]) -> Work:
    """Return this book's way to ablate every head.

    Args:
        positions: "all" or "last".
        model: Any model.
        encoded: Prompts.
    """
    return lambda: single_head_ablations(model, encoded, positions)["log_prob_lost"].values


def plain_ablate(positions: str, model: Model, encoded: list[Encoded]) -> Work:
    """Return the plain way to ablate every head: a whole forward pass for each head.

    A hook sets the head's part of the input of W_O to zero.

    Args:
        positions: "all" or "last".
        model: Any model.
        encoded: Prompts.
    """
    hf, where = stock(model), -1 if positions == "last" else slice(None)

    def work():
        plain, out = _log_probs(hf, encoded), []
        for block, head in product(hf.transformer.h, range(model.n_heads)):
            mask = torch.ones(len(encoded[0].ids), model.d_model)
            mask[where, head * model.d_head : (head + 1) * model.d_head] = 0
            hook = block.attn.c_proj.register_forward_pre_hook(
                lambda _, a, mask=mask: (a[0] * mask,)
            )
            out.append(plain - _log_probs(hf, encoded))
            hook.remove()
        return torch.stack(out, 1).reshape(len(encoded), model.n_layers, -1).numpy()

    return torch.inference_mode()(work)


OWN, WHOLE = "**this book**", "a forward pass for each head"
WORKS = {
    "heads": ("all heads and blocks", [
        (plain_heads, "plain hooks", ""), (transformer_lens, "TransformerLens", "transformer-lens"),
        (nnsight, "nnsight", "nnsight"), (book_heads, OWN, "")]),
    "ablate all": ("ablating every head, all positions", [
        (partial(plain_ablate, "all"), WHOLE, ""), (partial(book_ablate, "all"), OWN, "")]),
    "ablate last": ("ablating every head, last position", [
        (partial(plain_ablate, "last"), WHOLE, ""), (partial(book_ablate, "last"), OWN, "")]),
}  # fmt: skip
"""Title and ways (function, name, package) of each work, the plain way first"""


def _time_ratios(plain: Callable, work: Work, repeats: int) -> list[float]:
    """Return the times of a work over the times of the plain pass.

    If the two take over a minute, there is only one ratio.

    Args:
        plain: The plain pass.
        work: The work.
        repeats: Number of ratios.
    """
    ratios = []
    while len(ratios) < repeats:
        start = time.perf_counter()
        plain()
        middle = time.perf_counter()
        work()
        end = time.perf_counter()
        ratios.append((end - middle) / (middle - start))
        repeats = 1 if end - start > 60 else repeats
    return ratios


def measure(
    config: GPT2Config, cases: Iterable[tuple[str, int, int]], repeats: int
) -> pd.DataFrame:
    """Return the ratios of all cases, a row for each case and way.

    Args:
        config: Shape of the model.
        cases: Name of a work, number of prompts, and number of tokens of a prompt.
        repeats: Number of ratios of a case.

    Raises:
        SystemExit: If the numbers of two ways differ.
    """
    model, rows = build(config), []
    for name, n, tokens in cases:
        title, variants = WORKS[name]
        few, encoded = draw(config, 2, min(16, tokens)), draw(config, n, tokens)
        expected = variants[0][0](model, few)()
        for make, author, package in variants:
            if package and importlib.util.find_spec(make.__name__) is None:
                continue
            if (off := np.abs(make(model, few)() - expected).max()) > 1e-4:
                raise SystemExit(
                    f"wrong numbers of {author} for '{title}': expected those of plain hooks, got "
                    f"a difference of {off:.2g} nats"
                )
            ratios = _time_ratios(
                partial(_log_probs, stock(model), encoded), make(model, encoded), repeats
            )
            own = operations(config, name, n, tokens, author == OWN)
            plain = operations(config, "forward", n, tokens)
            author = f"{author} {version(package)}" if package else author
            row = {"work": title, "prompts": n, "method": author, "tokens": tokens}
            row |= {"ratio": median(ratios), "low": min(ratios), "high": max(ratios)}
            row["operations"] = own / plain
            print(
                f"{name}, {author}, {n} prompts of {tokens} tokens: {row['ratio']:.3g}",
                file=sys.stderr,
            )
            rows.append(row)
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame, where: str) -> str:
    """Return the ratios as a Markdown table.

    It has a line for each work, number of prompts and way, and two columns for each length.

    Args:
        table: Rows of `measure`.
        where: Description of the machine.
    """
    keys, lengths = ["work", "prompts", "method"], sorted(table["tokens"].unique())
    titles = [*keys, *(title for t in lengths for title in (f"{t} tokens", "operations"))]
    lines = [titles, ["---"] * len(titles)]
    for (work, prompts, author), rows in table.groupby(keys, sort=False):
        of = rows.set_index("tokens")
        cells = (
            f"{of[column][t]:.3g}×" if t in of.index else ""
            for t in lengths
            for column in ("ratio", "operations")
        )
        lines.append([work, f"{prompts:,}", author, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{where}.\n"


def machine() -> str:
    """Return a description of the machine, its software and the date."""
    info = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    cpu = name[1] if name else platform.machine()
    software = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{cpu}, {os.cpu_count()} cores, 1 thread; {software}; {time.strftime('%Y-%m-%d')}"


def main() -> None:
    """Read the command line, time the works, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, help="tasks (default: CASES)")
    parser.add_argument(
        "--prompts", nargs="+", type=int, default=[8], help="numbers of prompts (default: 8)"
    )
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=[16], help="lengths of a prompt (default: 16)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of timed pairs (default: 3)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = product(args.works, args.prompts, args.tokens) if args.works else CASES
    table = measure(GPT2Config(), cases, args.repeats)
    block = markdown(table, machine())
    print(block)
    if len(sys.argv) == 1:  # with options, a part would replace the whole
        before, rest = (ROOT / "README.md").read_text().split(BEGIN)
        (ROOT / "README.md").write_text(f"{before}{BEGIN}\n\n{block}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
