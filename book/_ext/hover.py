"""A Sphinx extension: a link to a term of the glossary has the term's definition as its title, which browsers show.

Notebooks write such a link as `[heads](glossary.md#term-in-context-head)`, which is a link in Jupyter too.
"""

from docutils import nodes

GLOSSARY = "book/glossary"


def definitions(glossary: nodes.document) -> dict[str, str]:
    """The id of a term -> the first paragraph of its definition, on one line. Formulas stand in later paragraphs."""
    found = {}
    for item in glossary.findall(nodes.definition_list_item):
        first = next(item.findall(nodes.paragraph), None)
        if first is not None:
            said = " ".join(first.astext().split())
            found |= {name: said for term in item.findall(nodes.term) for name in term["ids"]}
    return found


def name_terms(app, doctree) -> None:
    """Let Markdown links find terms as they find headings. One to a term that is missing stays a warning of MyST."""
    if app.env.docname == GLOSSARY:
        places = app.env.metadata[GLOSSARY].setdefault("myst_slugs", {})
        for term in doctree.findall(nodes.term):
            places |= {name: (term.line, name, term.astext()) for name in term["ids"]}


def read_again(app, env, added, changed, removed) -> list[str]:
    """Every page, when the glossary is another."""
    return sorted(env.found_docs - {GLOSSARY}) if GLOSSARY in added | changed else []


def add_titles(app, doctree, docname) -> None:
    if docname == GLOSSARY or GLOSSARY not in app.env.found_docs:
        return
    said = definitions(app.env.get_doctree(GLOSSARY))
    for link in doctree.findall(nodes.reference):
        name = link.get("refuri", "").rpartition("#")[2]
        if name in said:
            link["reftitle"] = said[name]


def setup(app) -> dict:
    app.connect("doctree-read", name_terms)
    app.connect("env-get-outdated", read_again)
    app.connect("doctree-resolved", add_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
