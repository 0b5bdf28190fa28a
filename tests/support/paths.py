"""Where the source tree and the development data lie."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "cpp"
EXAMPLES = ROOT / "examples"


def data_folder() -> Path | None:
    """Folder of the development data sets, or None.

    Found through RIBBIT_SHARED_DATA, or as ../shared/data beside the checkout.
    """
    folder = Path(os.environ.get("RIBBIT_SHARED_DATA", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None
