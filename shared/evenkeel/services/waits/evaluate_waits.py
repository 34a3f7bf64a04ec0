"""Read the state of the clusters once, and request the answer of every wait that is satisfied or timed out.

`watch_cluster` calls it at each change, and `sweep_fleet` in each run. `open_wait` calls it for the new wait, because
its condition may hold already. Repeated requests are harmless: `resolve_wait` answers a wait once.
"""

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

from evenkeel.domain.external import kueue_status
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.health.incidents import AffectedJob, Incident, NodeCheck
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.jobs.attempt_end import lost_nodes
from evenkeel.domain.jobs.attempt_waits import blames_application, evaluate_attempt_wait
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderCluster, ProviderNode
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery import approval, recovery_waits
from evenkeel.domain.recovery.guardrails import GuardrailAction
from evenkeel.domain.recovery.leases import RepairLease
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState, find_slot_state
from evenkeel.domain.recovery.opt_out import opt_out_reason
from evenkeel.domain.recovery.plan import provider_busy_reason
from evenkeel.domain.recovery.validation import (
    CheckKind,
    CheckResult,
    expected_accelerators,
    judge_deep_check,
    judge_node,
    margin_seconds,
    shows_fault,
)
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, with_replicas_observed
from evenkeel.domain.renting.rental_waits import (
    NODES_READY,
    evaluate_nodes_joined,
    evaluate_rental_over,
    evaluate_rental_ready,
    evaluate_serving_rental_over,
    is_queued,
    joined_nodes,
    why_node_not_needed,
)
from evenkeel.domain.renting.serving import replicas_on
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import DEADLINE_PASSED, ConditionKind, Wait, WaitAnswer, WaitCondition, WaitState
from evenkeel.ports import (
    Conflict,
    EvenkeelError,
    Key,
    Ledger,
    NotFound,
    Put,
    Row,
    Table,
    WaitAnswerRequests,
    every,
    get_all,
)
from evenkeel.services.context import Context
from evenkeel.services.recovery import blocked_incidents, plan_recovery, slot_reader
from evenkeel.services.recovery.guardrails import GuardrailInputs
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.rentals import pool_nodes
from evenkeel.services.storage import fleet_rows, incident_record, incident_rows, job_rows, rows, subject_rows
from evenkeel.services.waits.read_cache import ReadCache

WRITER = "evaluate_waits"
HYPERPOD = "HyperPod"
RECORDS_MAX_TICKS = 3
"""Ticks of the watch for which HyperPod's list is used: 15 s in production. A list of 2,000 nodes takes 20 calls."""
_RENTAL_KINDS = (ConditionKind.RENTAL_READY, ConditionKind.RENTAL_ENDED)
_ATTEMPT_KINDS = (
    ConditionKind.ATTEMPT_ADMITTED,
    ConditionKind.ATTEMPT_RUNNING,
    ConditionKind.ATTEMPT_ENDED,
    ConditionKind.ATTEMPT_STOPPED,
)


class EvaluationResult(Value):
    """The result of one evaluation."""

    open: int = 0
    answered: tuple[str, ...] = ()
    """`<subject>/<name>: <outcome>` of each requested answer."""
    failed: tuple[str, ...] = ()
    """Waits that could not be evaluated, and why."""

    @property
    def failure_text(self) -> str:
        """A sentence about the waits that could not be evaluated; empty if all were."""
        if not self.failed:
            return ""
        return (
            f"{len(self.failed)} of {count_of(self.open, 'wait')} could not be evaluated. The first: {self.failed[0]}"
        )


class Observation:
    """The facts of one evaluation. Each part is read once, and only if a wait needs it."""

    def __init__(self, context: Context, *, reads_all: bool, reads: ReadCache | None = None) -> None:
        self.context = context
        self._reads = reads or ReadCache(context.now)
        self._reads_all = reads_all
        """Whether workloads are listed all at once, or read one by one."""
        self._found: dict[Key, Row] = {}
        self._nodes_listed_ahead: frozenset[str] = frozenset()
        """Clusters whose nodes were listed before the rows of the waits were read."""
        self._unblocked_incidents: frozenset[str] | None = None
        self._workloads: dict[str, dict[tuple[str, int], list[ObservedWorkload]]] = {}
        self._slots: dict[str, SlotReader] = {}
        self._nodes_by_name: dict[str, Mapping[str, KubernetesNode]] = {}
        self._nodes_after_pods: dict[str, Mapping[str, KubernetesNode]] = {}

    def read_ahead(self, waits: Iterable[Wait], nodes_of: Iterable[str]) -> None:
        """Read what these waits need and the nodes of these clusters, side by side.

        The nodes are listed after the waits were read: each wait sees its node as it is after the wait was opened. The
        workloads are listed after the rows: a workload that was created in between would look lost.
        """
        cluster = self.context.cluster
        node_lists = [(name, "nodes", partial(cluster.nodes, name)) for name in sorted(set(nodes_of))]
        self._nodes_listed_ahead = frozenset(name for name, _, _ in node_lists)
        with ThreadPoolExecutor(max_workers=1) as reader:
            listing = reader.submit(self._reads.read_ahead, node_lists) if node_lists else None
            clusters = self._read_rows(waits)
            self._reads.read_ahead((name, "workloads", partial(cluster.workloads, name)) for name in sorted(clusters))
        if listing is not None:
            listing.result()

    def _read_rows(self, waits: Iterable[Wait]) -> set[str]:
        """Read the rows of these waits in a few calls: there may be one wait for each node of a fleet.

        Returns:
            The clusters of the attempts.
        """
        conditions = [(wait.subject, wait.condition) for wait in waits]
        keys = [key for subject, condition in conditions for key in _keys_of_wait(subject, condition)]
        self._found = get_all(self.context.ledger, keys)
        for subject, condition in conditions:
            row = (
                self._found.get(incident_rows.incident_key(subject))
                if condition.kind is ConditionKind.JOBS_RESUMED
                else None
            )
            keys += [
                key
                for _, incident in rows.readable_rows([row] if row else [], Incident)
                for affected in incident.affected_jobs
                for key in _job_and_attempt_keys(affected)
            ]
        self._found |= get_all(self.context.ledger, (key for key in keys if key not in self._found))
        attempts = (
            self._found.get(job_rows.attempt_key(subject, int(condition.facts["attempt"])))
            for subject, condition in conditions
            if condition.kind in _ATTEMPT_KINDS
        )
        return {str(row.doc["cluster"]) for row in attempts if row}

    def read_row(self, key: Key) -> Row | None:
        """Return a row, as it was when it was first read."""
        return self._found.get(key) or self.context.ledger.get(key)

    def read_incident(self, incident_id: str) -> Incident:
        """Return an incident.

        Raises:
            NotFound: there is no such incident.
        """
        row = self._found.get(incident_rows.incident_key(incident_id))
        return rows.decode(row, Incident) if row else incident_record.load_incident(self.context.ledger, incident_id)[0]

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        """Return the node objects of a cluster."""
        return list_nodes(cluster, self.context, self._reads)

    def nodes_by_name(self, cluster: str) -> Mapping[str, KubernetesNode]:
        """Return the node objects of a cluster by name. A fleet may have as many waits as nodes, and they share it."""
        if cluster not in self._nodes_by_name:
            self._nodes_by_name[cluster] = {node.name: node for node in self.nodes(cluster)}
        return self._nodes_by_name[cluster]

    def nodes_of_attempt(self, attempt: Attempt, names: Iterable[str]) -> Mapping[str, KubernetesNode]:
        """Return the node objects of an attempt's cluster, with each of these nodes that exists.

        The attempt's row or its pods show these names, and the nodes may have been listed before. A node that joined in
        between is no lost node, so the nodes are listed once more.
        """
        cluster = attempt.cluster
        nodes = self.nodes_by_name(cluster)
        are_newer = bool(attempt.node_names) and cluster not in self._nodes_listed_ahead
        if are_newer or nodes.keys() >= set(names):
            return nodes
        if cluster not in self._nodes_after_pods:
            self._nodes_after_pods[cluster] = {node.name: node for node in self.context.cluster.nodes(cluster)}
        return self._nodes_after_pods[cluster]

    @property
    def provider_nodes(self) -> tuple[ProviderNode, ...]:
        """HyperPod's list of nodes. In the watch it may be some seconds old (`is_listed_since`)."""
        return self._provider_nodes()[0]

    def is_listed_since(self, at: datetime) -> bool:
        """Whether HyperPod's list is from after a time. An older list shows the node as it was before its repair."""
        if not self._reads_all:
            return True  # the slot is read by itself
        return self._provider_nodes()[1] >= at

    def _provider_nodes(self) -> tuple[tuple[ProviderNode, ...], datetime]:
        return self._reads.read_with_time(
            HYPERPOD, "nodes", self.context.provider.nodes, seconds=self._provider_seconds
        )

    @property
    def _provider_seconds(self) -> float:
        return RECORDS_MAX_TICKS * self.context.policy.watch.tick_seconds

    @cached_property
    def guardrail_inputs(self) -> GuardrailInputs:
        """The facts of the guardrails."""
        return GuardrailInputs(self.context)

    def is_unblocked(self, incident: Incident) -> bool:
        """Whether the blocked action of an incident would be allowed now, in the order of the blocked incidents."""
        if self._unblocked_incidents is None or incident.incident_id not in self._blocked_incidents:
            self._blocked_incidents[incident.incident_id] = incident  # the index may lag behind
            self._unblocked_incidents = blocked_incidents.unblocked_incidents(
                self._blocked_incidents.values(), self.guardrail_inputs, self._looks_healthy
            )
        return incident.incident_id in self._unblocked_incidents

    def has_lost_its_node(self, incident: Incident) -> bool:
        """Whether an incident waits to cordon a node that is gone. No such wait would ever end."""
        if incident.block is None or incident.block.action != GuardrailAction.CORDON:
            return False
        return self.node_of(incident) is None

    @cached_property
    def _blocked_incidents(self) -> dict[str, Incident]:
        return blocked_incidents.load_blocked_incidents(self.context.ledger)

    def _looks_healthy(self, incident: Incident) -> bool:
        records, nodes = self.provider_nodes, self.nodes(incident.life.cluster)
        slot_state = find_slot_state(
            incident.life, incident.slot, incident.pool, records=records, nodes=nodes, since=incident.opened_at
        )
        observed = slot_state.replacement or slot_state.original
        return judge_node(observed, expected=self.expected_accelerators(incident, observed)).is_valid

    @property
    def hyperpod_settings(self) -> ProviderCluster | None:
        """HyperPod's settings and status; None if the fleet has no HyperPod cluster."""
        provider = self.context.provider
        return self._reads.read(
            HYPERPOD, "cluster", lambda: plan_recovery.read_hyperpod_settings(provider), seconds=self._provider_seconds
        )

    def check_result(self, cluster: str, check: NodeCheck) -> CheckResult:
        """Return the result of a node's test job."""
        return self.context.cluster.check_result(cluster, check.namespace, check.name)

    def count_returns(self, incident: Incident) -> int:
        """Return how often the node of an incident was returned to service lately."""
        row = self.context.ledger.get(fleet_rows.lease_key(incident.slot, is_drill=incident.is_drill))
        since = self.context.now - timedelta(hours=self.context.policy.repair.flap_window_hours)
        return len(rows.decode(row, RepairLease).returns_of(incident.life, since)) if row else 0

    def has_accelerator_pods(self, node: KubernetesNode) -> bool:
        """Whether a pod with accelerators runs on a node."""
        return self._reads.read(
            node.cluster, f"pods on {node.name}", lambda: slot_reader.has_accelerator_pods(node, self.context)
        )

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        """Return an attempt's Job and pods."""
        if not self._reads_all:
            return self.context.cluster.workload(attempt)
        if attempt.cluster not in self._workloads:
            listed = self._reads.read(
                attempt.cluster, "workloads", lambda: self.context.cluster.workloads(attempt.cluster)
            )
            by_name = self._workloads.setdefault(attempt.cluster, {})
            for workload in listed:
                by_name.setdefault((workload.job_id, workload.attempt), []).append(workload)
        return attempt.own_workload(self._workloads[attempt.cluster].get((attempt.job_id, attempt.attempt), ()))

    def capacity_refusal(self, offer: RentalOffer) -> str:
        """Return Karpenter's refusal of capacity since the pool was opened; empty if there is none."""
        return self.context.cluster.latest_capacity_refusal(offer.cluster, offer.pool, offer.opened_at)

    def pods_on(self, cluster: str, names: Iterable[str]) -> tuple[UnmanagedPod, ...]:
        """Return the pods on these nodes only."""
        return tuple(pod for name in names for pod in self.context.cluster.pods(cluster, name))

    def arriving_pods_and_nodes(self, rental: Rental) -> tuple[tuple[UnmanagedPod, ...], tuple[KubernetesNode, ...]]:
        """Return the nodes, and the pods that have no node or are on the nodes of a rental that is starting.

        The order of the reads matters. A pod that gets a node in between is seen without a node, or its node is seen.
        """
        cluster = rental.offer.cluster
        waiting_pods = self.context.cluster.pods(cluster, "")
        nodes = self.context.cluster.nodes(cluster)
        joined_names = [node.name for node in joined_nodes(rental, nodes, rental.other_rentals_nodes)]
        uids = {pod.uid for pod in waiting_pods}
        return (*waiting_pods, *(pod for pod in self.pods_on(cluster, joined_names) if pod.uid not in uids)), nodes

    def slot_reader(self, incident: Incident) -> SlotReader:
        """Return the reader of one slot, for an evaluation that does not list the fleet."""
        if incident.incident_id not in self._slots:
            self._slots[incident.incident_id] = SlotReader(incident, self.context)
        return self._slots[incident.incident_id]

    def node_of(self, incident: Incident) -> KubernetesNode | None:
        """Return the node object of an incident's own node; None if it is gone."""
        if not self._reads_all:
            return self.slot_reader(incident).node
        nodes = self.nodes(incident.life.cluster)
        return next((node for node in nodes if node.instance_id == incident.life.instance_id), None)

    def opt_out_reason(self, incident: Incident) -> str:
        """Return how a person opted out of a recovery; empty if no person did."""
        if not self._reads_all:
            return self.slot_reader(incident).opt_out_reason
        return opt_out_reason(incident, self.node_of(incident), self.nodes(incident.life.cluster))

    def slot_state(self, incident: Incident, facts: Mapping[str, Any]) -> SlotState:
        """Return the state of the slot that a wait is about."""
        if not self._reads_all:
            return self.slot_reader(incident).read_state(datetime.fromisoformat(facts["since"]))
        life = NodeLife.from_key(facts["life"])
        return find_slot_state(
            life,
            facts["slot"],
            facts["pool"],
            records=self.provider_nodes,
            nodes=self.nodes(life.cluster),
            since=datetime.fromisoformat(facts["since"]),
        )

    def expected_accelerators(self, incident: Incident, observed: ObservedNode) -> int:
        """Return how many accelerators a node should offer."""
        if not self._reads_all:
            return self.slot_reader(incident).expected_accelerators(observed)
        node = observed.node
        if node is None:
            return 0
        expected_type = node.instance_type or (observed.provider_node.instance_type if observed.provider_node else "")
        return expected_accelerators(
            expected_type, (peer for peer in self.nodes(node.cluster) if peer.name != node.name)
        )


def list_nodes(cluster: str, context: Context, reads: ReadCache) -> tuple[KubernetesNode, ...]:
    """Return the node objects of a cluster, listed once in a tick."""
    return reads.read(cluster, "nodes", lambda: context.cluster.nodes(cluster))


def run(
    context: Context,
    *,
    subject: str = "",
    repeat_answered: bool = False,
    reads: ReadCache | None = None,
    nodes_of: Iterable[str] = (),
) -> EvaluationResult:
    """Evaluate the open waits, of one subject or of all, against one state of the clusters.

    A wait that cannot be evaluated does not block the rest. With `repeat_answered` (the sweep), answers that were
    recorded but never delivered are requested again. `reads` has the caller's earlier reads. `nodes_of` are clusters
    whose nodes the caller reads next.

    Idempotent: yes, answers are only requested.
    """
    wait_rows = _read_wait_rows(context.ledger, subject, repeat_answered=repeat_answered)
    observation = Observation(context, reads_all=len(wait_rows) > 1, reads=reads)
    answered: list[str] = []
    failed: list[str] = []
    waits = list(rows.readable_rows(wait_rows, Wait, lambda error: failed.append(str(error))))
    waits_to_read = waits if len(waits) > 1 else ()
    observation.read_ahead((wait for _, wait in waits_to_read if wait.state is WaitState.OPEN), nodes_of)
    for row, wait in waits:
        try:
            outcome = _evaluate_wait(wait, row, observation, context.wait_answers)
        except EvenkeelError as error:
            failed.append(f"{wait.subject}/{wait.name}: {type(error).__name__}: {error}")
            context.telemetry.warning("WaitNotEvaluated", subject=wait.subject, wait=wait.name, detail=str(error))
            continue
        if outcome:
            answered.append(f"{wait.subject}/{wait.name}: {outcome}")
    return EvaluationResult(open=len(wait_rows), answered=tuple(answered), failed=tuple(failed))


def evaluate_one(wait: Wait, row: Row, context: Context) -> str:
    """Evaluate a wait that was just opened. Return the requested outcome; None if there is none."""
    observation = Observation(context, reads_all=False)
    return _evaluate_wait(wait, row, observation, context.wait_answers)


def _read_wait_rows(ledger: Ledger, subject: str, *, repeat_answered: bool) -> list[Row]:
    states = [WaitState.OPEN, *([WaitState.ANSWERED] if repeat_answered else [])]
    if subject:
        table, pk = subject_rows.subject_partition(subject)
        wait_rows = ledger.partition(table, pk, "WAIT#")
        return [row for row in wait_rows if row.doc.get("state") in states]
    return [
        row
        for table in (Table.JOBS, Table.INCIDENTS)
        for state in states
        for row in every(lambda cursor, t=table, s=state: ledger.by_state(t, f"WAIT#{s}", limit=1000, cursor=cursor))  # type: ignore[misc]
    ]


def _evaluate_wait(wait: Wait, row: Row, observation: Observation, wait_answers: WaitAnswerRequests) -> str:
    if wait.state is WaitState.ANSWERED and wait.answer:
        wait_answers.request(wait.subject, wait.name, wait.generation, wait.answer.to_json())
        return wait.answer.outcome
    if wait.condition.kind is ConditionKind.ATTEMPT_ADMITTED:
        wait, row = _record_kueue_status(wait, row, observation)
    answer = judge_wait(wait, observation)
    if answer is not None and blames_application(answer) and not _is_debounced(wait, row, observation):
        answer = None
    if (
        answer is None
        and observation.context.now >= wait.deadline_at
        and observation.context.now >= _overdue_at(wait, observation)
    ):
        answer = WaitAnswer(outcome=DEADLINE_PASSED, reason=f"{UNMET_TEXT[wait.condition.kind]} The deadline passed.")
    if answer is None:
        return ""
    wait_answers.request(wait.subject, wait.name, wait.generation, answer.to_json())
    return answer.outcome


def _overdue_at(wait: Wait, observation: Observation) -> datetime:
    """Return when a wait times out: at its deadline, or later for jobs that kept running for a while."""
    if wait.condition.kind is not ConditionKind.JOBS_RESUMED:
        return wait.deadline_at
    incident = observation.read_incident(wait.subject)
    affected = _affected_job_states(incident, observation)
    return recovery_waits.overdue_at(
        affected, incident, observation.context.policy, deadline_at=wait.deadline_at, now=observation.context.now
    )


UNMET_TEXT = {
    ConditionKind.ATTEMPT_ADMITTED: "Kueue has not admitted the job.",
    ConditionKind.ATTEMPT_RUNNING: "Not every pod runs.",
    ConditionKind.ATTEMPT_ENDED: "The attempt has not ended.",
    ConditionKind.ATTEMPT_STOPPED: "Not every pod has ended.",
    ConditionKind.NODE_BACK: "The node slot has no Ready node.",
    ConditionKind.NODE_VALID: "The node does not pass validation.",
    ConditionKind.JOBS_RESUMED: "Not every interrupted job runs again.",
    ConditionKind.REPAIR_POSSIBLE: "The node is still in use.",
    ConditionKind.RELEASED: "A hold or a guardrail still blocks the action.",
    ConditionKind.RENTAL_READY: "Not all rented nodes joined.",
    ConditionKind.RENTAL_ENDED: "The rented nodes are still in use.",
    ConditionKind.APPROVED: "No person approved the plan.",
}
"""Return the message for a wait that timed out."""


def _is_debounced(wait: Wait, row: Row, observation: Observation) -> bool:
    """Whether an answer that blames the application was first seen long enough ago. Records when it is seen first."""
    if wait.seen_since is not None:
        return observation.context.now - wait.seen_since >= timedelta(
            seconds=observation.context.policy.jobs.attribution_delay_seconds
        )
    if observation.context.policy.jobs.attribution_delay_seconds <= 0:
        return True
    with contextlib.suppress(Conflict):  # the wait changed meanwhile; the next evaluation reads it
        observation.context.ledger.commit(
            Put(subject_rows.wait_row(wait.replace(seen_since=observation.context.now), row.version))
        )
    return False


def judge_wait(wait: Wait, observation: Observation) -> WaitAnswer | None:
    """Return the answer of a wait whose condition holds; None while it does not."""
    kind, facts = wait.condition.kind, wait.condition.facts
    if kind in _ATTEMPT_KINDS:
        return _judge_attempt_wait(wait, observation)
    if kind in _RENTAL_KINDS:
        return _judge_rental_wait(wait, observation)
    incident = observation.read_incident(wait.subject)
    if kind is ConditionKind.JOBS_RESUMED:
        return recovery_waits.evaluate_jobs_resumed(
            _affected_job_states(incident, observation),
            incident,
            observation.context.policy,
            now=observation.context.now,
        )
    forbidden = _opt_out_answer(incident, observation)
    if forbidden is not None:
        return forbidden
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
        observed = slot_state.replacement or slot_state.original
        return recovery_waits.evaluate_node_valid(
            observed,
            judge_node(observed, expected=observation.expected_accelerators(incident, observed)),
            opened_at=wait.opened_at,
            # Facts that join an incident are about its own node life. A late fact about the old node does not concern
            # the new one.
            last_signal_at=None if slot_state.replacement else incident.last_signal_at,
            margin=margin_seconds(observation.count_returns(incident), observation.context.policy.repair),
            now=observation.context.now,
            check=_check_result_of(incident, observed, observation),
        )
    return None


def _judge_rental_wait(wait: Wait, observation: Observation) -> WaitAnswer | None:
    number = int(wait.condition.facts["rental"])
    row = observation.read_row(job_rows.rental_key(wait.subject, number))
    if row is None:
        raise NotFound(f"{wait.subject} has no rental {number}.")
    rental = rows.decode(row, Rental)
    if rental.serving_target is not None:
        return _judge_replicas(wait, rental, row, observation)
    nodes = observation.nodes(rental.offer.cluster)
    stored = observation.read_row(job_rows.job_key(wait.subject))
    if stored is None:
        raise NotFound(f"There is no {wait.subject} for rental {number}.")
    job = rows.decode(stored, Job)
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
    if answer is None or answer.outcome != NODES_READY:
        return answer
    joined = [node.name for node in joined_nodes(rental, nodes, other_nodes)]
    in_use = pool_nodes.nodes_in_use(rental.offer.cluster, joined, observation.context)
    if not in_use:
        return answer
    return evaluate_rental_ready(rental, job, nodes, refusal, other_nodes | in_use, kueue)


def _judge_replicas(wait: Wait, rental: Rental, row: Row, observation: Observation) -> WaitAnswer | None:
    """Answer the waits of a Deployment's rental, and record whether replicas use its node."""
    policy = observation.context.policy
    if wait.condition.kind is ConditionKind.RENTAL_READY:
        pods, nodes = observation.arriving_pods_and_nodes(rental)
        # The other rentals of the Deployment are not read here. The steps of the workflow read them.
        unwanted = why_node_not_needed(rental, (), policy.scheduling.serving, pods, nodes)
        return evaluate_nodes_joined(
            rental, unwanted, nodes, observation.capacity_refusal(rental.offer), rental.other_rentals_nodes
        )
    pods = observation.pods_on(rental.offer.cluster, rental.node_names)
    stored = rental
    if rental.state is RentalState.READY:
        stored = with_replicas_observed(
            rental, has_replicas=bool(replicas_on(rental, pods)), now=observation.context.now
        )
    if stored != rental:
        with contextlib.suppress(Conflict):  # the rental was released, or another evaluation recorded it
            observation.context.ledger.commit(Put(job_rows.rental_row(stored, row.version)))
    return evaluate_serving_rental_over(
        stored, pods, observation.nodes(rental.offer.cluster), policy.burst.quiet_seconds, observation.context.now
    )


def _check_result_of(incident: Incident, observed: ObservedNode, observation: Observation) -> CheckResult:
    """Return the state of the node's check; passed if no check was started for it."""
    check = incident.check
    if check is None or observed.node is None or check.instance_id != observed.instance_id:
        return CheckResult.PASSED
    match check.kind:
        case CheckKind.DEEP:
            min_seconds = observation.context.policy.repair.deep_check_min_seconds
            return judge_deep_check(
                observed.node, started_at=check.started_at, min_seconds=min_seconds, now=observation.context.now
            )
        case CheckKind.TEST_JOB:
            return observation.check_result(observed.node.cluster, check)
        case _:
            return CheckResult.PASSED


def _opt_out_answer(incident: Incident, observation: Observation) -> WaitAnswer | None:
    """Return an answer if a person forbids the action that follows this wait."""
    reason = observation.opt_out_reason(incident)
    return WaitAnswer(outcome=recovery_waits.OPTED_OUT, reason=reason) if reason else None


def _judge_repair_possible(incident: Incident, slot_state: SlotState, observation: Observation) -> WaitAnswer | None:
    record, node = slot_state.original.provider_node, slot_state.original.node
    until = incident.plan.work_may_run_until if incident.plan else None
    return recovery_waits.evaluate_repair_possible(
        provider_busy_reason(
            observation.hyperpod_settings.status if observation.hyperpod_settings else "",
            record.status if record else "",
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
    lost = lost_nodes(nodes, names, observation.context.now, observation.context.policy.jobs.lost_node_seconds)
    faulty = frozenset(name for name in names if name in nodes and shows_fault(nodes[name]))
    return evaluate_attempt_wait(wait.condition.kind, workload, job, attempt, lost, faulty)


def _record_kueue_status(wait: Wait, row: Row, observation: Observation) -> tuple[Wait, Row]:
    """Record the state of a job in Kueue if it changed, so that readers need no access to the cluster.

    The job's timeline has each step. Details that change with every Kueue cycle are only on the wait.
    """
    number = int(wait.condition.facts["attempt"])
    attempt_row = observation.read_row(job_rows.attempt_key(wait.subject, number))
    if attempt_row is None:
        return wait, row
    attempt = rows.decode(attempt_row, Attempt)
    status = observation.workload(attempt).kueue
    changed = wait.replace(
        kueue_status=kueue_status.describe_status(status, attempt.local_queue, observation.context.now),
        kueue_step=kueue_status.status_step(status),
        kueue_position=status.position if status else None,
    )
    if changed == wait:
        return wait, row
    entry = TimelineEntry(at=observation.context.now, kind="kueue", text=changed.kueue_status, writer=WRITER)
    timeline = (
        [Put(subject_rows.timeline_row(wait.subject, entry, f"kueue-{number}-{changed.kueue_step}"))]
        if changed.kueue_step != wait.kueue_step
        else []
    )
    try:
        observation.context.ledger.commit(Put(subject_rows.wait_row(changed, row.version)), *timeline)
    except Conflict:  # the wait changed meanwhile; the next evaluation reads it
        return wait, row
    return changed, subject_rows.wait_row(changed, row.version + 1)


def _affected_job_states(incident: Incident, observation: Observation) -> list[recovery_waits.AffectedJobState]:
    jobs = []
    for affected in incident.affected_jobs:
        job, attempt = map(observation.read_row, _job_and_attempt_keys(affected))
        jobs.append(
            recovery_waits.AffectedJobState(
                affected=affected,
                job=rows.decode(job, Job) if job else None,
                interrupted_attempt=rows.decode(attempt, Attempt) if attempt else None,
            )
        )
    return jobs


def _keys_of_wait(subject: str, condition: WaitCondition) -> tuple[Key, ...]:
    if condition.kind in _ATTEMPT_KINDS:
        return (job_rows.job_key(subject), job_rows.attempt_key(subject, int(condition.facts["attempt"])))
    if condition.kind in _RENTAL_KINDS:
        return (job_rows.job_key(subject), job_rows.rental_key(subject, int(condition.facts["rental"])))
    return (incident_rows.incident_key(subject),)


def _job_and_attempt_keys(affected: AffectedJob) -> tuple[Key, Key]:
    return (job_rows.job_key(affected.job_id), job_rows.attempt_key(affected.job_id, affected.attempt))
