"""Write the locks: exact versions, each with the SHA-256 of every file that may be installed. `make lock` runs this.

    requirements.lock    what `make book` and `make test` install, on every system
    locks/cpu.lock       PyTorch's CPU build for Linux, which only PyTorch's own index has
    locks/build.lock     what builds this package, and those that come without a wheel
    locks/cuda.lock      the libraries that PyTorch's CUDA build needs on Linux
    locks/lab.lock       what `make lab` adds
    locks/peers.lock     what the comparisons in benchmarks/ add

`--keep` keeps the versions and only looks up the hashes again.
"""

import argparse
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = {name: ROOT / "locks" / f"{name}.lock" for name in ("build", "cpu", "cuda", "lab", "peers")}
HEAD = "# Exact versions and hashes for Python 3.11 and newer, written by `make lock`.\n"
CUDA = re.compile(r"nvidia-|cuda-|triton==")
LINUX_WHEEL = r"torch-{}%2Bcpu-cp3(\d+)-cp3\1-\w*linux\w*_(?:x86_64|aarch64)\.whl#sha256=([0-9a-f]{{64}})"


def entries(text: str) -> list[str]:
    """The requirements of a lock, each with its lines of hashes."""
    return [part for part in re.split(r"(?m)^(?=\S)", text) if part.strip() and not part.startswith("#")]


def compiled(extras: Iterable[str], constraints: Iterable[Path], *flags: str) -> list[str]:
    """What pyproject.toml with `extras` needs, for every system and every Python from 3.11 on."""
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        *flags,
    ]
    command += ["--no-header", "--no-annotate", *(f"--extra={extra}" for extra in extras)]
    command += [f"--constraint={path}" for path in constraints]
    done = subprocess.run([*command, "pyproject.toml"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return entries(done.stdout)


def cpu_hashes(page: str, version: str) -> list[str]:
    """The hashes that PyTorch's index states for its CPU builds for Linux, CPython 3.11 and newer, in order."""
    return sorted({digest for minor, digest in re.findall(LINUX_WHEEL.format(version), page) if int(minor) >= 11})


def write(path: Path, requirements: Iterable[str]) -> None:
    path.write_text(HEAD + "".join(requirements))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the versions, look up the hashes again")
    parser.add_argument("version", help="of PyTorch")
    parser.add_argument("index", help="PyTorch's index of CPU builds")
    given = parser.parse_args()
    build = ROOT / "_build"
    build.mkdir(exist_ok=True)
    torch, whole = build / "torch.txt", build / "all.lock"
    torch.write_text(f"torch=={given.version}\n")
    old = [ROOT / "requirements.lock", *(LOCKS[name] for name in ("cuda", "lab", "peers") if LOCKS[name].exists())]
    # All extras are chosen together, so that one environment can hold them all; then each gets its share.
    everything = compiled(("book", "test", "lab", "peers"), [torch, *(old if given.keep else [])])
    write(whole, everything)
    book = compiled(("book", "test"), [whole])
    write(ROOT / "requirements.lock", (one for one in book if not CUDA.match(one)))
    write(LOCKS["build"], (one for one in book if one.startswith("setuptools==")))
    write(LOCKS["cuda"], (one for one in everything if CUDA.match(one)))
    for extra in ("lab", "peers"):
        write(LOCKS[extra], (one for one in compiled(("book", "test", extra), [whole]) if one not in book))
    head = f"torch=={given.version}+cpu ; sys_platform == 'linux'"
    try:
        with urllib.request.urlopen(f"{given.index}/torch/", timeout=20) as answer:
            hashes = cpu_hashes(answer.read().decode(), given.version)
    except OSError as error:
        if head in LOCKS["cpu"].read_text():  # the same version: its hashes hold
            return
        sys.exit(f"{given.index} cannot be read ({error}): locks/cpu.lock needs it for PyTorch {given.version}")
    write(LOCKS["cpu"], [" \\\n    ".join([head, *(f"--hash=sha256:{digest}" for digest in hashes)]) + "\n"])


if __name__ == "__main__":
    main()
