"""Facts and answers of a resize decision."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.decide import AdmissionDecision
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import Request
from evenkeel.domain.admission.scheduler_state import ElasticMemory
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.elastic.grow_shrink import GrowFacts, Resize, ResizeDecision, grow, make_room
from evenkeel.domain.elastic.sizes import ElasticJob
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, ResizeWish
from evenkeel.domain.quotas.teams import SetUp
from evenkeel.domain.values import Value

MAY_SHRINK, NEEDS_IT = 0, 1
"""Priorities by which `make_room` tells who may be touched from who needs nodes: the queues' rules have said who is."""


Kind = tuple[str, str, str]
"""Cluster, pool and instance type: an attempt's nodes are all of one."""


class RoomFacts(Value):
    """All that a choice of who shrinks rests on."""

    jobs: tuple[ElasticJob, ...]
    """Who may be touched has priority 0, all others 1, and the sizes that it may have."""
    nodes: int
    """Nodes that are needed."""
    for_whom: str
    """The job, or the Deployment, that waits."""


class ResizeFacts(Value):
    """All that the answer for one job rests on. It replays from this alone."""

    job_id: str
    growth: GrowFacts | None = None
    room: RoomFacts | None = None


class ResizeAnswer(Value):
    """What one job does about its size."""

    action: str
    """GROW, SHRINK, END or STAY."""
    nodes: int
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def answer_for(facts: ResizeFacts) -> ResizeAnswer:
    """Say what one job does. A record replays through this function alone."""
    decided = _decided(facts)
    mine = next((each for each in decided.resizes if each.job_id == facts.job_id), None)
    if mine is None:
        return ResizeAnswer(action="STAY", nodes=0, reason=decided.reason, alternatives=decided.alternatives)
    action = "GROW" if mine.to_nodes > mine.from_nodes else "SHRINK" if mine.to_nodes else "END"
    whom = f" It makes room for {facts.room.for_whom}." if facts.room else ""
    return ResizeAnswer(
        action=action, nodes=mine.to_nodes, reason=f"{mine.reason}{whom}", alternatives=decided.alternatives
    )


def _decided(facts: ResizeFacts) -> ResizeDecision:
    if facts.growth is not None:
        return grow(facts.growth)
    assert facts.room is not None  # one of them is there
    return make_room(facts.room.jobs, facts.room.nodes, NEEDS_IT)


class Planned(Value):
    """One job that is to change size, or to end for another."""

    facts: ResizeFacts
    resize: Resize
    attempt: int

    @property
    def job_id(self) -> str:
        """Its id."""
        return self.facts.job_id

    @property
    def for_whom(self) -> str:
        """Who waits for its nodes; empty where it grows."""
        return self.facts.room.for_whom if self.facts.room else ""


class ResizePlan(Value):
    """What a pass does about sizes."""

    room: dict[str, tuple[Planned, ...]] = {}
    """Who waits → who makes room for it."""
    growth: Planned | None = None
    memory: ElasticMemory = ElasticMemory()
    helped: dict[str, int] = {}
    """`cluster/demand` of pods that are not ours → nodes that are free for them, or will be once all have gone who are
    asked to."""


class Fleet(NamedTuple):
    """What holds nodes, and who waits for them."""

    rooms: tuple[Room, ...]
    charges: tuple[Charge, ...]
    stopping: frozenset[str]
    pending: tuple[Request, ...]


Weigh = Callable[[Fleet], tuple[AdmissionDecision, ...]]
"""Decides about all that wait in a fleet, by the rules of the pass."""


class Facts(NamedTuple):
    """All that a plan rests on."""

    fleet: Fleet
    decisions: tuple[AdmissionDecision, ...]
    """About those who wait."""
    jobs: Mapping[str, Job]
    """The elastic ones that hold nodes or are changing size."""
    leaving: frozenset[str]
    """Jobs that an earlier pass asked to go for another."""
    memory: ElasticMemory
    setup: SetUp
    policy: SchedulingPolicy
    now: datetime
    demands: tuple[Request, ...] = ()
    """What pods that are not ours wait for."""
    asked_by: Callable[[Job], Request] = Request.of
    """How a job would ask, did it wait."""


def wish_of(planned: Planned, decision_id: str, now: datetime) -> ResizeWish:
    """Return what the stopped job remembers of its resize."""
    return ResizeWish(
        after_attempt=planned.attempt,
        from_nodes=planned.resize.from_nodes,
        nodes=planned.resize.to_nodes,
        reason=answer_for(planned.facts).reason,
        for_job=planned.for_whom,
        decision_id=decision_id,
        asked_at=now,
    )
