"""`python -m bench.topology`: fragmentation and waits of gangs with and without the positions of nodes in the network.

The jobs of the Philly trace run on one pool of nodes. `decide_in_queue_order`, the service's rule without teams, starts
each job and chooses its nodes. In each lane it decides from the same queue, but sees other facts:

    without       the nodes have no topology labels: what a fleet without topology-aware placement does
    default       the labels are there, and no job asks for a level: a gang takes the narrowest domain that can hold it
    require-2     each gang requires one domain of layer 2
    require-3     each gang requires one domain of layer 3

Two workloads come from the same trace. `shared-nodes` has the recorded number of GPUs for each job, on nodes with
eight GPUs. In `whole-nodes`, each recorded GPU becomes a node, so that a third of the jobs are gangs. The positions of
the nodes are drawn: AWS publishes no size of a domain.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.figures import quantile
from bench.origin import describe_origin, write_figures
from bench.queues import TRACES
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.network_topology import NetworkLevel, NetworkNeeds
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.resources import Resources

BEGIN: Final = datetime(2026, 1, 5, tzinfo=UTC)
GPUS_PER_NODE: Final = 8
DOMAINS_PER_PARENT: Final = 4
"""Domains of layer 3 below one network node of layer 2."""
GANG_CLUSTERS: Final = ("ee9e8c", "2869ce", "11cb48")
"""The three virtual clusters of the trace with the most jobs of more than eight GPUs. `whole-nodes` has only these."""
LANES: Final = {
    "without": NetworkNeeds(),
    "default": NetworkNeeds(),
    "require-2": NetworkNeeds(required=NetworkLevel.LAYER_2),
    "require-3": NetworkNeeds(required=NetworkLevel.LAYER_3),
}
_EXAMINED: Final = 8
"""Queued jobs that one call examines. In strict order, the first job that waits blocks all later ones."""


class Setting(NamedTuple):
    """One fleet and one workload."""

    workload: str
    load: float
    """GPU-seconds of all jobs, divided by those of the fleet until the last arrival."""
    domain_nodes: int
    """Nodes of a domain of layer 3."""
    backfill_hours: float
    """For so long may later jobs start before a job that waits. 0, as shipped: strict order."""


class TraceJob(NamedTuple):
    """A job of the trace."""

    name: str
    at: float
    seconds: float
    nodes: int
    gpus_per_node: int


SETTINGS: Final = (
    *(Setting("shared-nodes", load, 4, 0.0) for load in (0.2, 0.35)),
    *(Setting("whole-nodes", load, domain_nodes, 0.0) for load, domain_nodes in product((0.2, 0.35), (8, 32))),
    Setting("shared-nodes", 0.2, 4, 1.0),
    Setting("whole-nodes", 0.2, 32, 1.0),
)
"""The trace comes in bursts: at a load of 0.35, a tenth of the gangs already waits for hours."""


def load_jobs(workload: str, seed: int) -> list[TraceJob]:
    """Return the jobs of the trace by their arrival. Run times are drawn from the quantiles of the trace."""
    dice, whole = random.Random(f"topology/{seed}"), workload == "whole-nodes"
    with (TRACES / "philly_runtime_quantiles.csv").open(encoding="utf-8") as file:
        lengths = [float(line) for line in list(file)[1:]]
    with (TRACES / "philly_arrivals.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not whole or row["vc"] in GANG_CLUSTERS]
    jobs = []
    for number, row in enumerate(sorted(rows, key=lambda row: float(row["submit_s"]))):
        gpus, position = int(row["gpus"]), dice.random() * (len(lengths) - 1)
        low = int(position)
        seconds = max(1.0, lengths[low] + (position - low) * (lengths[low + 1] - lengths[low]))
        nodes = gpus if whole else -(-gpus // GPUS_PER_NODE)
        per_node = GPUS_PER_NODE if whole else -(-gpus // nodes)
        jobs.append(TraceJob(f"job-{number:05}", float(row["submit_s"]), seconds, nodes, per_node))
    return jobs


def fleet_size(jobs: Sequence[TraceJob], setting: Setting) -> int:
    """Return the nodes of a fleet: whole domains of layer 3, for the wanted load and the largest gang."""
    work = sum(job.nodes * job.gpus_per_node * job.seconds for job in jobs)
    wanted = work / (jobs[-1].at * setting.load * GPUS_PER_NODE)
    least = max(wanted, *(job.nodes for job in jobs))
    return -(-int(least) // setting.domain_nodes) * setting.domain_nodes


@dataclass
class PlacementRun:
    """Figures of one lane."""

    nodes: int = 0
    gang_waits: list[float] = field(default_factory=list)
    """Seconds from the arrival of each gang to its start."""
    other_waits: list[float] = field(default_factory=list)
    in_layer_3: int = 0
    """Gangs whose nodes are all in one domain of layer 3."""
    in_layer_2: int = 0
    could_be_in_layer_3: int = 0
    """Gangs that are not larger than a domain of layer 3."""
    never: int = 0
    """Gangs that are larger than every domain of the level that they require. They never start."""
    fragmented: float = 0.0
    """Node-seconds of completely free nodes whose domain of layer 3 is partly in use."""
    idle: float = 0.0
    """Node-seconds of completely free nodes."""
    stranded: float = 0.0
    """Seconds in which the first gang of the queue waits while enough nodes for it are free, in too many domains."""
    span: float = 0.0


class Fleet:
    """The nodes of the pool. Their names say nothing about their positions."""

    def __init__(self, count: int, domain_nodes: int, *, labelled: bool, seed: int) -> None:
        positions = list(range(count))
        random.Random(f"positions/{seed}").shuffle(positions)
        offered = Resources(accelerators=GPUS_PER_NODE)
        self.layers: dict[str, tuple[str, str, str]] = {}
        self.free: dict[str, NodeCapacity] = {}
        for number, position in enumerate(positions):
            name, domain = f"node-{number:04}", position // domain_nodes
            self.layers[name] = ("nn-1", f"nn-2-{domain // DOMAINS_PER_PARENT:03}", f"nn-3-{domain:03}")
            self.free[name] = NodeCapacity(
                life=NodeLife(cluster="hyperpod", instance_id=name, launched_at=BEGIN),
                node_name=name,
                cluster="hyperpod",
                pool="committed",
                instance_type="ml.p5.48xlarge",
                allocatable=offered,
                free=offered,
                network_layers=self.layers[name] if labelled else (),
            )
        self.sizes = Counter(layers[2] for layers in self.layers.values())

    def take(self, names: Iterable[str], gpus: int) -> None:
        """Change the free GPUs of nodes; a negative number returns them."""
        for name in names:
            capacity = self.free[name]
            left = Resources(accelerators=capacity.free.accelerators - gpus)
            self.free[name] = capacity.with_free(left)

    def has_nodes_for(self, request: AdmissionRequest) -> bool:
        """Whether enough nodes have enough free GPUs for a request, wherever they are."""
        fitting = (node for node in self.free.values() if node.free.accelerators >= request.accelerators_per_node)
        return sum(1 for _ in fitting) >= request.nodes

    def idle_nodes(self) -> tuple[int, int]:
        """Return the number of idle nodes, and how many of them are in partly used domains of layer 3."""
        idle = Counter(self.layers[name][2] for name, capacity in self.free.items() if capacity.is_unused)
        partly = sum(count for domain, count in idle.items() if count < self.sizes[domain])
        return sum(idle.values()), partly


def play(setting: Setting, lane: str, seed: int) -> PlacementRun:
    """Run every job of the trace in one lane."""
    jobs = load_jobs(setting.workload, seed)
    count, needs, policy = fleet_size(jobs, setting), LANES[lane], SchedulingPolicy()
    fleet = Fleet(count, setting.domain_nodes, labelled=lane != "without", seed=seed)
    ran = PlacementRun(nodes=count, span=jobs[-1].at)
    by_name = {job.name: job for job in jobs}
    agenda: list[tuple[float, int, str]] = [(job.at, 1, job.name) for job in jobs]
    heapq.heapify(agenda)
    pending: list[AdmissionRequest] = []
    running: dict[str, tuple[str, ...]] = {}
    last, waiting_gang = 0.0, False
    largest = _largest_domains(fleet)
    while agenda:
        now = agenda[0][0]
        _add_idle_time(ran, fleet, min(now, ran.span) - min(last, ran.span), waiting=waiting_gang)
        last = now
        while agenda and agenda[0][0] == now:
            _, is_arrival, name = heapq.heappop(agenda)
            job = by_name[name]
            if not is_arrival:
                fleet.take(running.pop(name), -job.gpus_per_node)
            elif needs.required and job.nodes > largest[needs.required]:
                ran.never += 1
            else:
                pending.append(_request(job, needs))
        for name, names in _start_jobs(pending, fleet, policy, setting.backfill_hours, now):
            job = by_name[name]
            running[name] = names
            heapq.heappush(agenda, (now + job.seconds, 0, name))
            _count_start(ran, job, now - job.at, [fleet.layers[node] for node in names], setting)
        waiting_gang = _is_stranded(pending, fleet)
    return ran


def _largest_domains(fleet: Fleet) -> dict[NetworkLevel, int]:
    return {
        level: max(Counter(layers[index] for layers in fleet.layers.values()).values())
        for index, level in enumerate((NetworkLevel.LAYER_1, NetworkLevel.LAYER_2, NetworkLevel.LAYER_3))
    }


def _request(job: TraceJob, needs: NetworkNeeds) -> AdmissionRequest:
    return AdmissionRequest(
        job_id=job.name,
        submitted_at=BEGIN + timedelta(seconds=job.at),
        cluster="hyperpod",
        nodes=job.nodes,
        accelerators_per_node=job.gpus_per_node,
        network_needs=needs,
    )


def _start_jobs(
    pending: list[AdmissionRequest], fleet: Fleet, policy: SchedulingPolicy, backfill_hours: float, now: float
) -> list[tuple[str, tuple[str, ...]]]:
    """Start the jobs that the service would start now, and return them with their nodes."""
    started: list[tuple[str, tuple[str, ...]]] = []
    moment = BEGIN + timedelta(seconds=now)
    first = 0
    while first < len(pending):
        if not backfill_hours and not fleet.has_nodes_for(pending[first]):
            break  # the first job waits wherever the nodes are, and blocks all later ones
        page = pending[first : first + _EXAMINED]
        if backfill_hours:
            since = moment - timedelta(hours=backfill_hours)
            page = [request.replace_unchecked(may_be_overtaken=request.submitted_at > since) for request in page]
        decisions = decide_in_queue_order(AdmissionInput(tuple(fleet.free.values()), tuple(page)), policy, moment)
        admitted = {decision.job_id: decision for decision in decisions if decision.action is AdmissionAction.ADMIT}
        for name, decision in admitted.items():
            fleet.take(decision.node_names, decision.facts.request.accelerators_per_node)
            started.append((name, decision.node_names))
        pending[first : first + _EXAMINED] = [
            request for request in pending[first : first + _EXAMINED] if request.job_id not in admitted
        ]
        first += _EXAMINED - len(admitted)
        if any(decision.blocks_queue for decision in decisions):
            break
    return started


def _is_stranded(pending: Sequence[AdmissionRequest], fleet: Fleet) -> bool:
    """Whether the first job of the queue waits although enough nodes are free for it."""
    return bool(pending) and pending[0].nodes > 1 and fleet.idle_nodes()[0] >= pending[0].nodes


def _count_start(
    ran: PlacementRun, job: TraceJob, waited: float, layers: Sequence[tuple[str, str, str]], setting: Setting
) -> None:
    if job.nodes == 1:
        ran.other_waits.append(waited)
        return
    ran.gang_waits.append(waited)
    ran.could_be_in_layer_3 += job.nodes <= setting.domain_nodes
    ran.in_layer_3 += len({node[2] for node in layers}) == 1
    ran.in_layer_2 += len({node[1] for node in layers}) == 1


def _add_idle_time(ran: PlacementRun, fleet: Fleet, seconds: float, *, waiting: bool) -> None:
    if seconds <= 0:
        return
    idle, partly = fleet.idle_nodes()
    ran.idle += idle * seconds
    ran.fragmented += partly * seconds
    ran.stranded += seconds * waiting


# ---------------------------------------------------------------- the command

_PRINTED_SHARES: Final = ("inLayer3", "inLayer2", "fragmentedShare", "strandedShare")


def lane_figures(runs: Sequence[PlacementRun]) -> dict[str, Any]:
    """Return the figures of one lane over all its seeds. Hours; shares of the gangs that started."""
    gangs = [waited / 3600 for ran in runs for waited in ran.gang_waits]
    other_waits = [waited / 3600 for ran in runs for waited in ran.other_waits]
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        "gangs": len(gangs),
        "never": sum(ran.never for ran in runs),
        "gangWaitHours": {name: round(quantile(gangs, share), 2) for name, share in quantiles.items()},
        "otherWaitHours": {name: round(quantile(other_waits, share), 2) for name, share in quantiles.items()},
        "inLayer3": round(sum(ran.in_layer_3 for ran in runs) / len(gangs), 4),
        "inLayer2": round(sum(ran.in_layer_2 for ran in runs) / len(gangs), 4),
        "couldBeInLayer3": round(sum(ran.could_be_in_layer_3 for ran in runs) / len(gangs), 4),
        "fragmentedShare": round(sum(ran.fragmented for ran in runs) / sum(ran.idle for ran in runs), 4),
        "strandedShare": round(sum(ran.stranded for ran in runs) / sum(ran.span for ran in runs), 4),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Play every setting in every lane, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.topology", description="Placement with and without levels.")
    parser.add_argument("--seeds", type=int, default=2, help="draws of run times and positions (default 2)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    arguments = parser.parse_args(words)
    seeds = range(1, arguments.seeds + 1)
    document: dict[str, Any] = {**describe_origin("bench.topology", words, seeds), "settings": []}
    heads = "".join(f"{name:>12}" for name in ("one layer-3", "one layer-2", "fragmented", "stranded"))
    print(f"  {'workload':<13}{'load':>5}{'domain':>7}{'nodes':>6}  {'lane':<10}{heads}   gangs wait hours; never")
    with ProcessPoolExecutor(arguments.processes) as executor:
        futures = {
            (setting, lane): [executor.submit(play, setting, lane, seed) for seed in seeds]
            for setting in SETTINGS
            for lane in LANES
        }
        for setting in SETTINGS:
            lanes = {}
            for lane in LANES:
                runs = [future.result() for future in futures[setting, lane]]
                figures = lanes[lane] = lane_figures(runs)
                waits = "".join(f"{hours:>8.1f}" for hours in figures["gangWaitHours"].values())
                cells = "".join(f"{figures[name]:>12.1%}" for name in _PRINTED_SHARES)
                place = f"  {setting.workload:<13}{setting.load:>5}{setting.domain_nodes:>7}{runs[0].nodes:>6}"
                print(f"{place}  {lane:<10}{cells}{waits}{figures['never']:>6}", flush=True)
            nodes = sorted(play_future.result().nodes for play_future in futures[setting, "default"])
            document["settings"].append({**setting._asdict(), "nodes": nodes, "lanes": lanes})
    write_figures(arguments.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
