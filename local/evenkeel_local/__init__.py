"""A data centre on a laptop: the real template on a local AWS engine, and a GPU cluster that runs real processes."""

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
"""The project's folder, with the tools' environments and the template."""

REGION: Final = "us-west-2"
ACCOUNT_ID: Final = "000000000000"
