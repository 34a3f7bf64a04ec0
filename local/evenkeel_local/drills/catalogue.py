"""The table of the drills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel_local import PROJECT
from evenkeel_local.data_centre import DataCentre, FleetShape, Say
from evenkeel_local.drills import scenarios, storm
from evenkeel_local.drills.drill_run import DrillRun
from evenkeel_local.drills.harness import DrillResult, DrillTimeoutError
from evenkeel_local.drills.users_jobs import users_jobs
from evenkeel_local.processes import interruptible


@dataclass(frozen=True)
class Drill:
    """A drill: the fault that it injects, and the expected recovery."""

    name: str
    play: Callable[[DrillRun], None]
    title: str = ""
    """Summary for an operator; by default the first line of the docstring of `play`."""
    fleet: FleetShape = field(default_factory=FleetShape)
    """The hardware that it needs. Drills with the usual shape can share a data centre."""
    full: FleetShape | None = None
    """The hardware of the drill at full size, which takes too long for daily use."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or (self.play.__doc__ or "").partition("\n")[0])


def _fault_drill(name: str, title: str, ends: str = "RECOVERED") -> Drill:
    return Drill(name, partial(scenarios.one_fault, fault=name, ends=ends), title)


def _kind_drill(name: str, kind: WorkloadKind) -> Drill:
    title = f"A GPU fails under a {kind}, and Evenkeel resumes the job as a new {kind} on healthy nodes."
    return Drill(name, partial(scenarios.fault_under, kind=kind), title)


DRILLS: Final = {
    drill.name: drill
    for drill in (
        _fault_drill("gpu-xid79", "A GPU falls off the bus (Xid 79), and the training process on it dies."),
        Drill("node-lost", scenarios.node_lost),
        _kind_drill("job-set", WorkloadKind.JOB_SET),
        _kind_drill("pytorch-job", WorkloadKind.PYTORCH_JOB),
        _kind_drill("hyperpod-pytorch-job", WorkloadKind.HYPERPOD_PYTORCH_JOB),
        Drill("users-jobs", users_jobs),
        Drill("younger-job", scenarios.younger_job),
        Drill("app-crash", scenarios.app_crash),
        _fault_drill(
            "stuck-replace", "A GPU falls off the bus, and the replacement node never arrives.", "WAITING_FOR_PERSON"
        ),
        Drill("no-capacity", scenarios.no_capacity),
        Drill("no-capacity-burst", scenarios.no_capacity_burst),
        Drill("flapping", scenarios.flapping),
        Drill("poisoned-checkpoint", scenarios.poisoned_checkpoint),
        Drill("spot-reclaim", scenarios.spot_reclaim),
        Drill("lost-events", scenarios.lost_events),
        Drill("duplicate-events", scenarios.duplicate_events),
        Drill("throttled", scenarios.throttled),
        Drill("shared-cause", scenarios.shared_cause),
        Drill("two-owners", scenarios.two_owners),
        Drill("karpenter-repairs", scenarios.karpenter_repairs),
        Drill("nvsentinel", scenarios.nvsentinel),
        Drill("termination-handler", scenarios.termination_handler),
        Drill("self-node-remediation", scenarios.self_node_remediation),
        Drill("deploy-while-waiting", scenarios.deploy_while_waiting),
        Drill("storm", storm.storm, fleet=FleetShape(nodes=20), full=FleetShape(nodes=200)),
    )
}

SHARED: Final = {name: drill for name, drill in DRILLS.items() if drill.fleet == FleetShape()}
"""Drills that can share one data centre of the usual shape. They run one after the other."""


def run(drill: Drill, centre: DataCentre, *, seed: int, say: Say = lambda _text: None) -> DrillResult:
    """Run a drill in a running data centre, and check the result.

    Args:
        drill: The drill.
        centre: The data centre. All its nodes must be in service. Except for the storm, they are in service afterwards.
        seed: The seed of the time and the node.
        say: Receives progress messages.
    """
    result = DrillResult(drill.name, seed)
    try:
        stage = DrillRun(result, centre, say=say)
        try:
            drill.play(stage)
        finally:
            stage.clean_up()
    except DrillTimeoutError as error:
        result.check("every awaited state was reached", False, str(error))
    return result


def run_alone(drill: Drill, *, seed: int, full: bool = False, say: Say = lambda _text: None) -> DrillResult:
    """Run a drill in a data centre of its own.

    Args:
        drill: The drill.
        seed: The seed of the time and the node.
        full: Whether to run at full size, if the drill has one.
        say: Receives progress messages.
    """
    fleet = (drill.full if full else None) or drill.fleet
    folder = PROJECT / ".evenkeel" / f"drill-{drill.name}"
    with interruptible(), DataCentre.start(folder, fleet=fleet, say=say) as centre:
        return run(drill, centre, seed=seed, say=say)
