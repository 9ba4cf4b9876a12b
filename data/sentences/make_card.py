"""Write README.md, the card of the sentence sets, from sets.csv, files.csv and what reading the files really gives.

TWOTOWERS_DATA=folder python data/sentences/make_card.py
"""

from pathlib import Path

import pandas as pd
from twotowers.prompts import download, sentences

HERE = Path(__file__).parent

TOP = """# Sentence sets

Six published sets of sentences. **None of their sentences is in this repository**: they are read from a folder that you
name with `TWOTOWERS_DATA`, else from a cache (`TWOTOWERS_CACHE`, by default the system's cache folder), else downloaded
there. Each file is pinned to a commit and proved by its SHA-256; another file is refused.

    draw("agnews:business/sports", 1000)     # false class / true class, as in the names of the word sets
    draw("agnews", 1000)                     # inputs of all classes, each against one other class

**What is done to the rows.** Broken characters and markup are mended where said below, control characters taken out,
every run of spaces, tabs and line ends made one space. A row whose words (without case and punctuation) repeat an
earlier row of its file is left out; both go when their classes differ. A row of the pool of demonstrations that shares
half or more of its word triples with an input (Jaccard of {shingle} words at least {nearness}) is left out of the pool,
so inputs keep their published number. Nothing else is left out, and `sentences.report(name)` counts all of this.
In sets without a train file, rows 1, 5, 9, ... of each class (in the order of the file, after repeats are gone) are the
pool.

**Prompts.** k demonstrations of each of two classes, 2 and 2 by default, the true ones nearest the query. Every input
is the query once before any is the query twice. Too long for a model: `sentences.fit` leaves out or truncates, and
counts. A few sentences hold the word `foo` or `bar`; they stay.

Written by `make_card.py`; `tests/test_sentences.py` compares.
"""


def card() -> str:
    about = pd.read_csv(HERE / "sets.csv").set_index("set")
    parts = [TOP.format(shingle=sentences.SHINGLE, nearness=sentences.NEARNESS)]
    for name in sentences.SETS:
        parts.append(section(name, about.loc[name], sentences.report(name)))
    return "\n".join(parts)


def section(name: str, about: pd.Series, counts: pd.DataFrame) -> str:
    lines = [f"## `{name}`: {about['title']}", ""]
    lines += [f"{about['reference']}. **Licence**: {about['licence']}", ""]
    lines += [f"**Form**: {about['form']}. **Kept apart**: {about['apart']} {about['notes']}", ""]
    for pin in download.pins().query("set == @name").itertuples():
        lines.append(f"- `{pin.file}`: github.com/{pin.repository}, `{pin.path}` at `{pin.commit[:12]}`,")
        lines.append(f"  {int(pin.bytes):,} bytes, SHA-256 `{pin.sha256[:16]}...`")
    sizes = counts[counts["what"].isin(["pool", "input"])].pivot(index="class", columns="what", values="rows")
    lines += ["", "| class | demonstrations | inputs |", "|---|--:|--:|"]
    lines += [
        f"| {cls} | {sizes.loc[cls, 'pool']:,} | {sizes.loc[cls, 'input']:,} |"
        for cls in counts["class"].unique()
        if cls
    ]
    other = counts[~counts["what"].isin(["pool", "input"])].groupby("what", sort=False)["rows"].sum()
    lines += ["", "Rows: " + "; ".join(f"{what} {n:,}" for what, n in other.items()) + ".", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (HERE / "README.md").write_text(card(), encoding="utf-8")
