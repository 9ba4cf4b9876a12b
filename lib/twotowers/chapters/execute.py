"""One job: a chapter's notebook executed on a model. The Snakefile calls it: python -m twotowers.chapters.execute PLAN STAMP

The page is put in place when its last cell is done; tables appear one by one, each whole, so a run that was killed or
failed is taken up again where it stopped. A failed chapter leaves its last good page, and failed/CHAPTER.ipynb.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from twotowers.chapters import stamps
from twotowers.errors import TwoTowersError
from twotowers.stats import tables
from twotowers.studies.context import SHARDS
from twotowers.studies.parts import Store


def run(root: Path, key: str, job: dict[str, Any], shards: int = 1) -> dict[str, Any]:
    """Execute one chapter; its stamp. `shards`: into how many parts its work is cut. TwoTowersError if it cannot write."""
    home, chapter, start = root / key.split("/")[0], job["chapter"], time.monotonic()
    made, part, failed = home / "tables", home / ".part" / f"{chapter}.ipynb", home / "failed" / f"{chapter}.ipynb"
    for folder in (made, part.parent):
        tables.writable(folder)
    stamp = {"job": job, "status": stamps.DONE, "why": ""}
    if shards > 1:  # its kernel inherits it
        os.environ[SHARDS] = Store(str((home / stamps.PARTS / chapter).absolute()), job["state"], shards).told
    try:
        used = execute(job, part, made)
        stamp["tables"] = {} if job["reads_all"] else stamps.table_digests(home, used)
        for old in made.glob(f"{chapter}-*.csv"):
            if old.stem not in used | stamps.named(home, besides=chapter):
                old.unlink()
        stamp["page"] = stamps.digest([part])
        os.replace(part, home / f"{chapter}.ipynb")
        failed.unlink(missing_ok=True)
        stamps.clear_shards(home, chapter)
    except TwoTowersError as error:
        stamp |= {"status": stamps.FAILED, "why": str(error)}
        if part.exists():
            tables.writable(failed.parent)
            os.replace(part, failed)
            stamp["why"] += f" (as far as it came: {failed})"
    return stamp | {"seconds": round(time.monotonic() - start), "peak_mb": peak_mb()}


def peak_mb() -> int:
    """The most memory that a child of this process, the kernel, held at once."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most >> (20 if sys.platform == "darwin" else 10)


def execute(job: dict[str, Any], part: Path, made: Path) -> set[str]:
    """The notebook with its parameters, executed to `part`; the names of the tables in `made` that it saved or read.

    Raises TwoTowersError with what the failing cell said.
    """
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    from twotowers.paths import book_folder

    noted = part.with_suffix(".tables").absolute()
    noted.write_text("")
    os.environ[tables.USED] = str(noted)  # its kernel inherits it
    source, target = (str(path).replace("{", "{{").replace("}", "}}") for path in (book_folder(), part))
    try:
        papermill.execute_notebook(
            f"{source}/{job['chapter']}.ipynb", target, job["parameters"] | {"out": made.as_posix()},
            kernel_name="python3", language="python", progress_bar=False,
            extra_arguments=["--IPKernelApp.log_level=50"],  # its remarks about sockets are not the reader's business
        )  # fmt: skip
    except PapermillExecutionError as error:
        said = re.sub(r"\x1b\[[\d;]*m", "", str(error.evalue)).strip().splitlines() or ["no message"]
        kind = "" if error.ename == TwoTowersError.__name__ else f"{error.ename}: "
        raise TwoTowersError(f"cell {error.cell_index + 1} says {kind}{said[0]}") from None
    except DeadKernelError:
        raise TwoTowersError(
            "its Python was killed, perhaps for memory: take fewer n_prompts, a narrower dtype or a larger machine"
        ) from None
    except NoSuchKernel:
        raise TwoTowersError("there is no Jupyter kernel to run chapters with: pip install ipykernel") from None
    finally:
        paths = set(map(Path, noted.read_text("utf8").splitlines()))
        del os.environ[tables.USED]
        noted.unlink()
    return {path.stem for path in paths if path.parent == made.resolve() and path.is_file()}


def tell(**event: Any) -> None:
    """One line of JSON for who started this, written at once: several jobs share its pipe, and `print` may write twice."""
    sys.stdout.write(f"{json.dumps(event)}\n")
    sys.stdout.flush()


def end_with_parent() -> None:
    """End this process soon after the one that started it was killed, so that nothing works on unseen."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(plan_file: str, stamp_file: str) -> int:
    """Exit status 0 whether the chapter is done or failed, since others go on; 1 when no stamp can be written."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # papermill lets go of its kernel
    end_with_parent()
    plan = json.loads(Path(plan_file).read_text("utf8"))
    stamp_path = Path(stamp_file).absolute()
    key = f"{stamp_path.parents[1].name}/{stamp_path.stem}"
    os.chdir(plan["cwd"])
    tell(key=key, status="running")
    try:
        stamp = run(Path(plan["root"]), key, plan["jobs"][key], plan["shards"].get(key, 1))
        tables.write(stamp_path, json.dumps(stamp, indent=1).encode())
    except (TwoTowersError, OSError) as error:
        tell(key=key, status=stamps.FAILED, why=str(error), seconds=0)
        return 1
    tell(key=key, status=stamp["status"], why=stamp["why"], seconds=stamp["seconds"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
