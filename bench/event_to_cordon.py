"""From a node-health event to an unschedulable node: the product against two yardsticks, in one run.

    evenkeel   rule → queue → receive_event → recover_node: PlanRecovery → CordonNode          all of it real
    empty      rule → queue → a function    → recover_node: the same, functions only answer     the PATCH is real
    bare       rule →         a function                                                        the PATCH is real

With cold functions, there is one more lane, `libraries`: `empty`, whose functions also import the libraries of
Evenkeel's functions and create their clients. Only fewer libraries or clients could make Evenkeel faster than that.

The lanes alternate on one engine with one fleet, so a disturbance of the machine affects all alike. A round has one
event per lane, in changing order. Before each event every node is schedulable and no recovery runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cordon_timer import STACK as YARDSTICKS
from bench.cordon_timer import BenchFailed, CordonTimer, Sample
from bench.cpu_usage import Usage
from bench.figures import Ratio, ratio
from bench.node_watch import NodeWatch, admin_api
from evenkeel_local.data_centre import DataCentre, FleetShape, Say
from evenkeel_local.deployment import STACK_NAME

EVENKEEL: Final = "evenkeel"
EMPTY: Final = "empty"
BARE: Final = "bare"
LIBRARIES: Final = "libraries"
LANES: Final = (EVENKEEL, EMPTY, BARE)
COLD_LANES: Final = (*LANES, LIBRARIES)
AIMED: Final = f"{EVENKEEL}/{EMPTY}"
"""The comparison with a target."""
AIM: Final = 1.2
"""Highest ratio at the median."""
SOURCES: Final = {
    EVENKEEL: "aws.sagemaker",
    EMPTY: "evenkeel.bench.empty",
    LIBRARIES: "evenkeel.bench.empty",
    BARE: "evenkeel.bench.bare",
}
FUNCTIONS: Final = ("receive_event", "plan_recovery", "cordon_node")
FUNCTIONS_OF_LANE: Final = {
    EVENKEEL: tuple(f"{STACK_NAME}-{function}" for function in FUNCTIONS),
    EMPTY: tuple(f"{YARDSTICKS}-{function}" for function in FUNCTIONS),
    LIBRARIES: tuple(f"{YARDSTICKS}-{function}" for function in FUNCTIONS),
    BARE: (f"{YARDSTICKS}-cordon_at_once",),
}
"""Names of the functions that each lane invokes."""
MORE_CLIENTS: Final = {
    f"{YARDSTICKS}-receive_event": "dynamodb s3",
    f"{YARDSTICKS}-plan_recovery": "dynamodb sagemaker eks",
    f"{YARDSTICKS}-cordon_node": "dynamodb",
}
"""The clients that Evenkeel's functions create and the functions of `empty` do not, by function."""
NODES: Final = 4

# A replacement takes minutes on AWS. It is not measured here: it only restores the node for the next event.
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
class LatencyStage:
    """Seconds of a stage at the median, in the two lanes with a workflow."""

    name: str
    evenkeel: float
    empty: float


Samples = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True)
class LatencyReport:
    """Samples and figures of one run."""

    warm: Samples
    """By lane, with every function warm."""
    cold: Samples
    """By lane, with every function cold."""
    stages: tuple[LatencyStage, ...]
    own: Mapping[str, tuple[float, ...]]
    """Seconds that each function of the product logged for an event; warm."""
    others: float
    """Share of all processors that other programs used."""

    def comparisons(self) -> dict[str, Ratio]:
        """Return every comparison of the product with a yardstick, by name."""
        warm = {lane: [sample.seconds for sample in samples] for lane, samples in self.warm.items()}
        moving = {lane: [sample.moving_seconds for sample in samples] for lane, samples in self.warm.items()}
        cold = {lane: [sample.seconds for sample in samples] for lane, samples in self.cold.items()}
        named = {
            AIMED: ratio(warm[EVENKEEL], warm[EMPTY]),
            f"{AIMED}, without the pause": ratio(moving[EVENKEEL], moving[EMPTY]),
            f"{EVENKEEL}/{BARE}": ratio(warm[EVENKEEL], warm[BARE]),
        }
        if cold[EVENKEEL]:
            named[f"{AIMED}, cold"] = ratio(cold[EVENKEEL], cold[EMPTY])
            named[f"{LIBRARIES}/{EMPTY}, cold"] = ratio(cold[LIBRARIES], cold[EMPTY])
        return named

    def ratios(self) -> dict[str, float]:
        """Return the figures of a baseline: only ratios."""
        return {
            f"{name}, {share}": round(getattr(ratio, share), 3)
            for name, ratio in self.comparisons().items()
            for share in ("p50", "p99")
            # There are too few cold samples for a p99.
            if share == "p50" or not name.endswith("cold")
        }

    def to_json(self) -> dict[str, Any]:
        """Return the whole report as JSON, samples included."""
        return {
            "ratios": self.ratios(),
            "othersShare": round(self.others, 3),
            "p50Intervals": {name: [ratio.p50_low, ratio.p50_high] for name, ratio in self.comparisons().items()},
            "stages": [{"name": stage.name, EVENKEEL: stage.evenkeel, EMPTY: stage.empty} for stage in self.stages],
            "ownSeconds": {name: list(spent) for name, spent in self.own.items()},
            "samples": {
                kind: {lane: [_as_json(sample) for sample in lane_samples] for lane, lane_samples in samples.items()}
                for kind, samples in (("warm", self.warm), ("cold", self.cold))
            },
        }


def run(run_dir: Path, *, rounds: int, warm_up: int, cold_rounds: int, say: Say) -> LatencyReport:
    """Start a data centre with the real stack, deploy the yardsticks beside it, and measure.

    Args:
        run_dir: Folder for logs and state; emptied first.
        rounds: Measured events per lane, with every function warm.
        warm_up: Unmeasured rounds before them: functions start, clients connect.
        cold_rounds: Measured events per lane after them, with every function cold.
        say: Called with a short text about the next step.

    Raises:
        BenchFailed: An awaited state was not reached in time.
    """
    with (
        DataCentre.start(run_dir, fleet=_FLEET, forks_workers=False, say=say) as centre,
        NodeWatch(admin_api(centre.cluster)) as watch,
    ):
        timer = CordonTimer(centre, watch)
        yardsticks = timer.deploy_yardsticks(say)
        empty = yardsticks["RecoverNodeArn"]
        machines = {EVENKEEL: centre.outputs["RecoverNodeArn"], EMPTY: empty, LIBRARIES: empty}

        def measure(title: str, count: int, *, is_cold: bool = False) -> dict[str, list[Sample]]:
            lanes = COLD_LANES if is_cold else LANES
            samples: dict[str, list[Sample]] = {lane: [] for lane in lanes}
            for number in range(count):
                if number % 10 == 0:
                    say(f"{title}: round {number + 1} of {count}")
                first = number % len(lanes)
                for lane in lanes[first:] + lanes[:first]:
                    samples[lane].append(_time_event(timer, lane, machines.get(lane), is_cold=is_cold))
            return samples

        measure("warming up", warm_up)
        before = Usage.now()
        warm = measure("measuring", rounds)
        cold = measure("measuring cold starts", cold_rounds, is_cold=True)
        others_share = Usage.now().others_since(before)
        own_seconds = _own_seconds(centre, {sample.execution.rpartition("-r")[0] for sample in warm[EVENKEEL]})
    return LatencyReport(warm, cold, tuple(_latency_stages(warm)), own_seconds, others_share)


def _time_event(timer: CordonTimer, lane: str, machine: str | None, *, is_cold: bool) -> Sample:
    node = timer.next_node()
    if is_cold:
        timer.chill(FUNCTIONS_OF_LANE[lane], MORE_CLIENTS if lane == LIBRARIES else {})
    sample = timer.time_cordon(lane, SOURCES[lane], node)
    if machine is not None:
        sample = timer.with_execution(sample, machine)
    if lane != EVENKEEL:
        timer.uncordon(node)  # Evenkeel uncordons its node itself
    return sample


def _as_json(sample: Sample) -> dict[str, Any]:
    return {"seconds": sample.seconds, "acceptSeconds": sample.accept_seconds, "marks": dict(sample.marks)}


def _latency_stages(taken: Samples) -> Iterable[LatencyStage]:
    """Yield the stages between the marks in the histories of both workflows."""
    cuts = (
        ("received: the event started a workflow", None, "started"),
        ("the engine's pause before the first state", "started", "entered PlanRecovery"),
        ("planned: PlanRecovery returned", "entered PlanRecovery", "entered CordonNode"),
        ("cordoned: the node is unschedulable", "entered CordonNode", None),
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
        yield LatencyStage(name, *medians)


def _own_seconds(centre: DataCentre, incidents: set[str]) -> dict[str, tuple[float, ...]]:
    """Return the seconds that each function logged for the measured incidents, from its first to its last line."""
    logs = centre.deployer.client("logs")
    spent: dict[str, tuple[float, ...]] = {}
    for function in FUNCTIONS:
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/{STACK_NAME}-{function}")
        lines = [_parse_line(event["message"]) for page in pages for event in page["events"]]
        documents = [line for line in lines if line.get("incidentId") in incidents and "milliseconds" in line]
        if len(documents) < len(incidents):
            raise BenchFailed(f"{function} logged {len(documents)} of {len(incidents)} incidents")
        spent[function] = tuple(float(line["milliseconds"]) / 1000 for line in documents)
    return spent


def _parse_line(line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
