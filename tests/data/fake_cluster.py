"""A cluster on this machine that loses jobs and kills others: `sbatch`, `sacct`, `scancel` and `kubectl` in one.

fake_cluster.py sbatch [options] SCRIPT      FAKE_CLUSTER is its folder; its plan.json says what happens to the nth job of
a name ("shard0", "chapter", "pod"): "lost", so never started; "killed PATTERN", by SIGKILL as soon as a new file has such
a name; or nothing. Jobs really run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["FAKE_CLUSTER"])


def submitted(name: str, script: str) -> str:
    """Take a job in, and start it unless it is lost; its number."""
    plan = json.loads((HOME / "plan.json").read_text())
    name += "".join(re.findall(r",i=(\d+)", Path(script).read_text())[:1])
    nth = len(list(HOME.glob(f"{name}-*")))
    fate = (plan.get(name, []) + [""] * (nth + 1))[nth]
    number = str(1000 + len(list(HOME.glob("*-*"))))
    folder = HOME / f"{name}-{nth}"
    folder.mkdir()
    (folder / "number").write_text(number)
    (folder / "fate").write_text(fate)
    if fate != "lost":
        command = [sys.executable, __file__, "work", str(folder), script]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=(folder / "log").open("w"), stderr=subprocess.STDOUT)
    return number


def work(folder: Path, script: str) -> None:
    """Run a job to its end, or until its fate meets it."""
    when = (folder / "fate").read_text().partition("killed ")[2]
    before = set(Path().glob(when)) if when else set()
    job = subprocess.Popen(["sh", script], start_new_session=True)
    while job.poll() is None:
        if (folder / "cancelled").exists() or (when and set(Path().glob(when)) - before):
            os.killpg(job.pid, signal.SIGKILL)
        time.sleep(0.02)
    (folder / "status").write_text(str(job.returncode))


def folder_of(number: str) -> Path:
    return next(path.parent for path in HOME.glob("*/number") if path.read_text() == number)


def state(number: str) -> str:
    folder = folder_of(number)
    if (folder / "fate").read_text() == "lost":
        return "NODE_FAIL"
    if not (folder / "status").exists():
        return "RUNNING"
    return "COMPLETED" if (folder / "status").read_text() == "0" else "FAILED"


def kubectl(arguments: list[str]) -> None:
    if arguments[0] == "create":
        job = json.loads(sys.stdin.read())
        (box,) = job["spec"]["template"]["spec"]["containers"]
        (HOME / f"{job['metadata']['name']}.json").write_text(json.dumps(job))
        os.chdir(box["workingDir"])
        (HOME / f"{job['metadata']['name']}.number").write_text(submitted("pod", box["command"][1]))
    elif arguments[:2] == ["get", "job"]:
        name = arguments[2]
        said = state((HOME / f"{name}.number").read_text())
        print(name, {"RUNNING": "", "COMPLETED": "SuccessCriteriaMet Complete"}.get(said, "FailureTarget Failed"))


def main(called: str, *arguments: str) -> None:
    if called == "sbatch":
        given = dict(re.findall(r"--([\w-]+)=(\S+)", " ".join(arguments)))
        with (HOME / "asked").open("a") as file:
            file.write(json.dumps(given) + "\n")
        print(submitted(given["job-name"], arguments[-1]))
    elif called == "work":
        work(Path(arguments[0]), arguments[1])
    elif called == "sacct":
        print(state(arguments[arguments.index("--jobs") + 1]))
    elif called == "scancel":
        for number in arguments:
            (folder_of(number) / "cancelled").touch()
    elif called == "kubectl":
        kubectl(list(arguments))


main(*sys.argv[1:])
