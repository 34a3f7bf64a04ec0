"""A scheduling pass: admit what fits, and say of the rest why it waits. The only service that creates attempts.

    read TREE (version v) ── read charges, pods, nodes, queue ── decide ── commit if TREE is still v ── start run_job

Whatever another pass admits raises TREE, so a commit on an older look fails whole. What is released meanwhile only
makes room. A crash after the commit leaves a STARTING attempt without its workflow, which the sweeper starts.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import OPEN_STATES, Incident, TimelineEntry
from evenkeel.domain.nodes import join_nodes
from evenkeel.domain.policy import Mode, Policy
from evenkeel.domain.recovery.modes import launch_mode
from evenkeel.domain.scheduling.admission import Action, AdmissionDecision, Request, Snapshot, admit, rooms_of, said_of
from evenkeel.domain.scheduling.jobs import Attempt, AttemptState, Charge, Job, JobState
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Add,
    Cluster,
    Conflict,
    Ids,
    Ledger,
    Machine,
    Provider,
    Put,
    Row,
    Table,
    Telemetry,
    TransientError,
    Workflows,
)
from evenkeel.services import heartbeats, rows

WRITER = "schedule_jobs"
_ROUNDS = 3
"""Looks that one pass takes before it leaves the rest to the next."""


class Outcome(Value):
    """What a pass did."""

    admitted: tuple[str, ...] = ()
    """Names of the attempts' workflows."""
    waiting: int = 0
    """Jobs of the queue's head that stay pending."""
    is_complete: bool = True
    """False where others kept changing the queue under the pass; the next one goes on."""


class _Look(NamedTuple):
    """What a pass read, with the versions its writes depend on."""

    tree: Row
    snapshot: Snapshot
    jobs: Mapping[str, tuple[Job, int]]
    """By id: the job and its row's version."""


def run(
    ledger: Ledger,
    cluster: Cluster,
    provider: Provider,
    workflows: Workflows,
    ids: Ids,
    telemetry: Telemetry,
    *,
    clusters: Sequence[str],
    policy: Policy,
    mode: Mode,
    now: datetime,
) -> Outcome:
    """Run one pass. In any mode but `act` the same decisions are recorded, and nothing is admitted.

    Idempotent: yes, every admission is conditional on the tree's and the job's version; concurrent passes are safe.
    """
    admitted: list[str] = []
    for _ in range(_ROUNDS):
        look = _load(ledger, cluster, provider, clusters, policy)
        decisions = admit(look.snapshot, policy.scheduling, now)
        try:
            _carry_out(decisions, look, admitted, ledger, workflows, ids, telemetry, policy=policy, mode=mode, now=now)
        except Conflict:
            continue  # somebody was first: look again
        waiting = len(decisions) - len([one for one in decisions if one.action is Action.ADMIT])
        if not waiting and len(decisions) >= policy.scheduling.heads_per_pass:
            continue  # the whole head of the queue is in: look at what came after it
        heartbeats.beat(ledger, telemetry, WRITER, now)
        return Outcome(admitted=tuple(admitted), waiting=waiting)
    heartbeats.beat(ledger, telemetry, WRITER, now)
    telemetry.warning("A pass ended before the queue's head stood still; the next one goes on", rounds=_ROUNDS)
    return Outcome(admitted=tuple(admitted), is_complete=False)


def _load(ledger: Ledger, cluster: Cluster, provider: Provider, clusters: Sequence[str], policy: Policy) -> _Look:
    tree = ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    jobs = _queue(ledger, policy.scheduling.heads_per_pass)
    if not jobs:
        return _Look(tree, Snapshot(rooms=(), pending=()), {})
    # The order matters: a pod that is created between two of these reads is counted twice at worst, never not at all.
    charges = [rows.read(row, Charge) for row in ledger.partition(tree.key.table, tree.key.pk, "CHARGE#")]
    workloads = [(name, seen) for name in clusters for seen in cluster.workloads(name)]
    in_use = {(name, node): count for name in clusters for node, count in cluster.accelerators_in_use(name).items()}
    seen_nodes = [node for name in clusters for node in cluster.nodes(name)]
    nodes = join_nodes(seen_nodes, provider.nodes(), clusters[0])
    pending = tuple(Request.of(job) for job, _ in jobs.values())
    return _Look(tree, Snapshot(rooms=rooms_of(nodes, in_use, charges, workloads), pending=pending), jobs)


def _queue(ledger: Ledger, heads: int) -> dict[str, tuple[Job, int]]:
    """Return the first jobs of the queue, and those that a recovery brings back wherever they stand in it.

    The index may lag behind, so each is read again from its own row.
    """
    at_work = [ledger.by_state(Table.INCIDENTS, f"INC#{state}").rows for state in OPEN_STATES]
    hurt = [rows.job_key(one.job_id) for page in at_work for row in page for one in rows.read(row, Incident).hurt_jobs]
    first = [row.key for row in ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=heads).rows]
    found = (ledger.get(key) for key in dict.fromkeys((*hurt, *first)))
    jobs = ((rows.read(row, Job), row.version) for row in found if row)
    return {job.job_id: (job, version) for job, version in jobs if job.state is JobState.PENDING}


def _carry_out(
    decisions: Sequence[AdmissionDecision],
    look: _Look,
    admitted: list[str],
    ledger: Ledger,
    workflows: Workflows,
    ids: Ids,
    telemetry: Telemetry,
    *,
    policy: Policy,
    mode: Mode,
    now: datetime,
) -> None:
    tree = look.tree
    for decided in decisions:
        job, version = look.jobs[decided.job_id]
        allowed = launch_mode(mode, is_planned=job.is_planned(job.current_attempt + 1))
        if decided.action is Action.ADMIT and allowed is Mode.ACT:
            attempt = _admission(job, decided, ids.new("dec"), now)
            _commit_admission(ledger, job, version, attempt, decided, tree, policy, allowed, now)
            tree = Row(tree.key, tree.doc, tree.version + 1)
            admitted.append(attempt.workload_name)
            telemetry.count("JobsAdmitted")
            telemetry.info("Job admitted", job_id=job.job_id, attempt=attempt.attempt, pool=attempt.pool)
            start_run(attempt, workflows, telemetry)
        else:
            _commit_reason(ledger, job, version, decided, ids, policy, allowed, now)


def _admission(job: Job, decided: AdmissionDecision, decision_id: str, now: datetime) -> Attempt:
    return Attempt(
        job_id=job.job_id,
        attempt=job.current_attempt + 1,
        state=AttemptState.STARTING,
        cluster=job.cluster,
        namespace=job.namespace,
        pool=decided.pool,
        nodes=decided.nodes,
        node_names=decided.node_names,
        accelerators=job.spec.nodes * job.spec.accelerators_per_node,
        team=job.spec.team,
        admitted_at=now,
        decision_id=decision_id,
    )


def _commit_admission(
    ledger: Ledger,
    job: Job,
    version: int,
    attempt: Attempt,
    decided: AdmissionDecision,
    tree: Row,
    policy: Policy,
    mode: Mode,
    now: datetime,
) -> None:
    """Create the attempt: all of it or nothing, and only if nobody admitted anything since the look."""
    number = attempt.attempt
    started = job.but(
        state=JobState.STARTING,
        reason=decided.reason,
        current_attempt=number,
        not_before=None,
    )
    where = ", ".join(attempt.node_names[:4]) + (" and more" if len(attempt.node_names) > 4 else "")
    entry = TimelineEntry(
        at=now,
        kind="admitted",
        text=f"Attempt {number} admitted to {attempt.pool}: {where}.",
        decision_id=attempt.decision_id,
        writer=WRITER,
    )
    ledger.commit(
        Put(Row(tree.key, tree.doc, tree.version)),
        Add(rows.usage_key(attempt.team), {"accelerators": attempt.accelerators}),
        Put(rows.charge_row(attempt)),
        Put(rows.job_row(started, version)),
        Put(rows.attempt_row(attempt, 0)),
        Put(rows.decision_row(_record(decided, attempt.decision_id, decided.reason, policy, mode, now))),
        Put(rows.timeline_row(job.job_id, entry, f"admitted-{number}")),
        token=attempt.decision_id,
    )


def start_run(attempt: Attempt, workflows: Workflows, telemetry: Telemetry) -> bool:
    """Start the workflow of an attempt; False where that failed, which the sweeper makes good.

    Idempotent: yes, by the execution's name; one that exists already is success.
    """
    document = {"schemaVersion": 1, "jobId": attempt.job_id, "attempt": attempt.attempt}
    try:
        workflows.start(Machine.RUN_JOB, attempt.workload_name, document)
    except TransientError as error:
        telemetry.warning(
            "The workflow of an attempt could not be started yet", job_id=attempt.job_id, error=str(error)
        )
        return False
    return True


def _commit_reason(
    ledger: Ledger,
    job: Job,
    version: int,
    decided: AdmissionDecision,
    ids: Ids,
    policy: Policy,
    mode: Mode,
    now: datetime,
) -> None:
    """Say on the job why it waits, but only when that changed: a queue that stands still is not rewritten."""
    if decided.action is Action.BACK_OFF:
        return  # the job says already what failed
    reason = said_of(decided, mode)
    if job.reason == reason:
        return
    record = _record(decided, ids.new("dec"), reason, policy, mode, now)
    ledger.commit(
        Put(rows.job_row(job.but(reason=reason), version)), Put(rows.decision_row(record)), token=record.decision_id
    )


def _record(
    decided: AdmissionDecision, decision_id: str, reason: str, policy: Policy, mode: Mode, now: datetime
) -> Decision:
    return Decision(
        decision_id=decision_id,
        kind="ADMISSION",
        subject=decided.job_id,
        action=decided.action,
        reason=reason,
        alternatives=decided.alternatives,
        facts=decided.facts.to_json(),
        policy_hash=policy.hash,
        mode=mode,
        decided_at=now,
    )
