"""Pages of the C and C++ headers: doxygen reads them before Sphinx reads the pages.

What it warns of ends the build: a public name without a comment, a comment that says what the
declaration does not.
"""

import subprocess
from pathlib import Path

from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]
# The version in the namespace is the linker's; nobody writes it.
OPTIONS = """
INPUT = cpp/include/ribbit
FILE_PATTERNS = *.h *.hpp
STRIP_FROM_PATH = cpp/include
STRIP_FROM_INC_PATH = cpp/include
FILTER_PATTERNS = *.hpp="sed -e '/namespace v1/d'"
PREDEFINED = RIBBIT_API=
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
TYPEDEF_HIDES_STRUCT = YES
SORT_MEMBER_DOCS = NO
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = NO
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
"""


def read(app, config):
    """Write what doxygen finds beside what Sphinx keeps between builds."""
    out = Path(app.doctreedir) / "headers"
    out.mkdir(parents=True, exist_ok=True)
    options = f'{OPTIONS}OUTPUT_DIRECTORY = "{out}"\n'
    done = subprocess.run(
        ["doxygen", "-"], cwd=ROOT, input=options, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ExtensionError(f"doxygen: exit {done.returncode}\n{done.stdout}{done.stderr}")
    config.breathe_projects = {"ribbit": str(out / "xml")}


def setup(app):
    """Connect to Sphinx, before breathe."""
    app.connect("config-inited", read, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
