"""Growing and shrinking of elastic jobs: which job changes its size, when, and by how much.

A resize stops the whole job for a while. So a job grows only after accelerators were idle for as long as the resize
costs: without knowledge of the future, no rule can guarantee less than twice the lowest cost. A job does not grow again
within its snooze time. After each failed growth it waits twice as long. Shrinking is never delayed.

Growth counts effective nodes: the work of a job at a size, as a number of nodes without loss by scaling. For a job of
unknown throughput, each node counts as one.
"""

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.elastic.sizes import ElasticJob, ElasticPolicy
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value


class SizeChange(Value):
    """A change of one job's size."""

    job_id: str
    from_nodes: int
    to_nodes: int
    """0: the job is stopped and returns to the queue."""
    reason: str
    lost_gpu_seconds: float


class IdleNodes(Value):
    """Idle nodes that no pending job can use."""

    nodes: int
    idle_node_seconds: float
    """Sum of the seconds for which each of these nodes has been idle."""


class GrowFacts(Value):
    """Facts of a decision to grow. The decision replays from them."""

    jobs: tuple[ElasticJob, ...]
    idle: IdleNodes
    is_contended: bool = False
    """Whether a job waits for nodes of this kind. Then no job grows."""
    policy: ElasticPolicy = ElasticPolicy()
    now: Instant


class ResizeDecision(Value):
    """The jobs that change size, and why the other jobs do not."""

    resizes: tuple[SizeChange, ...]
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    short: int = 0
    """Nodes that are still missing."""


def plan_growth(facts: GrowFacts) -> ResizeDecision:
    """Give idle nodes to the job that gains the most work from them. At most one job grows at a time.

    idle node-seconds so far x effective nodes gained for each node >= resize seconds x effective nodes at the new size
    """
    if facts.is_contended:
        return ResizeDecision(resizes=(), reason="A job waits for nodes, so no job grows.")
    growths, rejections = [], []
    for job in facts.jobs:
        size, why_not = _largest_growth(job, facts)
        if why_not:
            rejections.append(Alternative(option=job.job_id, why_not=why_not))
        else:
            growths.append((job, size))
    if not growths:
        return ResizeDecision(resizes=(), reason="No job can grow now.", alternatives=tuple(rejections))
    # Higher priority first, then more work gained, then less loss. The id makes the order total.
    growths.sort(
        key=lambda pair: (
            -pair[0].priority,
            -_gained_nodes(*pair) * pair[0].accelerators_per_node,
            pair[0].lost_gpu_seconds(0),
            pair[0].job_id,
        )
    )
    job, size = growths[0]
    lost_gpu_seconds = job.resize_seconds * size * job.accelerators_per_node
    idle_text = count_of(facts.idle.nodes, "idle node has", "idle nodes have")
    reason = (
        f"{idle_text} lost {facts.idle.idle_node_seconds * job.accelerators_per_node:.0f} "
        f"GPU-seconds so far, at least as much as a resize to {count_of(size, 'node')} costs."
        f"{_throughput_text(job, size)}"
    )
    rejections += [
        Alternative(option=other_job.job_id, why_not=f"{job.job_id} makes better use of the idle nodes.")
        for other_job, _ in growths[1:]
    ]
    resize = SizeChange(
        job_id=job.job_id, from_nodes=job.nodes, to_nodes=size, reason=reason, lost_gpu_seconds=lost_gpu_seconds
    )
    return ResizeDecision(resizes=(resize,), reason=reason, alternatives=tuple(rejections))


def _largest_growth(job: ElasticJob, facts: GrowFacts) -> tuple[int, str]:
    policy, now = facts.policy, facts.now
    if job.sizes is None:
        return 0, "The job is not elastic."
    if job.is_resizing:
        return 0, "The job is already changing size."
    larger = [size for size in job.sizes.legal if job.nodes < size <= job.nodes + facts.idle.nodes]
    if not larger:
        return 0, f"No allowed size above {job.nodes} fits {count_of(facts.idle.nodes, 'idle node')}."
    if job.resized_at and now < job.resized_at + timedelta(seconds=policy.snooze_seconds):
        return 0, "The job changed size recently."
    if job.growth_failed_at and now < growth_backoff_until(job, policy):
        return 0, f"The job's last growth failed; no retry before {growth_backoff_until(job, policy):%H:%M:%S} UTC."
    size = max(larger, key=lambda size: (job.effective_nodes(size), -size))
    gained_nodes = _gained_nodes(job, size)
    if gained_nodes <= 0:
        return 0, f"The job's throughput does not rise above {count_of(job.nodes, 'node')}."
    # Only the nodes that the job would use pay for the resize. Nodes that stay idle anyway do not count.
    lost_by_now = facts.idle.idle_node_seconds * (size - job.nodes) / facts.idle.nodes
    idle_loss, resize_cost = (
        lost_by_now * (gained_nodes / (size - job.nodes)),
        job.resize_seconds * job.effective_nodes(size),
    )
    if idle_loss < resize_cost:
        return (
            0,
            f"A resize to {count_of(size, 'node')} costs {resize_cost:.0f} node-seconds; {idle_loss:.0f} are idle.",
        )
    if lost_by_now < policy.scaling_timeout_seconds * (size - job.nodes):
        return 0, f"The nodes have not been idle for {policy.scaling_timeout_seconds:.0f} s yet."
    return size, ""


def _gained_nodes(job: ElasticJob, size: int) -> float:
    """Return how many effective nodes a job gains at another size."""
    return job.effective_nodes(size) - job.effective_nodes(job.nodes)


def _throughput_text(job: ElasticJob, size: int) -> str:
    throughput = job.throughput
    if throughput is None:
        return ""
    source = "its checkpoints report" if throughput.is_measured else "its submission declares"
    rate_before, rate_after = throughput.per_second(job.nodes), throughput.per_second(size)
    return f" Its throughput rises from {rate_before:.6g} to {rate_after:.6g} per second, by the values that {source}."


def growth_backoff_until(job: ElasticJob, policy: ElasticPolicy) -> datetime:
    """Return when a job whose growth failed may grow again."""
    assert job.growth_failed_at is not None  # callers check this
    return backoff_until(job.growth_failed_at, job.failed_growths, policy)


def backoff_until(failed_at: datetime, failed_growths: int, policy: ElasticPolicy) -> datetime:
    """Return when a job may grow again, from its last failed growth and the number of failed growths in a row."""
    pause = min(policy.max_backoff_seconds, policy.backoff_seconds * 2 ** max(0, failed_growths - 1))
    return failed_at + timedelta(seconds=pause)


def plan_shrink(jobs: Sequence[ElasticJob], nodes: int, priority: int) -> ResizeDecision:
    """Free nodes for a job: other jobs shrink before any is stopped, and lose as little as possible.

    The set of jobs that loses the fewest accelerator-seconds shrinks, and each frees no more nodes than are needed. A
    job is stopped only if all shrinks together free too few nodes. Then the jobs that lose least are stopped. Jobs of
    the same or a higher priority are left alone. If all this frees too few nodes, no job changes.

    Args:
        jobs: The jobs that hold nodes of the kind.
        nodes: The number of nodes that are needed.
        priority: The priority of the job that needs them.
    """
    usual = median([job.since_checkpoint_seconds for job in jobs if job.since_checkpoint_seconds is not None] or [0.0])
    victims = sorted(
        (job for job in jobs if job.priority < priority and not job.is_resizing), key=lambda job: job.job_id
    )
    gives = {
        job.job_id: job.nodes - job.sizes.legal[0] for job in victims if job.sizes and job.nodes > job.sizes.legal[0]
    }
    if sum(gives.values()) >= nodes:
        shrunk = _cheapest_set([job for job in victims if job.job_id in gives], gives, nodes, usual, is_stopped=False)
        return _shrink_decision(shrunk, nodes, usual, jobs, priority)
    max_freed = sum(job.nodes if job.is_preemptable else gives.get(job.job_id, 0) for job in victims)
    if max_freed < nodes:
        missing_nodes = nodes - max_freed
        return ResizeDecision(
            resizes=(),
            reason=f"{count_of(nodes, 'node is', 'nodes are')} needed, "
            f"but jobs of lower priority hold {nodes - missing_nodes}. No job is stopped.",
            short=missing_nodes,
        )
    # As few jobs as possible are stopped, first the jobs that lose least. All other jobs that can shrink do so.
    victims.sort(key=lambda job: (job.lost_gpu_seconds(usual, is_stopped=True), job.job_id))
    preemptable_jobs = [job for job in victims if job.is_preemptable]
    for count in range(1, len(preemptable_jobs) + 1):
        options = []
        for stopped_jobs in itertools.islice(itertools.combinations(preemptable_jobs, count), _MAX_SETS):
            stopped_ids = {job.job_id for job in stopped_jobs}
            elastic_jobs = [job for job in victims if job.job_id in gives and job.job_id not in stopped_ids]
            freed_nodes = sum(job.nodes for job in stopped_jobs)
            if freed_nodes + sum(gives[job.job_id] for job in elastic_jobs) < nodes:
                continue
            shrunk = (
                _cheapest_set(elastic_jobs, gives, nodes - freed_nodes, usual, is_stopped=False)
                if nodes > freed_nodes
                else []
            )
            lost_gpu_seconds = sum(job.lost_gpu_seconds(usual, is_stopped=True) for job in stopped_jobs)
            lost_gpu_seconds += sum(job.lost_gpu_seconds(usual) for job, _ in shrunk)
            options.append(
                (lost_gpu_seconds, sorted(stopped_ids), [*((job, job.nodes) for job in stopped_jobs), *shrunk])
            )
        if options:
            return _shrink_decision(min(options, key=lambda option: option[:2])[2], nodes, usual, jobs, priority)
    raise AssertionError("all victims together were enough")


_MAX_SETS = 256
"""Maximum number of compared sets of jobs to stop, first the sets with the smallest single losses. The limit bounds the
computing time."""
_MAX_EXHAUSTIVE = 10
"""Up to this many candidates, all sets are compared. With more, jobs are added by loss per node until they free
enough."""


def _cheapest_set(
    candidates: Sequence[ElasticJob], gives: dict[str, int], nodes: int, usual: float, *, is_stopped: bool
) -> list[tuple[ElasticJob, int]]:
    """Return jobs with the number of nodes that each frees: enough nodes, at the least loss."""

    def lost(job: ElasticJob) -> float:
        return job.lost_gpu_seconds(usual, is_stopped=is_stopped)

    chosen_jobs: Sequence[ElasticJob]
    if len(candidates) <= _MAX_EXHAUSTIVE:
        sets = itertools.chain.from_iterable(
            itertools.combinations(candidates, count) for count in range(1, len(candidates) + 1)
        )
        enough = (group for group in sets if sum(gives[job.job_id] for job in group) >= nodes)
        chosen_jobs = min(enough, key=lambda group: (sum(map(lost, group)), [job.job_id for job in group]))
    else:
        jobs: list[ElasticJob] = []
        for job in sorted(candidates, key=lambda job: (lost(job) / gives[job.job_id], job.job_id)):
            if sum(gives[elastic_job.job_id] for elastic_job in jobs) >= nodes:
                break
            jobs.append(job)
        for job in sorted(jobs, key=lambda job: (-lost(job), job.job_id)):
            if sum(gives[elastic_job.job_id] for elastic_job in jobs if elastic_job is not job) >= nodes:
                jobs.remove(job)
        chosen_jobs = jobs
    shrinks, missing_nodes = [], nodes
    for job in sorted(chosen_jobs, key=lambda job: (-gives[job.job_id], job.job_id)):
        if missing_nodes <= 0:
            break
        assert job.sizes is not None  # a job without sizes frees no nodes
        size = job.sizes.largest_up_to(job.nodes - missing_nodes) or job.sizes.legal[0]
        shrinks.append((job, job.nodes - size))
        missing_nodes -= job.nodes - size
    return shrinks


def _shrink_decision(
    freed_nodes_by_job: Iterable[tuple[ElasticJob, int]],
    nodes: int,
    usual: float,
    jobs: Sequence[ElasticJob],
    priority: int,
) -> ResizeDecision:
    resizes = []
    for job, nodes_freed in freed_nodes_by_job:
        to_nodes = job.nodes - nodes_freed
        lost_gpu_seconds = job.lost_gpu_seconds(usual, is_stopped=not to_nodes)
        change_text = f"shrinks from {job.nodes} to {count_of(to_nodes, 'node')}" if to_nodes else "is stopped"
        reason = f"{job.job_id} {change_text} and loses {lost_gpu_seconds:.0f} GPU-seconds."
        resizes.append(
            SizeChange(
                job_id=job.job_id,
                from_nodes=job.nodes,
                to_nodes=to_nodes,
                reason=reason,
                lost_gpu_seconds=lost_gpu_seconds,
            )
        )
    resized_job_ids = {resize.job_id for resize in resizes}
    lost_in_all = sum(resize.lost_gpu_seconds for resize in resizes)
    return ResizeDecision(
        resizes=tuple(resizes),
        reason=f"{count_of(nodes, 'node is', 'nodes are')} freed at a loss of {lost_in_all:.0f} GPU-seconds, "
        "the least that frees enough.",
        alternatives=tuple(
            Alternative(option=job.job_id, why_not=_why_not_resized(job, priority))
            for job in jobs
            if job.job_id not in resized_job_ids
        ),
    )


def _why_not_resized(job: ElasticJob, priority: int) -> str:
    if job.priority >= priority:
        return "The job's priority is not lower."
    if job.is_resizing:
        return "The job is already changing size."
    if job.sizes is None or job.nodes <= job.sizes.legal[0]:
        return "The job cannot shrink further. A stop was not needed, or would lose more."
    return "Other jobs lose less."


class NodeLossAction(StrEnum):
    """The reaction of an elastic job to lost nodes."""

    WAIT = "WAIT"
    """Wait for a spare."""
    REPLACE = "REPLACE"
    """Continue at the same size on spares."""
    SHRINK = "SHRINK"
    """Continue with fewer nodes."""
    QUEUE = "QUEUE"
    """Return to the queue: no allowed size fits."""


class NodeLossFacts(Value):
    """Facts of a decision about an elastic job that lost nodes."""

    job: ElasticJob
    """The job at its earlier size."""
    lost_nodes: int
    spares: int
    lost_at: Instant
    policy: ElasticPolicy = ElasticPolicy()
    now: Instant


class NodeLossDecision(Value):
    """The decision about an elastic job that lost nodes."""

    action: NodeLossAction
    nodes: int
    """Number of nodes on which it continues; 0 if it waits."""
    reason: str
    recheck_at: Instant | None = None
    facts: NodeLossFacts


def decide_after_node_loss(facts: NodeLossFacts) -> NodeLossDecision:
    """Decide how a job continues after it lost nodes: on spares, later with fewer nodes, or in the queue."""
    job, lost_nodes = facts.job, facts.lost_nodes
    if facts.spares >= lost_nodes:
        reason = f"{count_of(facts.spares, 'spare node is', 'spare nodes are')} free: the job keeps its size."
        return NodeLossDecision(action=NodeLossAction.REPLACE, nodes=job.nodes, reason=reason, facts=facts)
    until = facts.lost_at + timedelta(seconds=facts.policy.spare_wait_seconds)
    size = job.sizes.largest_up_to(job.nodes - lost_nodes + facts.spares) if job.sizes else None
    if facts.now < until:
        reason = f"The job waits for a spare until {until:%H:%M:%S} UTC."
        return NodeLossDecision(action=NodeLossAction.WAIT, nodes=0, reason=reason, recheck_at=until, facts=facts)
    if size is None:
        node_count = count_of(job.nodes - lost_nodes + facts.spares, "node")
        reason = f"No allowed size fits {node_count}: the job returns to the queue."
        return NodeLossDecision(action=NodeLossAction.QUEUE, nodes=0, reason=reason, facts=facts)
    waited_text = f"{facts.policy.spare_wait_seconds:.0f} s"
    reason = f"No spare came within {waited_text}: the job continues with {count_of(size, 'node')}."
    return NodeLossDecision(action=NodeLossAction.SHRINK, nodes=size, reason=reason, facts=facts)
