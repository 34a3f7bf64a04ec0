"""From a node-health event to a node that is unschedulable: the product against two yardsticks, in one run.

    evenkeel   rule → queue → receive_event → recover_node: PlanRecovery → CordonNode          all of it real
    empty      rule → queue → a function    → recover_node: the same, functions only answer     the PATCH is real
    bare       rule →         a function                                                        the PATCH is real

The lanes take turns, one event each a round, in changing order, on one engine with one fleet: what disturbs the machine
disturbs all three. Before each event the whole fleet takes work and no recovery runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.figures import Ratio, quantile, ratio
from bench.lanes import BenchFailed, Sample, Track
from bench.node_watch import NodeWatch, admin_api
from evenkeel_local.data_centre import DataCentre, FleetShape, Say

EVENKEEL: Final = "evenkeel"
EMPTY: Final = "empty"
BARE: Final = "bare"
LANES: Final = (EVENKEEL, EMPTY, BARE)
SOURCES: Final = {EVENKEEL: "evenkeel.drill", EMPTY: "evenkeel.bench.empty", BARE: "evenkeel.bench.bare"}
FUNCTIONS: Final = ("receive_event", "plan_recovery", "cordon_node")
NODES: Final = 4

# A replacement takes minutes in life and is not what is measured here: it only makes the node whole for the next event.
_FLEET: Final = FleetShape(
    nodes=NODES,
    duplicate_events=False,
    delays={
        "boot": 0.2,
        "reboot": 0.2,
        "replace": 0.3,
        "heartbeat": 0.5,
        "nodeMonitorGrace": 5.0,
        "agentDetect": 0.3,
        "eventDelay": 0.1,
    },
)


@dataclass(frozen=True)
class Stage:
    """One stretch of the way, at the median, in the two lanes that have it."""

    name: str
    evenkeel: float
    empty: float | None


@dataclass(frozen=True)
class Report:
    """What a run saw."""

    samples: Mapping[str, tuple[Sample, ...]]
    stages: tuple[Stage, ...]
    own: Mapping[str, tuple[float, ...]]
    """Seconds that each function of the product spent on an event, as it logged them itself."""

    def seconds(self, lane: str) -> list[float]:
        return [sample.seconds for sample in self.samples[lane]]

    def against(self, yardstick: str) -> Ratio:
        """Return the product's lane divided by a yardstick's."""
        return ratio(self.seconds(EVENKEEL), self.seconds(yardstick))

    def ratios(self) -> dict[str, float]:
        """Return the figures that a baseline keeps: ratios alone."""
        named = {}
        for yardstick in (EMPTY, BARE):
            against = self.against(yardstick)
            named |= {f"{EVENKEEL}/{yardstick} p50": against.p50, f"{EVENKEEL}/{yardstick} p99": against.p99}
        return named

    def to_json(self) -> dict[str, Any]:
        """Return all of it, samples included, as a file holds it."""
        return {
            "ratios": self.ratios(),
            "intervals": {
                f"{EVENKEEL}/{yardstick} p50": [against.p50_low, against.p50_high]
                for yardstick in (EMPTY, BARE)
                for against in (self.against(yardstick),)
            },
            "seconds": {
                lane: {"p50": quantile(seconds, 0.5), "p99": quantile(seconds, 0.99)}
                for lane in LANES
                for seconds in (self.seconds(lane),)
            },
            "stages": [{"name": each.name, EVENKEEL: each.evenkeel, EMPTY: each.empty} for each in self.stages],
            "ownSeconds": {
                name: {"p50": quantile(spent, 0.5), "p99": quantile(spent, 0.99)} for name, spent in self.own.items()
            },
            "samples": {
                lane: [
                    {"seconds": each.seconds, "acceptSeconds": each.accept_seconds, "marks": dict(each.marks)}
                    for each in self.samples[lane]
                ]
                for lane in LANES
            },
        }


def run(run_dir: Path, *, rounds: int, warm_up: int, say: Say) -> Report:
    """Bring up a data centre with the real stack, deploy the yardsticks beside it, and measure.

    Args:
        run_dir: Folder for logs and state; emptied first.
        rounds: Events a lane that count.
        warm_up: Rounds before them, which do not: functions start, clients connect.
        say: Is told in a few words what happens next.

    Raises:
        BenchFailed: something that was awaited did not happen.
    """
    with DataCentre.start(run_dir, fleet=_FLEET, say=say) as centre, NodeWatch(admin_api(centre.cluster)) as watch:
        track = Track(centre, watch)
        yardsticks = track.deploy_yardsticks(say)
        machines = {EVENKEEL: centre.outputs["RecoverNodeArn"], EMPTY: yardsticks["RecoverNodeArn"]}
        taken: dict[str, list[Sample]] = {lane: [] for lane in LANES}
        for number in range(-warm_up, rounds):
            if number % 10 == 0 or number == -warm_up:
                say(f"round {number} of {rounds}" if number >= 0 else f"warming up, {warm_up} rounds")
            for lane in LANES[number % 3 :] + LANES[: number % 3]:
                sample = _one(track, lane, machines.get(lane))
                if number >= 0:
                    taken[lane].append(sample)
        own = _own_seconds(centre, {sample.execution.rpartition("-r")[0] for sample in taken[EVENKEEL]})
    return Report({lane: tuple(samples) for lane, samples in taken.items()}, tuple(_stages(taken)), own)


def _one(track: Track, lane: str, machine: str | None) -> Sample:
    node = track.next_node()
    sample = track.time_cordon(lane, SOURCES[lane], node)
    if machine is not None:
        sample = track.with_execution(sample, machine)
    if lane != EVENKEEL:
        track.uncordon(node)  # the product returns its node itself
    return sample


def _stages(taken: Mapping[str, Sequence[Sample]]) -> Iterable[Stage]:
    """Cut the way at the marks that both workflows leave in their histories."""
    cuts = (
        ("event → workflow starts", None, "started"),
        ("→ PlanRecovery is called", "started", "entered PlanRecovery"),
        ("→ PlanRecovery has answered", "entered PlanRecovery", "left PlanRecovery"),
        ("→ CordonNode is called", "left PlanRecovery", "entered CordonNode"),
        ("→ node unschedulable", "entered CordonNode", None),
    )
    for name, since, until in cuts:
        medians = [
            statistics.median(
                (sample.seconds if until is None else sample.marks[until])
                - (0.0 if since is None else sample.marks[since])
                for sample in taken[lane]
            )
            for lane in (EVENKEEL, EMPTY)
        ]
        yield Stage(name, *medians)


def _own_seconds(centre: DataCentre, incidents: set[str]) -> dict[str, tuple[float, ...]]:
    """Read what each function logged about the measured incidents: from its first line of code to its last."""
    logs = centre.deployer.client("logs")
    spent: dict[str, tuple[float, ...]] = {}
    for function in FUNCTIONS:
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/evenkeel-{function}")
        lines = [_parsed(event["message"]) for page in pages for event in page["events"]]
        found = [line for line in lines if line.get("incidentId") in incidents and "milliseconds" in line]
        if len(found) < len(incidents):
            raise BenchFailed(f"{function} logged {len(found)} of {len(incidents)} incidents")
        spent[function] = tuple(float(line["milliseconds"]) / 1000 for line in found)
    return spent


def _parsed(line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
