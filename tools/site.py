"""Build the documentation site in build/site: `make docs`. A dead link is an error."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MKDOCS = ROOT / ".tools" / "site" / "bin" / "mkdocs"


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site in a folder, and return the output of mkdocs."""
    command = [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Build the site, and print where it is."""
    folder = ROOT / "build" / "site"
    done = build(folder)
    print(
        (done.stdout + done.stderr).strip()
        or "docs: built. To read: python3 -m http.server -b 127.0.0.1 -d build/site",
        flush=True,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
