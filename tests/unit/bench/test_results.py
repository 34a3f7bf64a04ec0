"""Every figure of docs/benchmarks.md comes from a file that names its command, seeds and commit."""

import json
import random
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.scale.model import Latencies, load_setup
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


FIGURE = re.compile(r"(?<![\w.,/`-])\$?\d[\d,]*(?:\.\d+)?(?: ?(?:%|×|ms|s|MB|kB|GB|h)(?!\w))?(?![\w/])")
STATED = {
    "95 %": "confidence of the intervals",
    "10 %": "margin of bench.check",
    "150 ms": "pause of the engine, a constant of its source",
    "30 s": "how long a function keeps the policy, a constant",
    "1,769 MB": "AWS's documentation: memory of a whole vCPU",
    "18 kB": "size of the sample node",
    "2 s": "assumed limit of HyperPod's API and three attempts of the SDK",
    "0.87": "memory of the watch in template.yaml over that of a whole vCPU",
    "1,280 MB": "memory of the watch in the run",
    "1,536 MB": "memory of the watch in template.yaml",
    "4.5 s": "processor seconds of the watch in scale.json over its share of a vCPU",
    "1.1 s": "bound that test_bound_of_a_cold_event_follows_from_the_assumed_latencies computes",
    "1 s": "aim",
    "3 s": "aim",
    "1.5 s": "aim",
    "$0.001": "aim",
    "200 kB": "aim",
    "1.2": "aim",
    "1.4": "aim",
    "2.0": "aim",
    "20,000": "aim",
    "30,000": "aim",
    "0.85": "aim",
    "85 %": "load of the replay, a setting",
    "0.8": "sigma, a setting of bench/setups/burst.json",
    "150 s": "standstill of a resize, a setting of bench/setups/burst.json",
    "2.7 MB": "fixed bare loop of bench/fixed_admissions.py",
    "15,264": "jobs of the trace, bench/traces/README.md",
    "1,000": "size of a run",
    "1,800": "size of a run",
    "2,000": "size of a run, and draws",
    "10,000": "size of a run",
    "100,000": "size of a run",
    "1,000,000": "size of a run",
}
"""Figures of the prose that are settings, sizes or aims, and no measurements."""


def test_prose_has_no_measured_figure_without_a_file() -> None:
    prose = re.sub(r"<!-- table: .*?<!-- end -->|```.*?```|`[^`\n]*`|\(\S*\)", "", PAGE, flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    figures = {
        figure for line in lines for figure in FIGURE.findall(line) if MEASURED.search(figure) or figure[-1:].isalpha()
    }

    assert figures - STATED.keys() - figures_from_files().keys() == set(), (
        "Move a measured figure into a table of tools/benchmark_tables.py, or read it in figures_from_files."
    )
    assert STATED.keys() | figures_from_files().keys() <= figures, "remove the figures that the page no longer has"


def figures_from_files() -> dict[str, str]:
    """Return the measured figures of the prose, as their files give them, with the file."""
    reads = figures_in_file("scale-queue.json")["results"][0]
    return (
        {f"{reads['bytesRead'] / 1e6:.0f} MB": "scale-queue.json"}
        | dict.fromkeys(bound_of_the_warm_path(), "event_to_cordon.json")
        | {bound_of_a_cold_start(): "event_to_cordon-slow-machine.json and cold-start-parts.json"}
    )


def bound_of_a_cold_start() -> str:
    """Return the cold ratio if all code of Evenkeel except its models loaded at once."""
    ratios = figures_in_file("event_to_cordon-slow-machine.json")["ratios"]
    libraries, cold = ratios["libraries/empty, cold, p50"], ratios["evenkeel/empty, cold, p50"]
    starts = figures_in_file("cold-start-parts.json")["functions"]
    share_of_models = statistics.mean(start["models"] / (1 - start["libraries"]) for start in starts)
    return f"{libraries + (cold - libraries) * share_of_models:.1f}"


def bound_of_the_warm_path() -> list[str]:
    """Return the times of the two lanes without the pause, and the ratios with six calls instead of eight."""
    ratios, pause = figures_in_file("event_to_cordon.json")["ratios"], 150.0
    without_pause, with_pause = ratios["evenkeel/empty, without the pause, p50"], ratios["evenkeel/empty, p50"]
    empty = pause * (with_pause - 1) / (without_pause - with_pause)
    calls = empty * (without_pause - 1)
    six_calls = calls * 6 / 8
    return [
        *(f"{milliseconds:.0f} ms" for milliseconds in (empty, calls)),
        *(f"{1 + six_calls / (idle + empty):.2f}" for idle in (0.0, pause)),
    ]


def largest_watch() -> dict[str, Any]:
    """Return the figures of the watch at 10,000 nodes."""
    results: list[dict[str, Any]] = figures_in_file("scale.json")["results"]
    return next(result for result in results if (result["case"], result["nodes"]) == ("watch", 10_000))


def test_counts_of_the_prose_are_those_of_their_files() -> None:
    watch = largest_watch()
    reads = figures_in_file("scale-queue.json")["results"][0]
    prose = " ".join(PAGE.split())

    assert f"at 10,000 jobs, {watch['calls']['dynamodb:BatchGetItem']} reads of up to 100 rows" in prose
    assert f"decision records of {reads['examined'] - reads['admitted']} waiting jobs" in prose


def test_bound_of_a_cold_event_follows_from_the_assumed_latencies() -> None:
    start, dice = Latencies(load_setup()).of("lambda cold start"), random.Random(1)
    totals = sorted(sum(start.sample(dice) for _ in range(3)) for _ in range(20_000))

    assert f"these starts alone takes {totals[-200]:.1f} s at p99" in " ".join(PAGE.split())


def test_watch_with_more_memory_takes_stated_seconds() -> None:
    watch = largest_watch()
    seconds = (watch["ownProcessorSeconds"] + watch["clientProcessorSeconds"]) / (1536 / 1769)

    assert f"divided by the new share of a vCPU are {seconds:.1f} s" in " ".join(PAGE.split())


def test_vcpu_of_the_watch_follows_from_its_memory() -> None:
    template = (PROJECT / "template.yaml").read_text("utf-8")
    memory = re.search(r"  WatchCluster:\n(?:    .*\n)*?      MemorySize: (\d+)", template)

    assert memory
    assert f"has {int(memory[1]) / 1769:.2f} of a vCPU" in PAGE


def test_changed_figure_makes_the_page_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        if path.name == "elastic.json":
            text = json.dumps({**json.loads(text), "off-peak": {**json.loads(text)["off-peak"], "recovered": 0.5}})
        (tmp_path / path.name).write_text(text, "utf-8")
    monkeypatch.setattr(benchmark_tables, "RESULTS", tmp_path)

    assert "**50.0%**" in benchmark_tables.files()[benchmark_tables.PAGE]
    assert "**50.0%**" not in PAGE
