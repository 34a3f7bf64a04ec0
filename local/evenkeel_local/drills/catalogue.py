"""The drills: a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from evenkeel_local import PROJECT
from evenkeel_local.data_centre import DataCentre, FleetShape, Say
from evenkeel_local.drills import scenarios, storm
from evenkeel_local.drills.drill_run import DrillRun
from evenkeel_local.drills.harness import DrillResult, DrillTimeoutError
from evenkeel_local.processes import interruptible


@dataclass(frozen=True)
class Drill:
    """A drill: the fault that it injects, and the expected recovery."""

    name: str
    title: str
    """Summary of the drill for an operator."""
    play: Callable[[DrillRun], None]
    fleet: FleetShape = field(default_factory=FleetShape)
    """The hardware it needs: of the same shape, several share a data centre."""
    full: FleetShape | None = None
    """The hardware of its full size, which is too much for every day."""


def _fault(name: str, summary: str, fault: str, **options: object) -> Drill:
    return Drill(name, summary, partial(scenarios.one_fault, fault=fault, **options))  # type: ignore[arg-type]


DRILLS: Final = {
    drill.name: drill
    for drill in (
        _fault("gpu-xid79", "A GPU falls off the bus (Xid 79), and the training process on it dies.", "gpu-xid79"),
        Drill(
            "node-lost",
            "A node loses its network; its processes continue to train behind the partition.",
            scenarios.node_lost,
        ),
        Drill(
            "younger-job",
            "A job loses its node three times, while a younger job of the team waits for the whole quota.",
            scenarios.younger_job,
        ),
        Drill("app-crash", "A rank crashes; its node is healthy.", scenarios.app_crash),
        _fault(
            "stuck-replace",
            "A GPU falls off the bus, and the replacement node never arrives.",
            "stuck-replace",
            ends="WAITING_FOR_PERSON",
        ),
        Drill(
            "no-capacity",
            "A GPU falls off the bus, the replacement node never arrives, and no other node is free.",
            scenarios.no_capacity,
        ),
        Drill(
            "no-capacity-burst",
            "As the drill before, but the fleet may rent nodes: the job runs on them during the replacement.",
            scenarios.no_capacity_burst,
        ),
        Drill(
            "flapping",
            "A node repeatedly leaves the cluster and returns.",
            scenarios.flapping,
        ),
        Drill(
            "poisoned-checkpoint",
            "A memory error is found late: later checkpoints are distrusted, and an older shard is damaged.",
            scenarios.poisoned_checkpoint,
        ),
        Drill(
            "spot-reclaim",
            "A spot node gets its interruption notice: the job saves a checkpoint and resumes on another node.",
            scenarios.spot_reclaim,
        ),
        Drill(
            "lost-events",
            "All events are lost and the watch is cut off: only the sweep can find the faulty node.",
            scenarios.lost_events,
        ),
        Drill(
            "duplicate-events",
            "Sixty events report the same fault, in any order, also during and after the replacement.",
            scenarios.duplicate_events,
        ),
        Drill(
            "throttled",
            "The provider throttles every repair call, then recovers.",
            scenarios.throttled,
        ),
        Drill(
            "shared-cause",
            "Four nodes of a zone fail at once: Evenkeel stops the repairs and pages people once.",
            scenarios.shared_cause,
        ),
        Drill(
            "two-owners",
            "HyperPod and Evenkeel could both repair a node: only HyperPod does.",
            scenarios.two_owners,
        ),
        Drill(
            "karpenter-repairs",
            "Karpenter and Evenkeel could both repair a node: only Karpenter does.",
            scenarios.karpenter_repairs,
        ),
        Drill(
            "deploy-while-waiting",
            "A new release is deployed while a recovery waits: the old execution continues with the new functions.",
            scenarios.deploy_while_waiting,
        ),
        Drill(
            "storm",
            "All nodes fail within seconds, five events for each, all events shuffled and delivered three times.",
            storm.storm,
            fleet=FleetShape(nodes=20),
            full=FleetShape(nodes=200),
        ),
    )
}

SHARED: Final = {name: drill for name, drill in DRILLS.items() if drill.fleet == FleetShape()}
"""Those that can be run one after the other in a data centre of the usual shape."""


def run(drill: Drill, centre: DataCentre, *, seed: int, say: Say = lambda _text: None) -> DrillResult:
    """Run one drill on a running data centre and check everything that must hold.

    Args:
        drill: What to break.
        centre: Where; its fleet must be whole, and is whole again afterwards, except after the storm.
        seed: Of the moment and the victim.
        say: Is told what happens, for people who watch.
    """
    result = DrillResult(drill.name, seed)
    try:
        stage = DrillRun(result, centre, say=say)
        try:
            drill.play(stage)
        finally:
            stage.leave()
    except DrillTimeoutError as late:
        result.check("every awaited state was reached", False, str(late))
    return result


def rehearse(drill: Drill, *, seed: int, full: bool = False, say: Say = lambda _text: None) -> DrillResult:
    """Run one drill in a data centre of its own, which ends with it.

    Args:
        drill: What to break.
        seed: Of the moment and the victim.
        full: At its full size, where it has one.
        say: Is told what happens.
    """
    fleet = (drill.full if full else None) or drill.fleet
    with (
        interruptible(),
        DataCentre.start(PROJECT / ".evenkeel" / f"drill-{drill.name}", fleet=fleet, say=say) as centre,
    ):
        return run(drill, centre, seed=seed, say=say)
