"""Short versions of the benchmarks for `make bench-check`: paired samples of a lane and of its yardstick.

`docs/benchmarks.md` lists the lanes with their costs and yardsticks.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import admissions, event_to_cordon, plan, queues
from bench.event_to_cordon import AIMED, EMPTY, EVENKEEL
from bench.scale import client_costs
from bench.scale.fleet import FleetSize
from bench.scale.functions import cold_start
from bench.scale.model import load_setup
from bench.scale.scenarios import Bench

NODES: Final = 1_000
_QUEUED, _DECISIONS = 10_000, 4_000
_COLD = ("receive_event", "plan_recovery", "cordon_node", "schedule_jobs")
_COMMANDS = ("--help", f"{plan.JOBS} jobs, evenkeel")
_RUNS = {"cycle": "schedule_jobs", "watch": "watch_cluster", "sweep": "sweep_fleet"}


class Pair(NamedTuple):
    """A sample: the cost of a lane, and the cost of its yardstick measured immediately before or after."""

    lane: float
    yardstick: float


Samples = Mapping[str, Sequence[Pair]]
"""Name of a lane → its samples."""
Measure = Callable[[int], Samples]
"""Measures a number of rounds of one or several lanes."""


def verdicts(rounds: int, *, fair: bool) -> Samples:
    """Measure decisions on the heads of long queues."""
    pairs = []
    for _ in range(rounds):
        loop = client_costs.reference_loop()
        speed = queues.measure_nominations(_QUEUED, _DECISIONS, fair=fair)
        pairs.append(Pair(1_000 / speed.nominations_per_second, loop))
    return {f"verdicts, {_QUEUED:,} queued{', fair sharing' if fair else ''}": pairs}


def service(rounds: int) -> Samples:
    """Measure the scheduled functions on a fleet in memory: processor seconds at the reference processor, and calls."""
    bench = Bench(load_setup(), client_costs.measure_clients(), {}, 1, measures_memory=False)
    pairs: dict[str, list[Pair]] = {}
    for _ in range(rounds):
        for case, function in _RUNS.items():
            measured = bench.one_invocation(case, function, FleetSize(NODES, NODES))
            pairs.setdefault(f"{case}, {NODES:,} nodes, processor", []).append(Pair(measured.service_seconds, 1.0))
            pairs.setdefault(f"{case}, {NODES:,} nodes, calls", []).append(Pair(measured.calls.total(), 1.0))
    return pairs


def cold_starts(rounds: int) -> Samples:
    """Measure the import of functions and the creation of their clients: seconds at the reference processor."""
    return {
        f"cold start of {function}": [Pair(cold_start(function).processor_seconds, 1.0) for _ in range(rounds)]
        for function in _COLD
    }


def command_line(rounds: int) -> Samples:
    """Measure `evenkeel --help` and `evenkeel plan`."""
    with tempfile.TemporaryDirectory() as folder:
        commands = plan.lanes(Path(folder))
        empty = commands["imports alone"]
        pairs: dict[str, list[Pair]] = {f"evenkeel, {name}": [] for name in _COMMANDS}
        for _ in range(rounds):
            for name in _COMMANDS:
                seconds = plan.processor_seconds(commands[name])
                pairs[f"evenkeel, {name}"].append(Pair(seconds, plan.processor_seconds(empty)))
    return pairs


def durable_admissions(rounds: int) -> Samples:
    """Measure scheduling cycles against the fixed bare loop. A ratio of seconds: above 1 the cycle is slower."""
    return {
        f"durable admissions, {report.writers} writers": [
            Pair(*pair) for pair in zip(report.seconds["cycle"], report.seconds["bare"], strict=True)
        ]
        for report in admissions.run(rounds)
    }


def to_cordon(rounds: int) -> Samples:
    """Measure from a health event to the cordon, warm and cold, against the workflow with empty services."""
    with tempfile.TemporaryDirectory() as folder:
        report = event_to_cordon.run(
            Path(folder), rounds=rounds, warm_up=1, cold_rounds=max(3, rounds // 2), say=lambda _: None
        )
    warm = list(zip(report.warm[EVENKEEL], report.warm[EMPTY], strict=True))
    cold = list(zip(report.cold[EVENKEEL], report.cold[EMPTY], strict=True))
    return {
        AIMED: [Pair(evenkeel_sample.seconds, other.seconds) for evenkeel_sample, other in warm],
        f"{AIMED}, without the pause": [
            Pair(evenkeel_sample.moving_seconds, other.moving_seconds) for evenkeel_sample, other in warm
        ],
        f"{AIMED}, cold": [Pair(evenkeel_sample.seconds, other.seconds) for evenkeel_sample, other in cold],
    }


IN_PROCESS: Final[Mapping[str, Measure]] = {
    "verdicts": functools.partial(verdicts, fair=False),
    "fair": functools.partial(verdicts, fair=True),
    "service": service,
    "cold": cold_starts,
    "cli": command_line,
}
ON_ENGINE: Final[Mapping[str, Measure]] = {"admissions": durable_admissions, "cordon": to_cordon}
"""Lanes that start the local engine."""
LANES: Final[Mapping[str, tuple[str, ...]]] = {
    "verdicts": (f"verdicts, {_QUEUED:,} queued",),
    "fair": (f"verdicts, {_QUEUED:,} queued, fair sharing",),
    "service": tuple(f"{case}, {NODES:,} nodes, {cost}" for case in _RUNS for cost in ("processor", "calls")),
    "cold": tuple(f"cold start of {function}" for function in _COLD),
    "cli": tuple(f"evenkeel, {name}" for name in _COMMANDS),
    "admissions": tuple(f"durable admissions, {writers} writers" for writers in admissions.WRITERS),
    "cordon": (AIMED, f"{AIMED}, without the pause", f"{AIMED}, cold"),
}
"""The names of each group's lanes, so that the report can name lanes that it did not measure."""
