"""Every figure of docs/benchmarks.md comes from a file that names its command, seeds and commit."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import PROJECT
from tools import benchmark_tables

FILES = sorted(benchmark_tables.RESULTS.glob("*.json"))
PAGE = benchmark_tables.PAGE.read_text("utf-8")
MEASURED = re.compile(r"\d\.\d|\$\d|\d ?%|\d ?×|\d,\d{3}")
"""Pattern of a measured number: a decimal, dollars, a percentage, a factor, or thousands."""


def _git(*words: str) -> str:
    """Return the output of git; empty if git fails or this is no working copy."""
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=False).stdout.strip()


def figures_in_file(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((benchmark_tables.RESULTS / name).read_text("utf-8"))
    return document


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_results_name_their_command_seeds_and_commit(path: Path) -> None:
    figures = figures_in_file(path.name)

    assert figures["command"].startswith("python -m bench")
    assert isinstance(figures["seeds"], list)
    assert re.fullmatch(r"[0-9a-f]{8,40}", figures["commit"])
    assert f"../bench/results/{path.name}" in PAGE


@pytest.mark.skipif(_git("rev-parse", "--is-shallow-repository") != "false", reason="needs the whole git history")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commit_named_by_benchmark_results_is_in_the_history(path: Path) -> None:
    commit = figures_in_file(path.name)["commit"]

    assert _git("merge-base", commit, "HEAD") == _git("rev-parse", commit) != ""


def test_benchmark_page_names_only_commits_of_its_results() -> None:
    named_commits = set(re.findall(r"`([0-9a-f]{7,40})`", PAGE))

    assert named_commits == {figures_in_file(path.name)["commit"] for path in FILES}


def test_benchmark_page_has_the_generated_tables() -> None:
    page_without_tables = re.sub(r"<!-- table: .*?<!-- end -->", "", PAGE, flags=re.DOTALL)

    assert [line for line in page_without_tables.splitlines() if line.startswith("|") and MEASURED.search(line)] == []


def test_changed_figure_makes_the_page_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        if path.name == "elastic.json":
            text = json.dumps({**json.loads(text), "off-peak": {**json.loads(text)["off-peak"], "recovered": 0.5}})
        (tmp_path / path.name).write_text(text, "utf-8")
    monkeypatch.setattr(benchmark_tables, "RESULTS", tmp_path)

    assert "**50.0%**" in benchmark_tables.files()[benchmark_tables.PAGE]
    assert "**50.0%**" not in PAGE
