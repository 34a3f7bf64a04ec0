"""State LaunchJob of run_job: fence out earlier attempts, pin the resume point, create the Kubernetes Job.

    pods of n-1 gone, or on lost nodes ─ raise fence to n, with its pin ─ delete lost pods ─ create Job ─ record

`pin_resume_point` decides the resume point. If finished checkpoints exist but none can be proven, nothing is launched
and nothing is pinned. The attempt then ends, and the next one tries again after a pause.
"""

import itertools
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.capacity import efa
from evenkeel.domain.checkpoints import FenceUnreadableError
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.attempt_end import lost_nodes
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import KubernetesNode, NodeLife, accelerator_resource_of
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import (
    LaunchSpec,
    Ledger,
    NotAllowed,
    NotFound,
    PermanentError,
    Put,
    Refused,
)
from evenkeel.services.attempts import measure_restore, pin_resume_point, record_size
from evenkeel.services.attempts.pin_resume_point import PinOutcome
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.storage import attempt_store
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "launch_job"


class LaunchOutcome(StrEnum):
    """The outcome of LaunchJob."""

    LAUNCHED = "LAUNCHED"
    QUEUED = "QUEUED"
    """Launched; Kueue decides when its pods start."""
    NOT_YET = "NOT_YET"
    """The earlier attempt has not ended. Try again after `waitSeconds`."""
    STALE = "STALE"
    """A later attempt exists, or this one is settled. No action is needed."""
    GIVE_UP = "GIVE_UP"
    """The attempt cannot be launched and must be settled."""


class LaunchJobResult(Value):
    """The outcome, and its reason as a sentence."""

    outcome: LaunchOutcome
    wait_seconds: int = 0
    reason: str


class _NodeDependentFields(NamedTuple):
    """The part of a launch that depends on the nodes of its pods."""

    network: efa.EfaRequest
    accelerator_resource: str
    avoid: tuple[str, ...] = ()
    """Names of nodes that the pods must not run on."""


class _EarlierAttempt(NamedTuple):
    """An earlier attempt whose pods or Job still exist."""

    attempt: Attempt
    workload: ObservedWorkload
    blocking_pods: tuple[str, ...]
    """Its pods that may still run on reachable nodes."""
    out_of_reach: tuple[str, ...]
    """Lost nodes with its pods."""


def run(request: attempt_store.AttemptRequest, context: Context) -> LaunchJobResult:
    """Launch an attempt, if the earlier attempts are gone or fenced out.

    If Kueue admits, the workflow calls it again once Kueue has started the Job. The pods then learn their world size.

    Idempotent: yes, by the fence and by the Kubernetes Job's name. A repeated call finds the pin and the Job, and
    records them.
    """
    stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
    job, attempt = stored_attempt.job, stored_attempt.attempt
    if attempt.state.has_ended or job.current_attempt != attempt.attempt:
        return LaunchJobResult(outcome=LaunchOutcome.STALE, reason=f"{attempt.workload_name} has already ended.")
    if attempt.state is not AttemptState.STARTING:
        return _continue_launched(attempt, context)
    give_up_reason = _why_give_up(job, attempt, context)
    # A Job whose creation had no reply is recorded first, and then stopped like any other Job. Settling the attempt
    # now would free its nodes while pods run.
    if give_up_reason and not context.cluster.workload(attempt).has_runnable_pods:
        return _give_up(stored_attempt, attempt, give_up_reason, context, is_refused=attempt.is_refused)

    earlier_attempts = _find_earlier_attempts(attempt, context)
    for earlier_attempt in earlier_attempts:
        if earlier_attempt.workload.has_runnable_pods:
            # The attempt is settled but its Job was not deleted: a crash came in between.
            context.cluster.stop(earlier_attempt.attempt, job.spec.grace_seconds)
    blocking_pods = [pod for earlier_attempt in earlier_attempts for pod in earlier_attempt.blocking_pods]
    if blocking_pods:
        reason = f"The job waits for pods of an earlier attempt to end: {', '.join(blocking_pods[:3])}."
        return LaunchJobResult(
            outcome=LaunchOutcome.NOT_YET, wait_seconds=context.policy.jobs.launch_retry_seconds, reason=reason
        )

    policy = context.policy.jobs
    try:
        pin = pin_resume_point.run(job, attempt, context.checkpoints, policy=policy)
    except (FenceUnreadableError, PermanentError) as error:
        if attempt.attempt > 1 and isinstance(error, PermanentError):
            raise  # the cluster accepted an earlier attempt, so the job is not the cause
        reason = f"The job's checkpoints cannot be used: {error}"
        return _give_up(stored_attempt, attempt, reason, context, is_refused=True)
    if pin.kind is PinOutcome.STALE:
        return LaunchJobResult(outcome=LaunchOutcome.STALE, reason=pin.resume_choice.reason)
    return _launch_from_pin(stored_attempt, earlier_attempts, pin, context)


def _continue_launched(attempt: Attempt, context: Context) -> LaunchJobResult:
    """Return whether a launched attempt still waits for Kueue. Once it does not, its pods learn their world size."""
    reason = f"{attempt.workload_name} was already launched."
    if attempt.local_queue:
        workload = context.cluster.workload(attempt)
        if workload.uid and workload.is_suspended:
            return LaunchJobResult(outcome=LaunchOutcome.QUEUED, reason=reason)
        reason = record_size.run(attempt.job_id, attempt.attempt, context).reason or reason
    return LaunchJobResult(outcome=LaunchOutcome.LAUNCHED, reason=reason)


def _launch_from_pin(
    stored_attempt: attempt_store.StoredAttempt,
    earlier_attempts: Iterable[_EarlierAttempt],
    pin: pin_resume_point.PinAnswer,
    context: Context,
) -> LaunchJobResult:
    """Launch an attempt whose resume point is decided."""
    job, attempt, resume_choice = stored_attempt.job, stored_attempt.attempt, pin.resume_choice
    pinned_attempt = attempt.replace(
        is_pinned=pin.kind is PinOutcome.PINNED,
        resume_from=resume_choice.resume_from,
        resumed_work_from=resume_choice.began_at,
        resumed_throughput=resume_choice.throughput,
        rejected_checkpoints=tuple(rejection.to_json() for rejection in resume_choice.rejected),
        reason=resume_choice.reason if pin.kind is PinOutcome.IN_CLUSTER else "",
    )
    if pin.kind is PinOutcome.UNPROVEN:
        context.telemetry.count("LaunchesWithoutCheckpoint")
        context.telemetry.error(
            "NoCheckpointVerified", job_id=job.job_id, reason=resume_choice.reason, runbook="job-unproven"
        )
        reason = (
            f"{resume_choice.reason} Starting over would discard finished work. "
            "Evenkeel launches the job once a checkpoint is valid."
        )
        return _give_up(stored_attempt, pinned_attempt, reason, context, is_refused=False)
    for earlier_attempt in earlier_attempts:
        if earlier_attempt.out_of_reach:
            context.cluster.force_delete_pods(earlier_attempt.attempt, earlier_attempt.out_of_reach)
    resume_from = resume_choice.resume_from.manifest if resume_choice.resume_from else ""
    if attempt.local_queue:
        node_fields = _node_dependent_fields_for_kueue(job, attempt, context)
    else:
        node_fields = _node_dependent_fields_of_assigned_nodes(job, attempt, context)
    try:
        _, uid = context.cluster.launch(
            LaunchSpec(
                job_spec=_spec_with_priority_class(job, attempt, context.policy),
                attempt=pinned_attempt,
                resume_from=resume_from,
                service_account=job.service_account or context.site.job_service_account,
                proof_rules=pin.proof_rules,
                **node_fields._asdict(),
            )
        )
    except Refused as error:
        reason = f"The cluster refused the attempt's {attempt.kind}: {error}"
        return _give_up(stored_attempt, pinned_attempt, reason, context, is_refused=True)
    except (NotAllowed, NotFound) as error:
        # A ResourceQuota and most policies answer 403. The answer may change within minutes.
        context.telemetry.count("LaunchesForbidden")
        context.telemetry.warning("LaunchNotAllowed", job_id=job.job_id, attempt=attempt.attempt, detail=str(error))
        reason = f"The cluster does not accept the attempt's Kubernetes Job now: {error}"
        return _give_up(stored_attempt, pinned_attempt, reason, context, is_refused=False)
    rental_store.delete_capacity_pods_of(job, attempt, context)
    launched_attempt = pinned_attempt.replace(state=AttemptState.LAUNCHED, workload_uid=uid, launched_at=context.now)
    _record_launch(stored_attempt, launched_attempt, pin, node_fields.network, context)
    for earlier_attempt in earlier_attempts:
        measure_restore.run(job, earlier_attempt.attempt.attempt, context)
    context.telemetry.count("AttemptsLaunched")
    context.telemetry.info("AttemptLaunched", job_id=job.job_id, attempt=attempt.attempt, resume_from=resume_from)
    return LaunchJobResult(outcome=_outcome_of_launch(attempt), reason=resume_choice.reason)


def _outcome_of_launch(attempt: Attempt) -> LaunchOutcome:
    return LaunchOutcome.QUEUED if attempt.local_queue else LaunchOutcome.LAUNCHED


def _node_dependent_fields_of_assigned_nodes(job: Job, attempt: Attempt, context: Context) -> _NodeDependentFields:
    """Return the fields of pods on assigned nodes. All nodes of a part have one type and pool, so its first is read."""
    node = context.cluster.node(attempt.cluster, attempt.node_names[0]) if attempt.node_names else None
    if node is None:
        interfaces, huge_pages_mib = efa.EfaNode(attempt.pool, attempt.instance_type), 0
    else:
        interfaces, huge_pages_mib = efa.EfaNode.of(node), node.huge_pages_mib
    # A node lists no accelerators until its device plugin has registered, or while the plugin restarts.
    listed_resource = node.accelerator_resource if node else ""
    accelerator_resource = listed_resource or accelerator_resource_of(attempt.instance_type)
    accelerators, by_pool = job.spec.accelerators_per_node, context.policy.scheduling.efa_interfaces
    network = efa.efa_request(interfaces, attempt.ranks, accelerators, by_pool, huge_pages_mib)
    rented_part = attempt.rented_part
    if rented_part is not None:
        # All pods of a gang are alike, so each requests what a node of either part offers.
        rented_node = context.cluster.node(attempt.cluster, rented_part.node_names[0])
        efa_node = (
            efa.EfaNode.of(rented_node) if rented_node else efa.EfaNode(rented_part.pool, rented_part.instance_type)
        )
        huge_pages_mib = min(huge_pages_mib, rented_node.huge_pages_mib if rented_node else 0)
        min_interfaces = efa.min_interfaces((interfaces, efa_node), attempt.ranks, accelerators, by_pool)
        if min_interfaces < network.interfaces or huge_pages_mib < network.huge_pages_mib:
            network = efa.EfaRequest(min_interfaces)
    return _NodeDependentFields(network, accelerator_resource)


def _node_dependent_fields_for_kueue(job: Job, attempt: Attempt, context: Context) -> _NodeDependentFields:
    """Return the fields of pods for which Kueue and the scheduler choose the nodes.

    Kueue may choose any type that the job names, so the pods request the interfaces that each of these types has. They
    request no huge pages: a ClusterQueue admits no job that requests a resource that it does not cover.
    """
    nodes, plan = context.cluster.nodes(attempt.cluster), job.resume_plan
    keys = plan.avoid if plan and job.is_planned(attempt.attempt) else ()
    instance_ids = {NodeLife.from_key(key).instance_id for key in keys}
    listed_nodes = [
        node for node in nodes if not job.spec.instance_types or node.instance_type in job.spec.instance_types
    ]
    accelerators, by_pool = job.spec.accelerators_per_node, context.policy.scheduling.efa_interfaces
    fitting_nodes = [efa.EfaNode.of(node) for node in listed_nodes if node.accelerators >= accelerators]
    instance_types = {capacity.instance_type for capacity in fitting_nodes}
    nodes_of_types = [efa.EfaNode("", name) for name in job.spec.instance_types if name not in instance_types]
    interfaces = efa.min_interfaces((*fitting_nodes, *nodes_of_types), attempt.ranks, accelerators, by_pool)
    listed_resources = (node.accelerator_resource for node in listed_nodes if node.accelerator_resource)
    resources_by_name = map(accelerator_resource_of, job.spec.instance_types)
    accelerator_resource = next(itertools.chain(listed_resources, resources_by_name), "")
    avoid = tuple(sorted(node.name for node in nodes if node.instance_id in instance_ids))
    return _NodeDependentFields(efa.EfaRequest(interfaces), accelerator_resource, avoid)


def _why_give_up(job: Job, attempt: Attempt, context: Context) -> str:
    request = job.stop_of(attempt.attempt)
    if request:
        return request.reason
    if attempt.is_refused:
        return attempt.reason
    if job.launch_mode(context.mode, attempt.attempt) is not Mode.ACT:
        return f"Mode is {context.mode}: Evenkeel launches nothing."
    if context.now - attempt.admitted_at > timedelta(seconds=context.policy.jobs.launch_deadline_seconds):
        return f"The attempt could not be launched within {context.policy.jobs.launch_deadline_seconds} s."
    return ""


def _find_earlier_attempts(attempt: Attempt, context: Context) -> tuple[_EarlierAttempt, ...]:
    """Find the remaining parts of earlier attempts, from the newest back to the last launched attempt.

    The fence of that attempt already excludes older attempts. Two reachable attempts never run side by side.
    """
    attempts: list[_EarlierAttempt] = []
    nodes: dict[str, KubernetesNode] | None = None
    for number in range(attempt.attempt - 1, 0, -1):
        row = context.ledger.get(job_rows.attempt_key(attempt.job_id, number))
        if row is None:
            continue
        earlier = rows.decode(row, Attempt)
        workload = context.cluster.workload(earlier)
        live_pods = workload.live_pods()
        if live_pods and nodes is None:
            nodes = {node.name: node for node in context.cluster.nodes(attempt.cluster)}
        names = tuple(sorted({pod.node_name for pod in live_pods if pod.node_name}))
        lost_node_names = lost_nodes(nodes or {}, names, context.now, context.policy.jobs.lost_node_seconds)
        blocking_pods = tuple(pod.name for pod in workload.live_pods(lost_node_names))
        attempts.append(
            _EarlierAttempt(
                attempt=earlier,
                workload=workload,
                blocking_pods=blocking_pods,
                out_of_reach=tuple(sorted(lost_node_names)),
            )
        )
        if earlier.launched_at is not None:
            break
    return tuple(attempts)


# ---------------------------------------------------------------- record


def _record_launch(
    stored_attempt: attempt_store.StoredAttempt,
    launched_attempt: Attempt,
    pin: pin_resume_point.PinAnswer,
    network: efa.EfaRequest,
    context: Context,
) -> None:
    action = (
        "launched"
        if not launched_attempt.local_queue
        else f"created in Kueue's LocalQueue {launched_attempt.local_queue}"
    )
    details = (
        f"{_resume_text(pin)}{_drain_text(launched_attempt, context.ledger)}{_network_text(launched_attempt, network)}"
    )
    text = f"Attempt {launched_attempt.attempt} {action}{details}"
    entry = TimelineEntry(at=context.now, kind="launched", text=text, writer=WRITER)
    context.ledger.commit(
        Put(job_rows.attempt_row(launched_attempt, stored_attempt.attempt_version)),
        Put(subject_rows.timeline_row(launched_attempt.job_id, entry, f"launched-{launched_attempt.attempt}")),
    )


def _drain_text(launched_attempt: Attempt, ledger: Ledger) -> str:
    """Record whether the earlier attempt saved the resume point of this one while it was stopped."""
    has_earlier_attempt = launched_attempt.is_pinned and launched_attempt.attempt > 1
    row = (
        ledger.get(job_rows.attempt_key(launched_attempt.job_id, launched_attempt.attempt - 1))
        if has_earlier_attempt
        else None
    )
    earlier = rows.decode(row, Attempt) if row else None
    if earlier is None or earlier.stop_asked_at is None or earlier.running_at is None:
        return ""
    point, began = launched_attempt.resume_from, launched_attempt.resumed_work_from
    if point and point.attempt == earlier.attempt and began and began >= earlier.stop_asked_at:
        return f" Step {point.step} was saved while attempt {earlier.attempt} was stopped."
    return f" No usable checkpoint was saved while attempt {earlier.attempt} was stopped."


def _network_text(launched_attempt: Attempt, network: efa.EfaRequest) -> str:
    """Return the network that the pods of an attempt use between nodes."""
    if launched_attempt.ranks < 2:
        return ""
    count = network.interfaces
    return f" Each pod requests {count} EFA interface{'s'[: count != 1]}." if count else " The pods request no EFA."


def _resume_text(pin: pin_resume_point.PinAnswer) -> str:
    resume_choice = pin.resume_choice
    if pin.kind is PinOutcome.IN_CLUSTER:
        return f". {resume_choice.reason}"
    point = resume_choice.resume_from
    begin = f"from step {point.step} of attempt {point.attempt}" if point else "from the beginning"
    return f", {begin}. {resume_choice.reason}" if resume_choice.rejected else f", {begin}."


def _spec_with_priority_class(job: Job, attempt: Attempt, policy: Policy) -> JobSpec:
    """Return the spec to launch, with the priority class that Kubernetes or Kueue may see; empty if neither may.

    A team's class orders its jobs in the queues. The scheduler of Kubernetes would evict by it, regardless of quota.
    """
    is_allowed = bool(attempt.local_queue) if job.queue else job.spec.priority_class in policy.jobs.priority_classes
    return job.spec if is_allowed or not job.spec.priority_class else job.spec.replace(priority_class="")


def _give_up(
    stored_attempt: attempt_store.StoredAttempt, attempt: Attempt, message: str, context: Context, *, is_refused: bool
) -> LaunchJobResult:
    """Record on the attempt why it is not launched. SettleAttempt reads it there.

    `attempt` may carry a pin that `stored.attempt` does not have yet.
    """
    reason = message[:1000]
    if (stored_attempt.attempt.reason, stored_attempt.attempt.is_refused) != (reason, is_refused):
        entry = TimelineEntry(at=context.now, kind="refused" if is_refused else "given up", text=reason, writer=WRITER)
        context.ledger.commit(
            Put(
                job_rows.attempt_row(
                    attempt.replace(reason=reason, is_refused=is_refused), stored_attempt.attempt_version
                )
            ),
            Put(subject_rows.timeline_row(attempt.job_id, entry, f"given-up-{attempt.attempt}")),
        )
    return LaunchJobResult(outcome=LaunchOutcome.GIVE_UP, reason=reason)
