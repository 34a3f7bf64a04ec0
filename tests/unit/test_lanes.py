"""The lanes of `make test` run each test file once."""

from pathlib import Path

from tools.test_lanes import LANES

ROOT = Path(__file__).resolve().parents[2]
RUN_BY_LINT = "tests/template/test_lint.py"


def lanes_of(test_file: str) -> list[str]:
    """Return the lanes that run a test file, once for each path that names it."""
    lanes = []
    for lane, arguments in LANES.items():
        ignored = tuple(word.removeprefix("--ignore=") for word in arguments if word.startswith("--ignore="))
        paths = [word for word in arguments if not word.startswith("--")]
        if not any(Path(test_file).is_relative_to(path) for path in ignored):
            lanes += [lane for path in paths if Path(test_file).is_relative_to(path)]
    return lanes


def test_each_test_file_runs_in_one_lane() -> None:
    test_files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]

    lanes_by_file = {path: lanes_of(path) for path in test_files if path != RUN_BY_LINT}

    assert len(lanes_by_file) > 300
    wrong = {path: lanes for path, lanes in lanes_by_file.items() if len(lanes) != 1}
    assert not wrong, "add each of these files to one lane of tools/test_lanes.py"


def test_every_path_of_a_lane_exists() -> None:
    words = [word.removeprefix("--ignore=") for arguments in LANES.values() for word in arguments]

    assert [word for word in words if not (ROOT / word).exists()] == []
