"""Files hold what a page reads, and nothing else: what nobody reads goes from the schema, and so
from every file."""

import re

from conftest import ROOT
from twotowers.catalogue import variables

READERS = [
    path
    for kind in ("book/*.ipynb", "book/_ext/*.py", "lib/twotowers/*.py")
    for path in ROOT.glob(kind)
]


def unread(names: set[str]) -> set[str]:
    """Those that no page and no module of the analysis names as an attribute or in quotes, where
    "{own}_head" is any such name."""
    text = "\n".join(path.read_text("utf8") for path in READERS)
    words = {
        word
        for word in re.findall(r"""[."']([\w{}]+)""", text)
        if re.search("[a-z_]{4}", re.sub(r"{\w+}", "", word))
    }
    named = re.compile("|".join(re.sub(r"{\w+}", "[a-z]+", word) for word in words))
    return {name for name in names if not named.fullmatch(name)}


def test_every_variable_is_read_by_a_page():
    names = {name for of in variables().values() for name in of}
    assert unread(names | {"attention_of_nobody"}) == {"attention_of_nobody"}
