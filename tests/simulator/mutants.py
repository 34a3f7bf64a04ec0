"""Apply each bug of `tests/mutants/` to a copy of the tree, and check that the seeds find it: `make mutants`.

A patch begins with `Breaks: <invariant>`, followed by a description of the bug. It must fail that invariant, and may
fail more. A patch that no longer applies is an error: the rule that it removes has moved.

`tests/mutants/seeds.json` keeps the seed that found each bug last time. This seed runs first; if it finds nothing any
more, all seeds run from 1, and the file gets the new seed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.simulator.fuzz import run_seed

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests" / "mutants"
FOUND_BY = PATCHES / "seeds.json"
SEEDS = 1500
"""Four of five mutants are found within 100 seeds. The others need a coincidence, for example a refusal of capacity
between two rentals of one pool."""
_COPIED = (
    "shared",
    "functions",
    "statemachines",
    "template.yaml",
    "tests/fakes",
    "tests/kueue_checker.py",
    "tests/simulator",
    "tests/template",
    "tests/workflow",
)


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def invariant(self) -> str:
        """The invariant that it must break."""
        first = self.path.read_text().partition("\n")[0]
        return first.removeprefix("Breaks: ").strip()


@dataclass(frozen=True)
class MutantDetection:
    """Results of the seeds on a mutant."""

    seed: int = 0
    """0 if no seed broke the invariant."""
    text: str = ""


def mutants() -> list[Mutant]:
    return [Mutant(path) for path in sorted(PATCHES.glob("*.patch"))]


def copy_and_apply(patch: Path, folder: Path, names: Sequence[str]) -> str:
    """Copy files and folders of the tree and apply a patch; return why that failed, empty where it did not."""
    copy_tree(folder, names)
    return apply_patch(patch, folder)


def copy_tree(folder: Path, names: Sequence[str]) -> None:
    """Copy files and folders of the tree."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def apply_patch(patch: Path, folder: Path, *options: str) -> str:
    """Apply a patch to a tree; return why that failed, empty where it did not."""
    command = ["git", "apply", *options, "--recount", "-C1", str(patch)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stderr.strip()


def why_not_applicable(patch: Path) -> str:
    """Return why a patch does not plant its bug in this tree; empty if it does."""
    if refused := apply_patch(patch, ROOT, "--check"):
        return refused
    for path, lines in _replaced_lines(patch):
        count = f"\n{(ROOT / path).read_text()}".count(f"\n{lines}\n")
        if count != 1:
            return f"the lines of a hunk occur {count} times in {path}, so another place may be changed"
    return ""


def _replaced_lines(patch: Path) -> Iterator[tuple[str, str]]:
    """Yield the file of each hunk, and the lines that the hunk replaces, with the lines around them."""
    path = ""
    for part in re.split(r"^(?=@@ |diff --git )", patch.read_text(), flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        if part.startswith("diff"):
            path = lines[1].removeprefix("--- a/")
        else:
            yield path, "\n".join(line[1:] for line in lines[1:] if not line.startswith("+"))


def run_seeds(mutant: Mutant, seeds: int, first_seed: int) -> MutantDetection:
    """Run seeds in a tree with the bug until its invariant breaks: `first_seed`, then 1 to `seeds`.

    Raises:
        RuntimeError: the patch does not apply, or the tree with the bug does not run.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if failed := copy_and_apply(mutant.path, folder, _COPIED):
            raise RuntimeError(f"{mutant.name} no longer applies: {failed}")
        paths = os.pathsep.join([str(folder / "shared"), str(folder)])
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "tests.simulator.mutants", "--seek", mutant.invariant),
                *("--first-seed", str(first_seed), "--seeds", str(seeds)),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode:
        raise RuntimeError(f"{mutant.name} does not run: {ran.stderr.strip()[-2000:]}")
    return MutantDetection(**json.loads(ran.stdout))


def find_violation(invariant: str, seeds: int, first_seed: int) -> MutantDetection:
    """Return the first seed of `first_seed`, 1, 2, ... that breaks the invariant here."""
    for seed in (first_seed, *range(1, seeds + 1)):
        for violation in run_seed(seed).violations:
            if violation.invariant == invariant:
                return MutantDetection(seed, violation.text)
    return MutantDetection()


def known_seeds() -> dict[str, int]:
    """Return the seed that found each mutant last time, by the mutant's name."""
    seeds: dict[str, int] = json.loads(FOUND_BY.read_text())
    return seeds


def _keep_seed(name: str, seed: int) -> None:
    """Write the seed that found a mutant, or none, at once: a run that stops early loses nothing."""
    names = {mutant.name for mutant in mutants()}
    seeds = {**known_seeds(), name: seed}
    kept = {name: seed for name, seed in sorted(seeds.items()) if seed and name in names}
    FOUND_BY.write_text(json.dumps(kept, indent=2) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seek", metavar="INVARIANT", help="look for a seed that breaks it, in this very tree")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="so many at most; 0: only the known seed of each")
    parser.add_argument("--first-seed", type=int, default=1, help="with --seek: the seed that runs before the others")
    parser.add_argument("names", nargs="*", help="only these mutants")
    args = parser.parse_args(arguments)
    if args.seek:
        mutant_detection = find_violation(args.seek, args.seeds, args.first_seed)
        print(json.dumps({"seed": mutant_detection.seed, "text": mutant_detection.text}))
        return 0
    chosen = [mutant for mutant in mutants() if not args.names or mutant.name in args.names]
    print(f"{'mutant':34} {'invariant':28} seed  what broke")
    survived = 0
    known = known_seeds()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {
            pool.submit(run_seeds, mutant, args.seeds, known.get(mutant.name, 1)): mutant
            for mutant in sorted(chosen, key=lambda mutant: mutant.name not in known)
        }
        for detection in as_completed(running):
            mutant = running[detection]
            try:
                mutant_detection = detection.result()
            except RuntimeError as error:
                survived += 1
                print(f"{mutant.name:34} {mutant.invariant:28} BROKEN: {error}", flush=True)
                continue
            survived += not mutant_detection.seed
            _keep_seed(mutant.name, mutant_detection.seed)
            text = (
                f"{mutant_detection.seed:4}  {mutant_detection.text[:90]}"
                if mutant_detection.seed
                else f"   -  SURVIVED {args.seeds} seeds"
            )
            print(f"{mutant.name:34} {mutant.invariant:28} {text}", flush=True)
    print(f"mutants: {len(chosen) - survived} of {len(chosen)} found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
