"""Links to code become links to pages that show it.

A page links to a test as a file beside it, ``[a test](../tests/gates/test_conjugate.py)``, which
is right where the repository is browsed. On the site the file becomes a page: highlighted, each
line with its number.
"""

from html import escape
from pathlib import Path

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
SHOWN = (".R", ".cpp", ".cu", ".h", ".hpp", ".jl", ".py", ".toml", ".txt", ".c", ".cff")


def page_of(name):
    """Page of a file: ``source/`` and its path."""
    return f"source/{name}"


def is_link(node):
    """Tell whether a node may be a link to a file."""
    return isinstance(node, addnodes.download_reference) or (
        isinstance(node, addnodes.pending_xref) and node.get("reftype") == "myst"
    )


class LinkSources(SphinxTransform):
    """Turn downloads of code into links, before they are collected."""

    default_priority = 100

    def apply(self):
        """Replace every one in this document."""
        found = self.env.ribbit_sources.setdefault(self.env.docname, set())
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for node in list(self.document.findall(is_link)):
            if isinstance(node, addnodes.download_reference):
                path = (folder / node["reftarget"].partition("#")[0]).resolve()
            else:  # of a page that is included from the root
                path = ROOT / node["reftarget"]
            if path.suffix not in SHOWN or not path.is_file() or ROOT not in path.parents:
                continue
            name = path.relative_to(ROOT).as_posix()
            found.add(name)
            uri = self.app.builder.get_relative_uri(self.env.docname, page_of(name))
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def role(name, rawtext, text, lineno, inliner, options=None, content=()):
    """Link to a file of the repository from reStructuredText: ``:source:`tests/conftest.py```."""
    env = inliner.document.settings.env
    if not (ROOT / text).is_file():
        raise ValueError(f"expected a file of the repository, got {text}")
    env.ribbit_sources.setdefault(env.docname, set()).add(text)
    uri = env.app.builder.get_relative_uri(env.docname, page_of(text))
    label = nodes.literal("", text)
    return [nodes.reference("", "", label, refuri=uri, internal=True)], []


def pages(app):
    """Yield a page for every file that a document links to."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True)
    for name in sorted(set().union(*app.env.ribbit_sources.values())):
        text = (ROOT / name).read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(name)
        except ClassNotFound:
            lexer = TextLexer()
        body = f'<h1>{escape(name)}</h1><div class="highlight-source notranslate">'
        body += highlight(text, lexer, formatter).replace("<pre>", '<pre tabindex="0">', 1)
        yield page_of(name), {"title": name, "body": body + "</div>"}, "page.html"


def begin(app, env, docnames):
    """Keep the list with what Sphinx keeps between builds."""
    if not hasattr(env, "ribbit_sources"):
        env.ribbit_sources = {}


def purge(app, env, docname):
    """Forget a document that is read anew."""
    getattr(env, "ribbit_sources", {}).pop(docname, None)


def merge(app, env, docnames, other):
    """Join what parallel readers found."""
    env.ribbit_sources.update({name: other.ribbit_sources.get(name, set()) for name in docnames})


def setup(app):
    """Connect to Sphinx."""
    app.add_transform(LinkSources)
    app.add_role("source", role)
    app.connect("env-before-read-docs", begin)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
