"""Facts and results of a resize decision."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.decide import AdmissionDecision
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.elastic.grow_shrink import GrowFacts, ResizeDecision, SizeChange, plan_growth, plan_shrink
from evenkeel.domain.elastic.sizes import ElasticJob
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, ResizeRequest
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.values import Value

MAY_SHRINK, NEEDS_IT = 0, 1
"""Priorities for `plan_shrink`: jobs that it may shrink, and jobs that need nodes, as the queue rules say."""


NodeKind = tuple[str, str, str]
"""Cluster, pool and instance type: an attempt's nodes are all of one."""


class ShrinkFacts(Value):
    """All that a choice of who shrinks rests on."""

    jobs: tuple[ElasticJob, ...]
    """Who may be touched has priority 0, all others 1, and the sizes that it may have."""
    nodes: int
    """Nodes that are needed."""
    waiting_id: str
    """The job, or the Deployment, that waits."""


class ResizeFacts(Value):
    """All that the answer for one job rests on. It replays from this alone."""

    job_id: str
    growth: GrowFacts | None = None
    shrink: ShrinkFacts | None = None


class ResizeAnswer(Value):
    """What one job does about its size."""

    action: str
    """GROW, SHRINK, END or STAY."""
    nodes: int
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def resize_answer(facts: ResizeFacts) -> ResizeAnswer:
    """Say what one job does. A record replays through this function alone."""
    decided = _decided(facts)
    mine = next((each for each in decided.resizes if each.job_id == facts.job_id), None)
    if mine is None:
        return ResizeAnswer(action="STAY", nodes=0, reason=decided.reason, alternatives=decided.alternatives)
    action = "GROW" if mine.to_nodes > mine.from_nodes else "SHRINK" if mine.to_nodes else "END"
    whom = f" The resize frees nodes for {facts.shrink.waiting_id}." if facts.shrink else ""
    return ResizeAnswer(
        action=action, nodes=mine.to_nodes, reason=f"{mine.reason}{whom}", alternatives=decided.alternatives
    )


def _decided(facts: ResizeFacts) -> ResizeDecision:
    if facts.growth is not None:
        return plan_growth(facts.growth)
    assert facts.shrink is not None  # one of them is there
    return plan_shrink(facts.shrink.jobs, facts.shrink.nodes, NEEDS_IT)


class PlannedResize(Value):
    """One job that is to change size, or to end for another."""

    facts: ResizeFacts
    resize: SizeChange
    attempt: int

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.facts.job_id

    @property
    def waiting_id(self) -> str:
        """Who waits for its nodes; empty where it grows."""
        return self.facts.shrink.waiting_id if self.facts.shrink else ""


class ResizePlan(Value):
    """What a pass does about sizes."""

    shrinks_by_waiter: dict[str, tuple[PlannedResize, ...]] = {}
    """Who waits → who makes room for it."""
    growth: PlannedResize | None = None
    memory: ElasticState = ElasticState()
    satisfied_demands: dict[str, int] = {}
    """`cluster/demand` of pods that are not ours → nodes that are free for them, or will be once all have gone who are
    asked to."""


class CycleFleet(NamedTuple):
    """What holds nodes, and who waits for them."""

    capacities: tuple[NodeCapacity, ...]
    charges: tuple[Charge, ...]
    stopping: frozenset[str]
    pending: tuple[AdmissionRequest, ...]


DecideFleet = Callable[[CycleFleet], tuple[AdmissionDecision, ...]]
"""Decides about all that wait in a fleet, by the rules of the pass."""


class ResizeInputs(NamedTuple):
    """All that a plan rests on."""

    fleet: CycleFleet
    decisions: tuple[AdmissionDecision, ...]
    """About those who wait."""
    jobs: Mapping[str, Job]
    """The elastic ones that hold nodes or are changing size."""
    leaving: frozenset[str]
    """Jobs that an earlier pass asked to go for another."""
    memory: ElasticState
    setup: TeamSetup
    policy: SchedulingPolicy
    now: datetime
    demands: tuple[AdmissionRequest, ...] = ()
    """What pods that are not ours wait for."""
    to_request: Callable[[Job], AdmissionRequest] = AdmissionRequest.of
    """How a job would ask, did it wait."""


def resize_request_of(planned: PlannedResize, decision_id: str, now: datetime) -> ResizeRequest:
    """Return what the stopped job remembers of its resize."""
    return ResizeRequest(
        after_attempt=planned.attempt,
        from_nodes=planned.resize.from_nodes,
        nodes=planned.resize.to_nodes,
        reason=resize_answer(planned.facts).reason,
        for_job=planned.waiting_id,
        decision_id=decision_id,
        asked_at=now,
    )
