"""A scheduling pass: admit what fits, and say of the rest why it waits. The only service that creates attempts.

    read TREE (version v) ── set-up, charges, pods, nodes, queues ─ decide ─ commit if TREE is still v ── start run_job

Whatever another pass admits raises TREE, and so does every change of the set-up: a commit on an older look fails whole.
What is released meanwhile only makes room. A crash after the commit leaves a STARTING attempt without its workflow,
which the sweeper starts. Who has to stop for another job is asked to in the commit that records why; it keeps its
charge until its pods are gone, and the other job waits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import OPEN_STATES, Incident, TimelineEntry
from evenkeel.domain.nodes import join_nodes
from evenkeel.domain.policy import Mode, Policy
from evenkeel.domain.recovery.modes import launch_mode
from evenkeel.domain.scheduling import sharing
from evenkeel.domain.scheduling.admission import (
    Action,
    AdmissionDecision,
    Request,
    Room,
    Snapshot,
    admit,
    beside_kueue,
    rooms_of,
    said_of,
)
from evenkeel.domain.scheduling.jobs import Attempt, AttemptState, Charge, Job, JobState, StopRequest
from evenkeel.domain.scheduling.queues.objects import QueueingStrategy, StopPolicy
from evenkeel.domain.scheduling.spending import Spent
from evenkeel.domain.scheduling.teams import SetUp
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Add,
    Cluster,
    Conflict,
    Ids,
    Key,
    Ledger,
    Machine,
    Provider,
    Put,
    Row,
    Table,
    Telemetry,
    TransientError,
    Workflows,
    Write,
)
from evenkeel.services import heartbeats, read_setup, rows

WRITER = "schedule_jobs"
_ROUNDS = 3
"""Looks that one pass takes before it leaves the rest to the next."""
_MOST_PAGES = 4
"""Pages of one team's queue that a pass reads while nobody on them can start."""
_MOST_ADMISSIONS = 12
"""In one commit, which holds 100 writes and 4 MB: five writes each, one of them a record."""
_MOST_VICTIMS = 40
"""In one commit: two writes each."""


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
    jobs: Mapping[str, tuple[Job, int]]
    """By id: the job and its row's version."""
    setup: SetUp = SetUp()
    rooms: tuple[Room, ...] = ()
    charges: tuple[Charge, ...] = ()
    stopping: frozenset[str] = frozenset()
    """Jobs whose attempts were asked to stop."""
    spent: Mapping[tuple[str, str], Spent] = {}
    cursors: Mapping[str, str] = {}
    """Where a queue goes on: by team."""
    of_kueue: Mapping[tuple[str, str], str] = {}
    """(cluster, namespace) in which Kueue admits → what says so."""

    @property
    def memory(self) -> sharing.Memory:
        """What passes remember, as far as it still matters."""
        return sharing.Memory.model_validate(self.tree.doc.get("memory") or {})

    def pending(self) -> tuple[Request, ...]:
        """Return what the waiting jobs ask for that may start."""
        return tuple(
            Request.of(job) for job, _ in self.jobs.values() if (job.cluster, job.namespace) not in self.of_kueue
        )

    def beside_kueue(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to those that may not, since Kueue admits where they are to run."""
        return tuple(
            beside_kueue(Request.of(job), job.namespace, self.of_kueue[job.cluster, job.namespace], now)
            for job, _ in self.jobs.values()
            if (job.cluster, job.namespace) in self.of_kueue
        )


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
        look = _load(ledger, cluster, provider, clusters, policy, now)
        look, weighed = _decide(look, ledger, policy, now)
        decisions = (*look.beside_kueue(now), *weighed)
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


# ---------------------------------------------------------------- load


def _load(
    ledger: Ledger, cluster: Cluster, provider: Provider, clusters: Sequence[str], policy: Policy, now: datetime
) -> _Look:
    tree = ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    setup = read_setup.run(ledger).setup
    jobs, cursors = _heads(ledger, setup, _hurt(ledger), policy.scheduling.heads_per_pass)
    if not jobs and not _drained(setup):
        return _Look(tree, {}, setup)
    # The order matters: a pod that is created between two of these reads is counted twice at worst, never not at all.
    charges = tuple(rows.read(row, Charge) for row in ledger.partition(tree.key.table, tree.key.pk, "CHARGE#"))
    workloads = [(name, seen) for name in clusters for seen in cluster.workloads(name)]
    in_use = {(name, node): count for name in clusters for node, count in cluster.accelerators_in_use(name).items()}
    seen_nodes = [node for name in clusters for node in cluster.nodes(name)]
    rooms = rooms_of(join_nodes(seen_nodes, provider.nodes(), clusters[0]), in_use, charges, workloads)
    of_kueue = {(name, each): by for name in clusters for each, by in cluster.kueue_namespaces(name).items()}
    look = _Look(tree, jobs, setup, rooms, charges, cursors=cursors, of_kueue=of_kueue)
    if not setup.has_teams:
        return look
    holders = _read(ledger, (rows.job_key(charge.job_id) for charge in charges))
    return look._replace(
        charges=tuple(_as_ranked(charge, holders) for charge in charges),
        stopping=_stopping(look, holders),
        spent=_spent(setup, ledger, now),
    )


def _hurt(ledger: Ledger) -> tuple[Key, ...]:
    """Return the jobs that open incidents hurt: a recovery brings them back wherever they stand in their queue."""
    at_work = [ledger.by_state(Table.INCIDENTS, f"INC#{state}").rows for state in OPEN_STATES]
    names = {one.job_id for page in at_work for row in page for one in rows.read(row, Incident).hurt_jobs}
    return tuple(rows.job_key(name) for name in sorted(names))


def _heads(
    ledger: Ledger, setup: SetUp, hurt: Iterable[Key], heads: int
) -> tuple[dict[str, tuple[Job, int]], dict[str, str]]:
    """Return the first jobs of each queue, and of each where it goes on.

    The index may lag behind, so each is read again from its own row.
    """
    state = f"JOB#{JobState.PENDING}"
    # What was submitted before there were teams stands first, and where all fit on a page there is nothing to ask for.
    first = ledger.by_state(Table.JOBS, state, limit=heads)
    found = [row.key for row in first.rows]
    cursors: dict[str, str] = {}
    for team in setup.by_name if first.cursor else ():
        page = ledger.by_state(Table.JOBS, state, prefix=rows.queue_prefix(team), limit=heads)
        found += [row.key for row in page.rows]
        if page.cursor:
            cursors[team] = page.cursor
    jobs = _read(ledger, dict.fromkeys((*hurt, *found)))
    return {name: each for name, each in jobs.items() if each[0].state is JobState.PENDING}, cursors


def _read(ledger: Ledger, keys: Iterable[Key]) -> dict[str, tuple[Job, int]]:
    wanted = tuple(keys)
    found = (row for start in range(0, len(wanted), 100) for row in ledger.get_each(*wanted[start : start + 100]))
    jobs = ((rows.read(row, Job), row.version) for row in found if row)
    return {job.job_id: (job, version) for job, version in jobs}


def _as_ranked(charge: Charge, holders: Mapping[str, tuple[Job, int]]) -> Charge:
    """Return a charge with what its job is worth by now: somebody may have ranked it anew since it was admitted."""
    holder = holders.get(charge.job_id)
    return charge.but(priority=holder[0].priority) if holder else charge


def _stopping(look: _Look, holders: Mapping[str, tuple[Job, int]]) -> frozenset[str]:
    """Return the jobs that were asked to stop, by whomever, and hold their charge still."""
    asked = {name for name, (job, _) in holders.items() if job.stop_of(job.current_attempt)}
    return frozenset((asked | look.memory.stopping.keys()) & {charge.job_id for charge in look.charges})


def _spent(setup: SetUp, ledger: Ledger, now: datetime) -> dict[tuple[str, str], Spent]:
    periods = [(team.name, budget.period.key_at(now)) for team in setup.teams for budget in team.budgets]
    found = [ledger.get(rows.spent_key(team, period)) for team, period in periods]
    return {place: Spent.model_validate(row.doc) for place, row in zip(periods, found, strict=True) if row}


def _drained(setup: SetUp) -> frozenset[str]:
    """Return the teams whose jobs are all to stop."""
    return frozenset(team.name for team in setup.teams if team.queue.stop is StopPolicy.HOLD_AND_DRAIN)


# ---------------------------------------------------------------- decide


def _decide(look: _Look, ledger: Ledger, policy: Policy, now: datetime) -> tuple[_Look, tuple[AdmissionDecision, ...]]:
    """Decide about the heads; where none of a queue can start or is in the way, about those behind them, too."""
    if not look.setup.has_teams:
        return look, admit(Snapshot(rooms=look.rooms, pending=look.pending()), policy.scheduling, now)
    for _ in range(_MOST_PAGES):
        snapshot = sharing.Snapshot(
            look.setup,
            look.rooms,
            look.pending(),
            look.charges,
            look.stopping,
            look.memory,
            look.spent,
            {name: job.reason for name, (job, _) in look.jobs.items()},
        )
        decisions = sharing.share(snapshot, policy.scheduling, policy.economy, now)
        more = _more(look, decisions, ledger, policy.scheduling.heads_per_pass)
        if more is None:
            break
        look = more
    return look, decisions


_IN_NOBODYS_WAY = frozenset(
    {Action.NO_QUOTA, Action.WAIT, Action.ALIKE, Action.HELD, Action.BACK_OFF, Action.NEVER_FITS}
)


def _more(look: _Look, decisions: Iterable[AdmissionDecision], ledger: Ledger, heads: int) -> _Look | None:
    """Read on in each queue whose heads are all parked; None where none is, or none has more."""
    kinds: dict[str, set[Action]] = {}
    for decided in decisions:
        kinds.setdefault(look.jobs[decided.job_id][0].spec.team, set()).add(decided.action)
    jobs, cursors = dict(look.jobs), dict(look.cursors)
    for team, cursor in look.cursors.items():
        is_strict = look.setup.by_name[team].queue.strategy is QueueingStrategy.STRICT
        if is_strict or kinds.get(team, set()) - _IN_NOBODYS_WAY:
            continue
        state = f"JOB#{JobState.PENDING}"
        page = ledger.by_state(Table.JOBS, state, prefix=rows.queue_prefix(team), limit=heads, cursor=cursor)
        found = _read(ledger, (row.key for row in page.rows))
        jobs |= {name: each for name, each in found.items() if each[0].state is JobState.PENDING}
        del cursors[team]
        if page.cursor:
            cursors[team] = page.cursor
    return None if len(jobs) == len(look.jobs) else look._replace(jobs=jobs, cursors=cursors)


# ---------------------------------------------------------------- act and record


class _Tree:
    """The tree as this pass last wrote it: each commit is held to its version."""

    def __init__(self, look: _Look, now: datetime) -> None:
        self._row = look.tree
        self.memory = look.memory.pruned(look.charges, look.setup, now) if look.setup.has_teams else look.memory

    def put(self, memory: sharing.Memory) -> Put:
        """Return the write that raises it."""
        told = memory.to_json() if memory != sharing.Memory() else None
        doc = {name: value for name, value in self._row.doc.items() if name != "memory"}
        return Put(Row(self._row.key, {**doc, "memory": told} if told else doc, self._row.version))

    def raised(self, memory: sharing.Memory) -> None:
        """Note that it was written."""
        written = self.put(memory).row
        self._row, self.memory = Row(written.key, written.doc, written.version + 1), memory


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
    tree = _Tree(look, now)
    batch: list[tuple[AdmissionDecision, Attempt, Mode]] = []

    def commit_batch() -> None:
        if not batch:
            return
        _commit_admissions(ledger, batch, look, tree, policy, now)
        for _, attempt, _ in batch:
            admitted.append(attempt.workload_name)
            telemetry.count("JobsAdmitted")
            telemetry.info("Job admitted", job_id=attempt.job_id, attempt=attempt.attempt, pool=attempt.pool)
            start_run(attempt, workflows, telemetry)
        batch.clear()

    for decided in decisions:
        job, _ = look.jobs[decided.job_id]
        allowed = launch_mode(mode, is_planned=job.is_planned(job.current_attempt + 1))
        if decided.action is Action.ADMIT and allowed is Mode.ACT:
            batch.append((decided, _admission(job, decided, ids.new("dec"), now), allowed))
            if len(batch) == _MOST_ADMISSIONS:
                commit_batch()
    # Who starts comes first: what is said of the others, and who has to stop, counts on it.
    commit_batch()
    for decided in decisions:
        job, version = look.jobs[decided.job_id]
        allowed = launch_mode(mode, is_planned=job.is_planned(job.current_attempt + 1))
        if decided.action is Action.PREEMPT and allowed is Mode.ACT:
            _commit_preemption(ledger, decided, look, tree, ids, telemetry, policy=policy, mode=allowed, now=now)
        elif decided.action is not Action.ADMIT or allowed is not Mode.ACT:
            _commit_reason(ledger, job, version, decided, look.setup, ids, policy, allowed, now)
    if mode is Mode.ACT:
        _drain(look, tree, ledger, telemetry, now)


def _admission(job: Job, decided: AdmissionDecision, decision_id: str, now: datetime) -> Attempt:
    return Attempt(
        job_id=job.job_id,
        attempt=job.current_attempt + 1,
        state=AttemptState.STARTING,
        cluster=job.cluster,
        namespace=job.namespace,
        pool=decided.pool,
        instance_type=decided.instance_type,
        nodes=decided.nodes,
        node_names=decided.node_names,
        accelerators=job.spec.nodes * job.spec.accelerators_per_node,
        team=job.spec.team,
        admitted_at=now,
        decision_id=decision_id,
    )


def _commit_admissions(
    ledger: Ledger,
    batch: Sequence[tuple[AdmissionDecision, Attempt, Mode]],
    look: _Look,
    tree: _Tree,
    policy: Policy,
    now: datetime,
) -> None:
    """Create attempts: all of them or none, and only if nobody admitted anything since the look."""
    memory = tree.memory
    usage: Counter[str] = Counter()
    writes: list[Write] = []
    for decided, attempt, mode in batch:
        job, version = look.jobs[attempt.job_id]
        number = attempt.attempt
        started = _in_queue(job, look.setup).but(
            state=JobState.STARTING,
            reason=decided.reason,
            current_attempt=number,
            not_before=None,
            queued_at=None,
            is_preempted=False,
        )
        where = ", ".join(attempt.node_names[:4]) + (" and more" if len(attempt.node_names) > 4 else "")
        entry = TimelineEntry(
            at=now,
            kind="admitted",
            text=f"Attempt {number} admitted to {attempt.pool}: {where}.",
            decision_id=attempt.decision_id,
            writer=WRITER,
        )
        usage[attempt.team] += attempt.accelerators
        memory = memory.after_admission(attempt.team, job.job_id)
        writes += (
            Put(rows.charge_row(attempt, job, decided.use)),
            Put(rows.job_row(started, version)),
            Put(rows.attempt_row(attempt, 0)),
            Put(rows.decision_row(_record(decided, attempt.decision_id, decided.reason, policy, mode, now))),
            Put(rows.timeline_row(job.job_id, entry, f"admitted-{number}")),
        )
    sums = (Add(rows.usage_key(team), {"accelerators": count}) for team, count in usage.items())
    ledger.commit(tree.put(memory), *sums, *writes, token=batch[0][1].decision_id)
    tree.raised(memory)


def _commit_preemption(
    ledger: Ledger,
    decided: AdmissionDecision,
    look: _Look,
    tree: _Tree,
    ids: Ids,
    telemetry: Telemetry,
    *,
    policy: Policy,
    mode: Mode,
    now: datetime,
) -> None:
    """Ask those to stop who have to, with the record of why; whoever was asked before is not asked again.

    More than fit into one commit are asked in several. After a crash between them the next pass finds the first ones
    on their way, takes them first, and asks the rest.
    """
    job, version = look.jobs[decided.job_id]
    fresh = {each.job_id: each.reason for each in decided.victims if each.job_id not in look.stopping}
    attempts = {charge.job_id: charge.attempt for charge in look.charges}
    found = _read(ledger, (rows.job_key(name) for name in fresh))
    names = [name for name in fresh if name in found and found[name][0].current_attempt == attempts.get(name)]
    if not names:
        _commit_reason(ledger, job, version, decided, look.setup, ids, policy, mode, now)
        return
    for start in range(0, len(names), _MOST_VICTIMS):
        part = names[start : start + _MOST_VICTIMS]
        writes: list[Write] = []
        for name in part:
            victim, victims_version = found[name]
            why = f"Preempted by {job.job_id} of team {job.spec.team} ({fresh[name]})."
            writes += _stop(victim, victims_version, why, f"schedule_jobs/{job.job_id}", now)
        memory = tree.memory.after_preemption(job.spec.team, job.job_id, part, now)
        record = _record(decided, ids.new("dec"), decided.reason, policy, mode, now)
        if start == 0:
            waits = _in_queue(job, look.setup).but(reason=decided.reason)
            writes += (Put(rows.job_row(waits, version)), Put(rows.decision_row(record)))
        ledger.commit(tree.put(memory), *writes, token=record.decision_id)
        tree.raised(memory)
    telemetry.count("JobsPreempted", len(names))
    telemetry.info("Jobs asked to stop for another", job_id=job.job_id, victims=names)


def _stop(job: Job, version: int, why: str, by: str, now: datetime) -> tuple[Write, ...]:
    """Return what asks a job's attempt to stop, with its own grace to save; nothing where somebody asked before."""
    if job.stop_of(job.current_attempt) or job.state not in (JobState.STARTING, JobState.RUNNING):
        return ()
    request = StopRequest(
        attempt=job.current_attempt,
        reason=why,
        by=by,
        outcome=AttemptState.STOPPED,
        grace_seconds=job.spec.grace_seconds,
        requested_at=now,
    )
    entry = TimelineEntry(at=now, kind="preempted", text=why, writer=WRITER)
    return (
        Put(rows.job_row(job.but(stop_request=request, reason=why, is_preempted=True), version)),
        Put(rows.timeline_row(job.job_id, entry, f"preempted-{job.current_attempt}")),
    )


def _drain(look: _Look, tree: _Tree, ledger: Ledger, telemetry: Telemetry, now: datetime) -> None:
    """Ask all jobs of drained queues to stop. Idempotent: yes, whoever was asked is not asked again."""
    teams = _drained(look.setup)
    attempts = {
        charge.job_id: charge.attempt
        for charge in look.charges
        if charge.team in teams and charge.job_id not in tree.memory.stopping
    }
    for name, (job, version) in _read(ledger, (rows.job_key(name) for name in attempts)).items():
        if job.current_attempt != attempts[name]:
            continue
        writes = _stop(job, version, f"The queue of team {job.spec.team} is drained.", f"{WRITER}/drain", now)
        memory = tree.memory.but(stopping={**tree.memory.stopping, name: ""})
        if writes:
            ledger.commit(tree.put(memory), *writes)
            tree.raised(memory)
            telemetry.info("Job asked to stop, its queue is drained", job_id=name)


def _in_queue(job: Job, setup: SetUp) -> Job:
    """Return a job in the queue where it belongs by now: teams may have been set up since it was submitted."""
    queue = job.spec.team if job.spec.team in setup.by_name else ""
    if queue == job.queue:
        return job
    return job.but(queue=queue, priority=setup.priority_of(job.spec.priority_class))


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
    setup: SetUp,
    ids: Ids,
    policy: Policy,
    mode: Mode,
    now: datetime,
) -> None:
    """Say on the job why it waits, but only when that changed: a queue that stands still is not rewritten."""
    placed = _in_queue(job, setup)
    if decided.action is Action.BACK_OFF:
        return  # the job says already what failed
    reason = said_of(decided, mode)
    if job.reason == reason and placed == job:
        return
    if job.reason == reason:
        ledger.commit(Put(rows.job_row(placed, version)))
        return
    record = _record(decided, ids.new("dec"), reason, policy, mode, now)
    ledger.commit(
        Put(rows.job_row(placed.but(reason=reason), version)), Put(rows.decision_row(record)), token=record.decision_id
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
