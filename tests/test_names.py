"""What docstrings, comments and messages of lib name exists: names in backticks, files, functions with their parameters."""

import ast
import builtins
import io
import re
import tokenize

import pytest
from conftest import ROOT

FILES = sorted((ROOT / "lib").rglob("*.py"))
OTHERS = [*ROOT.glob("training/*.py"), *ROOT.glob("book/_ext/*.py"), ROOT / "Snakefile"]
QUOTED = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"([a-zA-Z_]\w*(?:\.\w+)*)(?:\(.*\)|\[.*\])?")
CALL = re.compile(r"\b([a-zA-Z_]\w*)\(([^()]*)\)")


def tokens(path, kind):
    return [t.string for t in tokenize.generate_tokens(io.StringIO(path.read_text("utf8")).readline) if t.type == kind]


def texts(path):
    """Docstrings, comments and messages; of a message with values in it, the parts between them as one."""
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    yield from tokens(path, tokenize.COMMENT)


@pytest.fixture(scope="module")
def known():
    """Every name in the code, every one-word string, every module and folder, every target of make."""
    strings = " ".join(one for path in FILES for one in tokens(path, tokenize.STRING) if " " not in one)
    names = {name for path in (*FILES, *OTHERS) for name in tokens(path, tokenize.NAME)} | set(dir(builtins))
    return names | set(re.findall(r"\w+", strings)) | {part for path in FILES for part in (path.stem, path.parent.name)}


@pytest.fixture(scope="module")
def parameters():
    """Function or class -> names that its call may be given, of all that have this name; None where it takes any."""
    found: dict = {}
    for node in (node for path in FILES for node in ast.walk(ast.parse(path.read_text("utf8")))):
        if isinstance(node, ast.FunctionDef):
            given = node.args.args + node.args.kwonlyargs
            found.setdefault(node.name, set()).update([None] if node.args.kwarg else [one.arg for one in given])
        elif isinstance(node, ast.ClassDef):
            fields = [part.target.id for part in node.body if isinstance(part, ast.AnnAssign)]
            found.setdefault(node.name, set()).update(fields or [None])
    return found


def stale_names(path, known, parameters):
    stale = []
    for text in texts(path):
        for quoted in QUOTED.findall(text):
            if "/" in quoted and " " not in quoted:
                stale += [quoted] * (not any((folder / quoted).exists() for folder in (ROOT, ROOT / "lib/twotowers")))
            if name := NAME.fullmatch(quoted):
                stale += [quoted] * (not set(name.group(1).split(".")) <= known)
        for name, given in CALL.findall(text):
            allowed = parameters.get(name, {None})
            words = re.findall(r"\b(\w+)=", re.sub(r"\"[^\"]*\"", "", given))
            stale += [f"{name}({word}=)" for word in words if allowed.isdisjoint({word, None})]
    return stale


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "lib/twotowers")))
def test_what_is_named_exists(path, known, parameters):
    assert stale_names(path, known, parameters) == []


def test_a_stale_name_is_found(known, parameters, tmp_path):
    (tmp_path / "x.py").write_text('"""See `zero_each`, `captures` and `model/nowhere.py`; captures(..., want={1})."""')
    assert stale_names(tmp_path / "x.py", known, parameters) == ["zero_each", "model/nowhere.py", "captures(want=)"]
