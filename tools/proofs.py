"""Write the links of the proofs in docs/operate/safety.md, and the planted bugs in docs/operate/invariants.md."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tools.generated_tables import with_tables

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "operate"
SAFETY, INVARIANTS = PAGES / "safety.md", PAGES / "invariants.md"
_PROOF = re.compile(r"\[([\w-]+)\](?!\(|:)")
_INVARIANT = re.compile(r"^\| `([\w-]+)` \|", re.MULTILINE)
_TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
_BREAKS = re.compile(r"Breaks: ([\w-]+)\n")


def proven_claims() -> set[str]:
    """Return the names that safety.md names as proofs."""
    return set(_PROOF.findall(SAFETY.read_text(encoding="utf-8")))


def proof_files() -> dict[str, Path]:
    """Return each possible proof, with the file that shows it: tests and invariants."""
    tests = {
        name: path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in _TEST.findall(path.read_text(encoding="utf-8"))
    }
    return tests | dict.fromkeys(_INVARIANT.findall(INVARIANTS.read_text(encoding="utf-8")), INVARIANTS)


def links() -> Iterator[str]:
    """Yield the link of each proof. A proof that does not exist has none: `tests/unit/test_docs.py` reports it."""
    known = proof_files()
    for name in sorted(proven_claims() & set(known)):
        yield f"[{name}]: {_link(known[name])}"


def planted_bugs() -> Iterator[str]:
    """Yield a row for each planted bug."""
    yield from ("| planted bug | breaks |", "|---|---|")
    for path in sorted((ROOT / "tests" / "mutants").glob("*.patch")):
        breaks = _BREAKS.match(path.read_text(encoding="utf-8"))
        yield f"| [{path.stem}]({_link(path)}) | {f'`{breaks[1]}`' if breaks else ''} |"


def _link(target: Path) -> str:
    return Path(os.path.relpath(target, PAGES)).as_posix()


def files() -> dict[Path, str]:
    """Return both pages."""
    return {
        SAFETY: with_tables(SAFETY, {"proofs": links}),
        INVARIANTS: with_tables(INVARIANTS, {"planted bugs": planted_bugs}),
    }
