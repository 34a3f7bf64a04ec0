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
    """One way to break things, and what is done about it."""

    name: str
    title: str
    """What happens, in the operator's words."""
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
        _fault("gpu-xid79", "A GPU falls off the bus (Xid 79) and the training process dies with it.", "gpu-xid79"),
        Drill(
            "node-lost",
            "A node drops off the network; its processes train on behind the partition.",
            scenarios.node_lost,
        ),
        Drill(
            "younger-job",
            "A job loses its node three times, while a younger job of its team waits for the whole quota.",
            scenarios.younger_job,
        ),
        Drill("app-crash", "One rank crashes by itself; the node is fine.", scenarios.app_crash),
        _fault(
            "stuck-replace",
            "A GPU falls off the bus and the replacement never arrives.",
            "stuck-replace",
            ends="WAITING_FOR_PERSON",
        ),
        Drill(
            "no-capacity",
            "A GPU falls off the bus, the replacement never arrives, and no other node is free.",
            scenarios.no_capacity,
        ),
        Drill(
            "no-capacity-burst",
            "The same where nodes may be rented: the job goes on there while its machine is still being replaced.",
            scenarios.no_capacity_burst,
        ),
        Drill(
            "flapping",
            "A node drops off and comes back, again and again.",
            scenarios.flapping,
        ),
        Drill(
            "poisoned-checkpoint",
            "A memory error went unnoticed: what was saved since is in doubt, and one older shard is torn.",
            scenarios.poisoned_checkpoint,
        ),
        Drill(
            "spot-reclaim",
            "A spot machine gets its notice: save, prove, and go on elsewhere before it is gone.",
            scenarios.spot_reclaim,
        ),
        Drill(
            "lost-events",
            "Every event is lost and the watch is cut off: the sweeper alone finds the faulty node.",
            scenarios.lost_events,
        ),
        Drill(
            "duplicate-events",
            "The same fault is told sixty times, in any order, also while the successor comes and after the repair.",
            scenarios.duplicate_events,
        ),
        Drill(
            "throttled",
            "The provider answers every repair call with throttling, then works again.",
            scenarios.throttled,
        ),
        Drill(
            "shared-cause",
            "Four machines of one zone sicken at once: the wave is stopped and people are paged once.",
            scenarios.shared_cause,
        ),
        Drill(
            "two-owners",
            "HyperPod repairs by itself, and so would Evenkeel: one of them does.",
            scenarios.two_owners,
        ),
        Drill(
            "karpenter-repairs",
            "Karpenter repairs its machines by itself, and so would Evenkeel: one of them does.",
            scenarios.karpenter_repairs,
        ),
        Drill(
            "deploy-while-waiting",
            "A new release is deployed while a recovery waits: the old execution goes on with the new functions.",
            scenarios.deploy_while_waiting,
        ),
        Drill(
            "storm",
            "Every machine sickens within seconds, each told five times, everything shuffled and tripled.",
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
        result.check("everything awaited came", False, str(late))
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
