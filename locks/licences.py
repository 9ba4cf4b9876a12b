"""Print the licence of every locked package that is installed here, as each package states it. `make licences` runs this."""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
KNOWN = (
    "MIT", "BSD", "Apache", "PSF", "Python Software Foundation", "ISC", "MPL", "Mozilla Public", "Public Domain",
    "Zlib", "CC0", "CNRI-Python", "BSL-1.0",
)  # fmt: skip


def licence(package: Distribution) -> str:
    """The licence that `package` states: an expression, else classifiers, else a name, else the head of its licence's text."""
    data = package.metadata
    classes = [one.split(" :: ")[-1] for one in data.get_all("Classifier") or [] if one.startswith("License :: ")]
    files = [f"{folder}{name}" for name in data.get_all("License-File") or [] for folder in ("licenses/", "")]
    heads = [package.read_text(name) or "" for name in [*files, "LICENSE"]]
    stated = [data.get("License-Expression"), " OR ".join(classes), data.get("License"), *heads]
    lines = [one.strip().splitlines()[0] for one in stated if one and one.strip() not in ("", "UNKNOWN")]
    return next(iter(lines), "not stated")


def permitted(stated: str) -> bool:
    """Whether this book may use the package as it does: each part of `stated` offers a licence that we know."""
    return all(any(known in part for known in KNOWN) for part in stated.split(" AND "))


def locked() -> list[tuple[str, str, str]]:
    """(name, version, licence) of each package of the locks that is installed, by name."""
    texts = [path.read_text() for path in [ROOT / "requirements.lock", *sorted((ROOT / "locks").glob("*.lock"))]]
    rows = []
    for name in sorted(set(re.findall(r"(?m)^([\w.-]+)==", "\n".join(texts)))):
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another system, or an extra that is not installed
            continue
        rows.append((name, package.version, licence(package)))
    return rows


if __name__ == "__main__":
    for name, version, stated in locked():
        print(f"{name:40} {version:14} {stated}{'' if permitted(stated) else '   <- look at this one'}")
