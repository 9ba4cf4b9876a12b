"""A Sphinx extension for links to terms of the glossary and to figures.

A link to a term shows its definition. Notebooks write such links as
`[heads](glossary.md#term-head)` and `[Figure 4.1](04-attention-weights.ipynb#fig-4-1)`.
"""

import re

from docutils import nodes

GLOSSARY = "book/glossary"


def definitions(glossary: nodes.document) -> dict[str, str]:
    """Return the first paragraph of each definition, on one line, by the id of the term.

    Args:
        glossary: Contents of the glossary.
    """
    terms = {}
    for item in glossary.findall(nodes.definition_list_item):
        first = next(item.findall(nodes.paragraph), None)
        if first is not None:
            terms |= {
                name: " ".join(first.astext().split())
                for term in item.findall(nodes.term)
                for name in term["ids"]
            }
    return terms


def _name_places(app, doctree) -> None:
    """Let Markdown links find terms and figures in the same way as headings.

    A link to a missing place is still a warning.

    Args:
        app: Application of Sphinx.
        doctree: Contents of the page.
    """
    places = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    if app.env.docname == GLOSSARY:
        places |= {
            name: (term.line, name, term.astext())
            for term in doctree.findall(nodes.term)
            for name in term["ids"]
        }
    for raw in doctree.findall(nodes.raw):
        places |= {
            name: (raw.line, name, name) for name in re.findall(r'id="(fig-[\w-]+)"', raw.astext())
        }


def _read_again(app, env, added, changed, removed) -> list[str]:
    """Return all pages if the glossary has changed, since their links show its definitions.

    Args:
        app: Application of Sphinx.
        env: Environment of Sphinx.
        added: Names of added pages.
        changed: Names of changed pages.
        removed: Names of removed pages.
    """
    return sorted(env.found_docs - {GLOSSARY}) if GLOSSARY in added | changed else []


def _add_titles(app, doctree, docname) -> None:
    """Add the definition of its term to each link to the glossary.

    Args:
        app: Application of Sphinx.
        doctree: Contents of the page.
        docname: Name of the page.
    """
    if docname == GLOSSARY or GLOSSARY not in app.env.found_docs:
        return
    terms = definitions(app.env.get_doctree(GLOSSARY))
    for link in doctree.findall(nodes.reference):
        name = link.get("refuri", "").rpartition("#")[2]
        if name in terms:
            link["reftitle"] = terms[name]


def setup(app) -> dict:
    """Register the extension.

    Args:
        app: Application of Sphinx.
    """
    app.connect("doctree-read", _name_places)
    app.connect("env-get-outdated", _read_again)
    app.connect("doctree-resolved", _add_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
