"""Sixty seeds (five hundred in `make test-all`), and the simulator itself: a seed always gives the same run."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulator.coverage import never_seen
from tests.simulator.fuzz import ROOT, print_trace, run_all, run_seed
from tests.simulator.invariants import TABLE, CheckTrigger

FEW, ALL = 70, 500
OUTCOMES = ("end ", "recover_node: ", "run_job: ", "burst_capacity: ")
"""The outcomes that need not all occur. All seeds together must try every disturbance and every guardrail."""
MAX_UNTRIED = 20
"""Number of kinds of disturbance that the first `FEW` seeds may miss."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("last", "most_untried"), [(FEW, MAX_UNTRIED), pytest.param(ALL, 0, marks=pytest.mark.exhaustive)]
)
def test_every_invariant_holds_on_every_seed(last: int, most_untried: int) -> None:
    chunks = list(run_all(1, last, processes=os.cpu_count() or 1))

    failed = [result for chunk in chunks for result in chunk.failed]
    assert not failed, print_trace(failed[0])
    assert sum(chunk.last - chunk.first + 1 for chunk in chunks) == last
    # A simulation without any event would satisfy every invariant.
    assert sum(chunk.incidents for chunk in chunks) > last
    assert sum(chunk.decisions for chunk in chunks) > 5 * last
    seen_events = sum((chunk.seen for chunk in chunks), Counter())
    untried = [kind for kind in never_seen(seen_events) if not kind.startswith(OUTCOMES)]
    assert len(untried) <= most_untried, f"never tried in seeds 1 to {last}: {untried}"


def test_same_seed_gives_the_same_run_in_every_process() -> None:
    program = "from tests.simulator.fuzz import run_seed; print(*(run_seed(seed).trace for seed in (7, 8, 9)))"
    here = " ".join(run_seed(seed).trace for seed in (7, 8, 9))

    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},  # usually another hash seed than here
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.strip() == here


@pytest.mark.parametrize(
    "seed", [*range(1, 5), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(5, 13))]
)
def test_caching_reads_changes_no_simulated_run(seed: int) -> None:
    assert run_seed(seed).trace == run_seed(seed, is_strict=True).trace


def test_every_trigger_of_checks_has_an_invariant() -> None:
    assert {invariant.moment for invariant in TABLE} == set(CheckTrigger)


def test_invariants_page_quotes_every_invariant() -> None:
    text = (ROOT / "docs" / "operate" / "invariants.md").read_text()
    rows = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in text.splitlines() if "|" in line}
    names = {invariant.name for invariant in TABLE}

    listed = {row[0].strip("`"): row[1] for row in rows if row[0].startswith("`")}
    assert listed == {invariant.name: invariant.sentence for invariant in TABLE if invariant.sentence}
    assert set(listed) == names
