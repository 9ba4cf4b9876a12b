"""Pages, docstrings, errors and help texts have plain words; no name is a retired one."""

import ast
import re

import pytest
from conftest import ROOT, sources

IDIOMS = {
    "is in, is stored in": r"\b(stands?|stood|lies?|lay) (in|there|below|under)\b|\bcomes? again\b",
    "name the owner or the person": r"\bone's own\b|\b(whoever|nobody)\b",
    "give a number": r"\bso many\b|\bat hand\b",
    "use a noun": r"(^|\b(of|on|from|for|says?|shows?|names?|tells?) )what\b(?!:)",
    "except, next to, also": r"\bbut for\b|\bbeside\b(?!:)|, too[,.;:)]",
    "use the standard term": r"\bquick look|\blaborator(y|ies)\b|\bminiature\b|\bdoors?\b"
    r"|\b(located heads|locating blocks|judging blocks)\b",
}
NAMES = """LEAST Laboratory MOST Recording Run TOP beside_paper case chain choice choose
  contribution deciding exchange exhibits feed forms listed_head locate locating looks named_head
  norms null one_by_one push reading recorded serves singles smallest tinker whole writing"""
MODULES = [path for top in ("lib", "experiments", "training", "benchmarks", "book/_ext")
           for path in sorted((ROOT / top).rglob("*.py"))]  # fmt: skip
PAGES = [*(ROOT / "book").glob("*.md"), *(ROOT / "book").glob("*.ipynb"), *ROOT.glob("[CR]*.md")]
PAGES += [*(ROOT / "data").glob("[sw]*/README.md"), ROOT / "data/findings.csv"]
TREES = {path: ast.parse(path.read_text("utf8")) for path in MODULES}
MARKUP = re.compile(
    r"(?s:```.*?```)|\$[^$\n]+\$|\]\([^)\n]*\)|<[^>\n]*>|`[^`\n]*`|“[^”]*”|\"[^\"\n]*\"|(?m:^(#.*|\(.*\)=)$)"
)


def page_text(path):
    """The text of a page, without its code cells."""
    if path.suffix == ".ipynb":
        return "\n\n".join(sources(path.stem, "markdown"))
    text = path.read_text("utf8")
    return text.replace('"', "\n\n") if path.suffix == ".csv" else text


def module_text(path):
    """Docstrings, messages of errors and help texts, as paragraphs."""
    texts = []
    for node in ast.walk(TREES[path]):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_help = isinstance(node, ast.keyword) and node.arg in ("help", "description")
        if is_docstring or is_help or isinstance(node, ast.Raise):
            strings = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            texts.append("".join(text for text in strings if isinstance(text, str)))
    return "\n\n".join(texts)


def idioms(text):
    """Every sentence with an idiom, after the advice about it."""
    for paragraph in re.split(r"\n\s*(?:\n|[-|])", MARKUP.sub(" ", text)):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
            for advice, pattern in IDIOMS.items():
                if "?" not in sentence and re.search(pattern, sentence, re.IGNORECASE):
                    yield f"{advice}: {sentence}"


def test_idioms_are_found():
    text = "Files lie in a folder. It shows what heads do. It was one, too. A quick look."
    assert len([*idioms(text)]) == 4 and not [*idioms("What is in `at hand`?")]


@pytest.mark.parametrize("path", PAGES + MODULES, ids=str)
def test_words_are_plain(path):
    found = [*idioms(module_text(path) if path in TREES else page_text(path))]
    assert not found, "\n".join(found)


def test_no_name_is_a_retired_one():
    nodes = [node for tree in TREES.values() for node in ast.walk(tree)]
    defined = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    defined |= {n.arg for n in nodes if isinstance(n, ast.arg | ast.keyword)}
    spans = re.findall(r"`(\w+)(?:\(\)|=)?`", "".join(map(page_text, PAGES)))
    cells = re.findall(r"^\w+(?:,\w+)?", (ROOT / "data/variables.csv").read_text(), re.MULTILINE)
    used = {*defined, *spans, *",".join(cells).split(","), *(path.stem for path in MODULES)}
    assert [name for name in NAMES.split() if name in used] == []
