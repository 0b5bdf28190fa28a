"""Help for the gallery: the order of the examples, their pictures and their command lines.

The examples write their pictures into the working folder, which during a build is ``examples/``.
"""

import shutil
import time
from pathlib import Path

from sphinx_gallery.scrapers import figure_rst

# Without --data these use generated images or text; with --quick they take seconds.
QUICK = ("cnn_lstm_text", "covariate_shift", "fashion_mnist", "out_of_distribution", "resnet_hmc")
INDEX = Path(__file__).parents[2] / "examples" / "index.rst"
_begun = time.time()


def arguments(gallery_conf, script_vars):
    """Return the command line of the example that runs next."""
    return ["--quick"] if Path(script_vars["src_file"]).stem in QUICK else []


def place(path):
    """Return where the index lists an example: its thumbnails keep that order everywhere."""
    return INDEX.read_text(encoding="utf-8").find(f"/{Path(path).name}")


def scrape(block, block_vars, gallery_conf):
    """Move the picture that an example wrote into the gallery."""
    path = Path(block_vars["src_file"])
    picture = path.with_suffix(".png")
    if not picture.is_file() or picture.stat().st_mtime < _begun:
        return ""
    image = next(block_vars["image_path_iterator"])
    shutil.move(picture, image)
    alt = f"The picture that {path.name} draws; the text above describes it."
    return figure_rst([image], gallery_conf["src_dir"], alt)
