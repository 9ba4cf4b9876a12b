"""Tables of finished lines in words: Markdown beside each CSV, and the few numbers that README shows."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from twotowers.paper import costs

BEGIN, END = "<!-- written by benchmarks/run.py: begin -->", "<!-- end -->"
OWN = "this book"


def rows_of(cells: list[list[str]], heads: list[str]) -> str:
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def where(table: pd.DataFrame) -> str:
    """The machine and the day, as a sentence."""
    one = table.iloc[-1]
    days = " to ".join(sorted(set(table["date"].astype(str))))
    threads = "1 thread" if one["threads"] == 1 else f"{one['threads']} threads"
    made_with = f"torch {one['torch']}, transformers {one['transformers']}"
    return f"{one['machine']}, {one['cores']} cores, {threads}; {made_with}; {days}"


def rates(table: pd.DataFrame) -> str:
    """How fast the machine was at what is counted, as a sentence; "" where that was not measured."""
    if table["book_gflop_s"].isna().all():
        return ""
    book, other, exponentials = (table[name].median() for name in ("book_gflop_s", "torch_gflop_s", "gexp_s"))
    return (
        f" Float32 products of large matrices: {book:.0f} GFLOP/s as this book makes them, {other:.0f} as torch does by itself; "
        f"{exponentials:.2g} G exponentials a second."
    )


def number(x: float) -> str:
    """Two digits and a half: 1.62, 16.2, 162."""
    return "" if pd.isna(x) else f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def over_forward(line: pd.Series) -> str:
    """The ratio with its spread; a single measurement has none."""
    if pd.isna(line["ratio"]):
        return ""
    spread = f" ({number(line['low'])} to {number(line['high'])})" if line["low"] < line["high"] else ""
    return f"{number(line['ratio'])}×{spread}"


def markdown(table: pd.DataFrame, command: str) -> str:
    cells, known = [], costs.shapes()
    for _, line in table.iterrows():
        shown = known[line["shape"]].shown if line["shape"] in known else line["shape"]
        cells.append(
            [
                line["work"], line["by"], f"{shown}, {line['dtype']}",
                f"{line['prompts']:,}", f"{line['tokens']:,}", f"{line['vocabulary']:,}",
                over_forward(line) or f"not run: {line['skipped']}", number(line["counted_ratio"]),
                number(line["extra_mb"]), number(line["forward_mb"]),
                "" if pd.isna(line["difference_nats"]) else f"{line['difference_nats']:.0e}",
            ]
        )  # fmt: skip
    heads = [
        "work", "by", "shape", "prompts", "tokens", "words", "time over a forward pass (least to most)", "counted",
        "peak extra MB", "of a forward pass, MB", "largest difference, nats",
    ]  # fmt: skip
    return (
        f"{where(table)}.{rates(table)} {' and '.join(sorted(set(table['weights']))).capitalize()} weights; `{command}`.\n\n"
        f"{rows_of(cells, heads)}\n"
        "Time is the median over repeats of work / plain batched forward pass of the same prompts with last-token "
        "logits; counted is\nthe same ratio of operations in matrix products, on any machine. The difference is that to the plain "
        "way of doing the\nsame work.\n"
    )


def core(peers: pd.DataFrame, table: pd.DataFrame | None = None) -> str:
    """The numbers for README: each work and way at each length, eight prompts; and this book's at a thousand."""
    both = peers if table is None else pd.concat([peers, table[table["prompts"] > peers["prompts"].max()]])
    both = both[both["ratio"].notna() & (both["shape"] == "gpt2")]
    lengths = sorted(both["tokens"].unique())
    cells = []
    for (work, prompts, by), part in both.groupby(["work", "prompts", "by"], sort=False):
        of = part.drop_duplicates("tokens", keep="last").set_index("tokens")
        shown = f"**{by}**" if by == OWN else by
        of_length = lambda n, of=of: [f"{number(of[name][n])}×" for name in ("ratio", "counted_ratio")]  # noqa: E731
        times = [cell for n in lengths for cell in (of_length(n) if n in of.index else ("", ""))]
        memory = of["extra_mb"].get(lengths[-1], float("nan"))
        cells.append([work, f"{prompts:,}", shown, *times, "" if pd.isna(memory) else f"{memory:.0f} MB"])
    order = list(dict.fromkeys(peers["work"]))
    cells.sort(key=lambda c: (order.index(c[0]), int(c[1].replace(",", ""))))
    heads = [
        "work",
        "prompts",
        "by",
        *(head for n in lengths for head in (f"{n} tokens", "counted")),
        f"extra memory, {lengths[-1]} tokens",
    ]
    return f"{rows_of(cells, heads)}\n{where(both)}.{rates(both)}\n"


def update_readme(here: Path) -> None:
    """Put the numbers between the marks in README, if it has them and there is a run to show."""
    readme, results = here.parent / "README.md", here / "results"
    if not (results / "peers.csv").exists() or not readme.exists() or BEGIN not in (text := readme.read_text()):
        return
    own = pd.read_csv(results / "table.csv") if (results / "table.csv").exists() else None
    block = f"{BEGIN}\n\n{core(pd.read_csv(results / 'peers.csv'), own)}\n{END}"
    new = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    if new != text:
        part = readme.with_suffix(".part")
        part.write_text(new)
        part.replace(readme)
