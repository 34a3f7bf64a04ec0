"""Facts and results of a resize decision."""

from datetime import datetime

from pydantic import Field

from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.elastic.grow_shrink import GrowFacts, ResizeDecision, SizeChange, plan_growth, plan_shrink
from evenkeel.domain.elastic.sizes import ElasticJob
from evenkeel.domain.jobs.job import ResizeRequest
from evenkeel.domain.plurals import count_of
from evenkeel.domain.renting.mixed_capacity import RentedPartFacts, decide_rented_part
from evenkeel.domain.values import Value

MAY_SHRINK, NEEDS_IT = 0, 1
"""Priorities for `plan_shrink`: jobs that it may shrink, and jobs that need nodes, as the queue rules say."""


class ShrinkFacts(Value):
    """Facts for deciding which jobs shrink."""

    jobs: tuple[ElasticJob, ...]
    """Each job with the sizes that it may take. Jobs that may shrink have priority 0, all other jobs 1."""
    nodes: int
    """Nodes that are needed."""
    waiting_id: str
    """The job or the Deployment that waits for the nodes."""


class JoinFacts(Value):
    """Facts of the decision that ready rented nodes join the base of a job."""

    job_id: str
    base_nodes: int
    rented_nodes: int
    pool: str
    rental: int
    """Number of the job's rental."""
    accelerators_per_node: int
    resize_seconds: float

    @property
    def reason(self) -> str:
        """Why the job changes its size."""
        verb = "is" if self.rented_nodes == 1 else "are"
        return (
            f"{count_of(self.rented_nodes, 'rented node')} of {self.pool} {verb} ready to join "
            f"{count_of(self.base_nodes, 'committed node')}."
        )

    @property
    def lost_gpu_seconds(self) -> float:
        """Accelerator-seconds that the resize costs."""
        return self.resize_seconds * (self.base_nodes + self.rented_nodes) * self.accelerators_per_node


class ResizeFacts(Value):
    """Facts of the decision about one job's size. The decision replays from them."""

    job_id: str
    growth: GrowFacts | None = None
    shrink: ShrinkFacts | None = None
    join: JoinFacts | None = None
    rented_part: RentedPartFacts | None = Field(default=None, alias="drop")
    """Facts of the decision that a job releases its rented part and continues on its base."""


class ResizeAnswer(Value):
    """The decision about one job's size."""

    action: str
    """GROW, SHRINK, END or KEEP."""
    nodes: int
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def resize_answer(facts: ResizeFacts) -> ResizeAnswer:
    """Decide about one job's size. A record replays through this function alone."""
    if facts.join is not None:
        size = facts.join.base_nodes + facts.join.rented_nodes
        return ResizeAnswer(action="GROW", nodes=size, reason=facts.join.reason)
    if facts.rented_part is not None:
        part_decision = decide_rented_part(facts.rented_part)
        action, nodes = ("SHRINK", facts.rented_part.base_nodes) if part_decision.is_released else ("KEEP", 0)
        return ResizeAnswer(
            action=action, nodes=nodes, reason=part_decision.reason, alternatives=part_decision.alternatives
        )
    decision = _resize_decision(facts)
    own_resize = next((resize for resize in decision.resizes if resize.job_id == facts.job_id), None)
    if own_resize is None:
        return ResizeAnswer(action="KEEP", nodes=0, reason=decision.reason, alternatives=decision.alternatives)
    action = "GROW" if own_resize.to_nodes > own_resize.from_nodes else "SHRINK" if own_resize.to_nodes else "END"
    purpose = f" The resize frees nodes for {facts.shrink.waiting_id}." if facts.shrink else ""
    return ResizeAnswer(
        action=action,
        nodes=own_resize.to_nodes,
        reason=f"{own_resize.reason}{purpose}",
        alternatives=decision.alternatives,
    )


def _resize_decision(facts: ResizeFacts) -> ResizeDecision:
    if facts.growth is not None:
        return plan_growth(facts.growth)
    assert facts.shrink is not None  # the facts hold either a growth or a shrink
    return plan_shrink(facts.shrink.jobs, facts.shrink.nodes, NEEDS_IT)


class PlannedResize(Value):
    """A job that must change size, or stop for another job."""

    facts: ResizeFacts
    resize: SizeChange
    attempt: int

    @property
    def job_id(self) -> str:
        """Id of the job that changes size."""
        return self.facts.job_id

    @property
    def waiting_id(self) -> str:
        """The job or Deployment that waits for its nodes; empty if the job grows."""
        return self.facts.shrink.waiting_id if self.facts.shrink else ""


class ResizePlan(Value):
    """The size changes of one scheduling cycle."""

    shrinks_by_waiter: dict[str, tuple[PlannedResize, ...]] = {}
    """Job or Deployment that waits → the jobs that free nodes for it."""
    growth: PlannedResize | None = None
    elastic_state: ElasticState = ElasticState()
    satisfied_demands: dict[str, int] = {}
    """`cluster/demand` of a Deployment → nodes that are free for it now, or will be after the planned stops."""

    @property
    def planned(self) -> tuple[PlannedResize, ...]:
        """All planned size changes."""
        shrinks = (resize for resizes in self.shrinks_by_waiter.values() for resize in resizes)
        return (*shrinks, *((self.growth,) if self.growth else ()))


def resize_request_of(planned_resize: PlannedResize, decision_id: str, now: datetime) -> ResizeRequest:
    """Return the request that the stopped job keeps, so that its next attempt starts at the new size."""
    return ResizeRequest(
        after_attempt=planned_resize.attempt,
        from_nodes=planned_resize.resize.from_nodes,
        nodes=planned_resize.resize.to_nodes,
        rented_nodes=planned_resize.facts.join.rented_nodes if planned_resize.facts.join else 0,
        reason=resize_answer(planned_resize.facts).reason,
        for_job=planned_resize.waiting_id,
        decision_id=decision_id,
        asked_at=now,
    )
