"""Judge one wait: whether its condition holds, is impossible, or is still open. Nothing is written here."""

import contextlib
from datetime import datetime

from evenkeel.domain.external import kueue_status
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.attempt_end import lost_nodes
from evenkeel.domain.jobs.attempt_waits import evaluate_attempt_wait
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.recovery import approval, recovery_waits
from evenkeel.domain.recovery.draining import finish_deadline_now
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState
from evenkeel.domain.recovery.plan import provider_busy_reason
from evenkeel.domain.recovery.validation import (
    CheckKind,
    CheckResult,
    judge_deep_check,
    judge_node,
    margin_seconds,
    shows_fault,
)
from evenkeel.domain.renting.rental import Rental, RentalState, with_replicas_observed
from evenkeel.domain.renting.rental_waits import (
    evaluate_nodes_joined,
    evaluate_rental_over,
    evaluate_rental_ready,
    evaluate_serving_rental_over,
    is_queued,
    joined_nodes,
    why_no_replica_waits,
)
from evenkeel.domain.renting.serving_rentals import replicas_on
from evenkeel.domain.waiting import ConditionKind, Wait, WaitAnswer, WaitOutcome
from evenkeel.ports import (
    Conflict,
    NotFound,
    Put,
    Row,
)
from evenkeel.services.rentals import pool_nodes
from evenkeel.services.tables import job_rows, rows
from evenkeel.services.waits.wait_observation import ATTEMPT_KINDS, RENTAL_KINDS, Observation, job_and_attempt_keys


def judge_wait(wait: Wait, observation: Observation) -> WaitAnswer | None:
    """Return the answer of a wait whose condition holds; None while it does not."""
    kind, facts = wait.condition.kind, wait.condition.facts
    if kind in ATTEMPT_KINDS:
        return _judge_attempt_wait(wait, observation)
    if kind in RENTAL_KINDS:
        return _judge_rental_wait(wait, observation)
    incident = observation.read_incident(wait.subject)
    if kind is ConditionKind.JOBS_RESUMED:
        return recovery_waits.evaluate_jobs_resumed(
            affected_job_states(incident, observation),
            incident,
            observation.context.policy,
            now=observation.context.now,
        )
    opt_out_answer = _opt_out_answer(incident, observation)
    if opt_out_answer is not None:
        return opt_out_answer
    if kind is ConditionKind.RELEASED:
        return recovery_waits.evaluate_guardrails_cleared(
            is_allowed=observation.has_lost_its_node(incident) or observation.is_unblocked(incident)
        )
    if kind is ConditionKind.APPROVED:
        return approval.evaluate_approval(incident, observation.node_of(incident))
    if not observation.is_listed_since(wait.opened_at):
        return None
    slot_state = observation.slot_state(incident, facts)
    if kind is ConditionKind.REPAIR_POSSIBLE:
        return _judge_repair_possible(incident, slot_state, observation)
    if kind is ConditionKind.NODE_BACK:
        return recovery_waits.evaluate_node_back(
            slot_state,
            rung=facts["rung"],
            boot_id_before=facts["bootId"],
            owner=facts.get("owner", ""),
            since=datetime.fromisoformat(facts["since"]),
            progress=incident.progress,
        )
    if kind is ConditionKind.NODE_VALID:
        return _judge_node_valid(wait, incident, slot_state, observation)
    return None


def _judge_node_valid(
    wait: Wait, incident: Incident, slot_state: SlotState, observation: Observation
) -> WaitAnswer | None:
    policy, now = observation.context.policy, observation.context.now
    too_weak_reason = recovery_waits.why_reboot_is_too_weak(incident, policy, now)
    if too_weak_reason and slot_state.replacement is None:
        return WaitAnswer(outcome=WaitOutcome.INVALID, reason=too_weak_reason)
    facts = wait.condition.facts
    if slot_state.replacement is None and recovery_waits.has_failed_since_boot(
        incident,
        slot_state.original.node,
        requested_at=datetime.fromisoformat(facts["since"]),
        boot_id_before=facts["bootId"],
    ):
        return WaitAnswer(outcome=WaitOutcome.INVALID, reason="The node failed again after it rebooted.")
    observed_node = slot_state.replacement or slot_state.original
    return recovery_waits.evaluate_node_valid(
        observed_node,
        judge_node(observed_node, expected_count=observation.expected_accelerators(incident, observed_node)),
        opened_at=wait.opened_at,
        # Facts that join an incident are about its own node life. A late fact about the old node does not concern the
        # new one.
        last_signal_at=None if slot_state.replacement else incident.last_signal_at,
        margin=margin_seconds(observation.count_returns(incident), policy.repair),
        now=now,
        check=_check_result_of(incident, observed_node, observation),
    )


def _judge_rental_wait(wait: Wait, observation: Observation) -> WaitAnswer | None:
    number = int(wait.condition.facts["rental"])
    row = observation.read_row(job_rows.rental_key(wait.subject, number))
    if row is None:
        raise NotFound(f"{wait.subject} has no rental {number}.")
    rental = rows.decode(row, Rental)
    if rental.serving_target is not None:
        return _judge_replicas(wait, rental, row, observation)
    nodes = observation.nodes(rental.offer.cluster)
    job_row = observation.read_row(job_rows.job_key(wait.subject))
    if job_row is None:
        raise NotFound(f"There is no {wait.subject} for rental {number}.")
    job = rows.decode(job_row, Job)
    attempt_row = (
        observation.read_row(job_rows.attempt_key(job.job_id, job.current_attempt)) if job.current_attempt else None
    )
    attempt = rows.decode(attempt_row, Attempt) if attempt_row else None
    kueue = observation.workload(attempt).kueue if attempt and is_queued(attempt) else None
    if wait.condition.kind is ConditionKind.RENTAL_READY:
        return _judge_rental_ready(rental, job, nodes, kueue, observation)
    return evaluate_rental_over(
        rental, job, attempt, nodes, observation.context.policy.burst.quiet_seconds, observation.context.now, kueue
    )


def _judge_rental_ready(
    rental: Rental,
    job: Job,
    nodes: tuple[KubernetesNode, ...],
    kueue: kueue_status.KueueStatus | None,
    observation: Observation,
) -> WaitAnswer | None:
    """Answer the wait for the nodes of a job's rental. Pods are read only if enough nodes joined."""
    refusal, other_nodes = observation.capacity_refusal(rental.offer), frozenset(rental.other_rentals_nodes)
    answer = evaluate_rental_ready(rental, job, nodes, refusal, other_nodes, kueue)
    if answer is None or answer.outcome != WaitOutcome.NODES_READY:
        return answer
    joined_names = [node.name for node in joined_nodes(rental, nodes, other_nodes)]
    in_use = pool_nodes.nodes_in_use(rental.offer.cluster, joined_names, observation.context)
    if not in_use:
        return answer
    return evaluate_rental_ready(rental, job, nodes, refusal, other_nodes | in_use, kueue)


def _judge_replicas(wait: Wait, rental: Rental, row: Row, observation: Observation) -> WaitAnswer | None:
    """Answer the waits of a Deployment's rental, and record whether replicas use its node."""
    policy = observation.context.policy
    if wait.condition.kind is ConditionKind.RENTAL_READY:
        pods, nodes = observation.arriving_pods_and_nodes(rental)
        # The other rentals of the Deployment are not read here. The steps of the workflow read them.
        why_not_waiting = why_no_replica_waits(rental, (), policy.scheduling.serving, pods, nodes)
        return evaluate_nodes_joined(
            rental, why_not_waiting, nodes, observation.capacity_refusal(rental.offer), rental.other_rentals_nodes
        )
    pods = observation.pods_on(rental.offer.cluster, rental.node_names)
    stored_rental = rental
    if rental.state is RentalState.READY:
        stored_rental = with_replicas_observed(
            rental, has_replicas=bool(replicas_on(rental, pods)), now=observation.context.now
        )
    if stored_rental != rental:
        with contextlib.suppress(Conflict):  # the rental was released, or another evaluation recorded it
            observation.context.ledger.commit(Put(job_rows.rental_row(stored_rental, row.version)))
    return evaluate_serving_rental_over(
        stored_rental,
        pods,
        observation.nodes(rental.offer.cluster),
        policy.burst.quiet_seconds,
        observation.context.now,
    )


def _check_result_of(incident: Incident, observed_node: ObservedNode, observation: Observation) -> CheckResult:
    """Return the state of the node's check; passed if no check was started for it."""
    check = incident.check
    if check is None or observed_node.node is None or check.instance_id != observed_node.instance_id:
        return CheckResult.PASSED
    match check.kind:
        case CheckKind.DEEP:
            min_seconds = observation.context.policy.repair.deep_check_min_seconds
            return judge_deep_check(
                observed_node.node, started_at=check.started_at, min_seconds=min_seconds, now=observation.context.now
            )
        case CheckKind.TEST_JOB:
            return observation.check_result(observed_node.node.cluster, check)
        case _:
            return CheckResult.PASSED


def _opt_out_answer(incident: Incident, observation: Observation) -> WaitAnswer | None:
    """Return an answer if a person forbids the action that follows this wait."""
    reason = observation.opt_out_reason(incident)
    return WaitAnswer(outcome=WaitOutcome.OPTED_OUT, reason=reason) if reason else None


def _judge_repair_possible(incident: Incident, slot_state: SlotState, observation: Observation) -> WaitAnswer | None:
    provider_node, node = slot_state.original.provider_node, slot_state.original.node
    policy = observation.context.policy
    until = finish_deadline_now(incident, policy.catalogue.look_up(incident.fault_key), policy)
    return recovery_waits.evaluate_repair_possible(
        provider_busy_reason(
            observation.hyperpod_settings.status if observation.hyperpod_settings else "",
            provider_node.status if provider_node else "",
        ),
        has_work=until is not None and node is not None and observation.has_accelerator_pods(node),
        work_may_run_until=until,
        now=observation.context.now,
    )


def _judge_attempt_wait(wait: Wait, observation: Observation) -> WaitAnswer | None:
    number = int(wait.condition.facts["attempt"])
    job_row = observation.read_row(job_rows.job_key(wait.subject))
    attempt_row = observation.read_row(job_rows.attempt_key(wait.subject, number))
    if job_row is None or attempt_row is None:
        return None
    job, attempt = rows.decode(job_row, Job), rows.decode(attempt_row, Attempt)
    workload = observation.workload(attempt)
    names = attempt.nodes_in(workload)
    nodes = observation.nodes_of_attempt(attempt, names)
    lost_node_names = lost_nodes(
        nodes, names, observation.context.now, observation.context.policy.jobs.lost_node_seconds
    )
    faulty = frozenset(name for name in names if name in nodes and shows_fault(nodes[name]))
    return evaluate_attempt_wait(wait.condition.kind, workload, job, attempt, lost_node_names, faulty)


def affected_job_states(incident: Incident, observation: Observation) -> list[recovery_waits.AffectedJobState]:
    jobs = []
    for affected_job in incident.affected_jobs:
        job, attempt = map(observation.read_row, job_and_attempt_keys(affected_job))
        jobs.append(
            recovery_waits.AffectedJobState(
                affected=affected_job,
                job=rows.decode(job, Job) if job else None,
                interrupted_attempt=rows.decode(attempt, Attempt) if attempt else None,
            )
        )
    return jobs
