"""Settings of the site; ``python -m tools.site`` builds and checks it.

The build needs no network: MathJax comes from a wheel, and there is no intersphinx. If a framework
such as JAX is missing, a mock takes its place, so that the API pages of its package can be made.
"""

import importlib.util
import shutil
import sys
from pathlib import Path

from sphinx.ext.autodoc.mock import _MockObject

import ribbit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "Ribbit"
author = "The Ribbit developers"
copyright = author
release = version = ribbit.__version__

extensions = [
    "breathe",
    "headers",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "source_pages",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_ext", "_templates", "api/backreferences"]
templates_path = ["_templates"]
nitpicky = True
breathe_default_project = "ribbit"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
nitpick_ignore_regex = [("c(pp)?:identifier", ".*")]  # types in signatures; int64_t has no page
language = "en"
highlight_language = "none"  # of blocks without a language

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "unsrt"
bibtex_footbibliography_header = ""

FRAMEWORKS = ("blackjax", "jax", "jaxlib", "mpi4py", "numpyro", "pymc", "pytensor", "torch")
autodoc_mock_imports = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]
# Our packages do two things at import that mocks refuse: set an item of a table of JAX, and write
# types such as Tensor | None.
_MockObject.__setitem__ = lambda self, key, value: None
_MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self
autodoc_typehints = "none"  # types and shapes are in the docstrings
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The build runs these; the others need a framework and are only shown.
RUN = (
    "classification_boundary|cnn_lstm_text|cold_posteriors|compare_methods|covariate_shift|"
    "dropout_extrapolation|embed_numba|fashion_mnist|mushroom_bandit|out_of_distribution|own_loop|"
    "regression_bands|resnet_hmc|rotated_digit|weight_pruning"
)
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/({RUN})\.py$",
    "image_scrapers": ("pictures.scrape",),
    "reset_argv": "pictures.arguments",
    "reset_modules": (),
    "backreferences_dir": "api/backreferences",
    "doc_module": ("ribbit",),
    "reference_url": {"ribbit": None},
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": (),
    "abort_on_example_error": True,
    "copyfile_regex": r"index\.rst",  # our own index: topic groups
    "minigallery_sort_order": "pictures.place",
    "remove_config_comments": True,
    "default_thumb_file": str(HERE / "_static" / "program.png"),
    "write_computation_times": False,  # its table comes from the network
}

html_theme = "pydata_sphinx_theme"
html_title = f"Ribbit {release}"
html_static_path = ["_static"]
html_css_files = ["ribbit.css"]
html_js_files = ["ribbit.js"]
html_search_scorer = str(HERE / "_templates" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_favicon = "_static/logo.svg"
# Pages with wide tables have the whole width, the home page too.
WIDE = (
    "aarch64|benchmarks|digits|effective|ensemble_starts|gpu_paper|gpu_report|izmailov|mclmc|"
    "measurements|parallel_costs|platforms|results|roofline|scaling|shapes|sklearn_defaults"
)
html_sidebars = {
    name: []
    for name in ["index", "performance", *(f"developer/{page}" for page in WIDE.split("|"))]
}
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo_dark.svg",
        "text": "Ribbit",
        "alt_text": "",  # the text says it
    },
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 5,
    "secondary_sidebar_items": {"**": ["page-toc"], **{name: [] for name in html_sidebars}},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "show_prev_next": True,
}
mathjax_path = "mathjax/tex-chtml.js"
MATHJAX = ("tex-chtml.js", "output/chtml/fonts", "a11y", "sre")  # a menu may ask for the last two


def copy_mathjax(app, exception):
    """Copy MathJax and its fonts to the other scripts."""
    if exception is not None or app.builder.format != "html":
        return
    origin = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
    for name in MATHJAX:
        file, copy = origin / "static/mathjax" / name, Path(app.outdir) / "_static/mathjax" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            shutil.copytree(file, copy, dirs_exist_ok=True)
        elif file.exists():
            shutil.copy(file, copy)


def setup(app):
    """Connect `copy_mathjax` to the end of the build."""
    app.connect("build-finished", copy_mathjax)
