"""A scheduling pass: admit what fits, and say of the rest why it waits. The only service that creates attempts.

    read TREE (version v) ── set-up, queues, charges, jobs, nodes ─ decide ─ commit if TREE is still v ── start run_job

A cluster that cannot be read stops admissions on itself alone. Its jobs stay pending, its nodes are offered to nobody,
and the jobs that run there keep their quota and are not asked to stop.

Whatever another pass admits raises TREE, and so does every change of the set-up: a commit on an older look fails whole.
A release raises nothing: it marks the charge in place, and the jobs are read after the charges. So a cycle that sees
freed quota sees the interrupted job that had it, too, and that job is weighed with all others.

A crash after the commit leaves a STARTING attempt without its workflow,
which the sweeper starts. Who has to stop for another job is asked to in the commit that records why; it keeps its
charge until its pods are gone, and the other job waits.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.admission import (
    request_facts,
    resize_facts,
    resize_plan,
    scheduler_state,
    serving_demand,
    start_size,
    team_cycle,
)
from evenkeel.domain.admission.decide import (
    Action,
    AdmissionDecision,
    beside_kueue,
    hand_over,
    in_anothers_namespace,
    on_unreadable_cluster,
    said_of,
)
from evenkeel.domain.admission.fifo import Admission, Snapshot, admit
from evenkeel.domain.admission.free_capacity import rooms_of
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import Request
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external import serving
from evenkeel.domain.external.workloads import ForeignPod
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, WorkloadSeen
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState, PlacementNote, StopRequest
from evenkeel.domain.kueue.objects import QueueingStrategy, StopPolicy
from evenkeel.domain.nodes import KubernetesNode, ProviderNode, join_nodes
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.quotas.budgets import left_by_team
from evenkeel.domain.quotas.spending import Spent
from evenkeel.domain.quotas.teams import SetUp
from evenkeel.domain.recovery.modes import launch_mode
from evenkeel.domain.recovery.resume import lost_seconds
from evenkeel.domain.renting.rental import is_on
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Add,
    Cluster,
    Conflict,
    Delete,
    EvenkeelError,
    Ids,
    Key,
    Ledger,
    Machine,
    Provider,
    Put,
    Refused,
    Row,
    Table,
    Telemetry,
    TransientError,
    Workflows,
    Write,
    get_all,
)
from evenkeel.services.context import Desk
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.rentals import read_budgets, rent_for_serving, rentals
from evenkeel.services.scheduling import leave_pools, read_use, resize_jobs
from evenkeel.services.storage import attempt_rows, batches, heartbeats, read_charges, read_setup, rows

WRITER = "schedule_jobs"
_ROUNDS = 3
"""Looks that one pass takes before it leaves the rest to the next."""
_MOST_PAGES = 4
"""Pages of one team's queue that a pass reads besides, all at once, where nobody on the first can start."""
_TURN_PAGES = 1
"""Pages of one team's queue that a pass reads besides, from where the pass before stopped: whoever stands behind any
number of parked jobs is looked at within so many passes as the queue has such pages."""
_MOST_REASONS = 12
"""In one commit, where `batches.cut` lets so many be."""
_ASIDE = timedelta(hours=1)
"""How long a job is not tried again after the ledger refused to store what was decided about it."""


_EVERY_QUEUE = ""
"""In the place of a team's name: the list of all waiting jobs. Where no teams are set up it is the one queue; else it
also holds jobs that were submitted before there were teams, and those of teams that were removed."""
_NO_SIZES = scheduler_state.ElasticMemory()


class Outcome(Value):
    """What a pass did."""

    admitted: tuple[str, ...] = ()
    """Names of the attempts' workflows."""
    waiting: int = 0
    """Jobs of the queue's head that stay pending."""
    is_complete: bool = True
    """False where others kept changing the queue under the pass; the next one goes on."""


class _Turn(NamedTuple):
    """How far queues are read past their heads, one pass after the other."""

    row: Row
    stopped: Mapping[str, str]
    """Where this pass stopped, by team; whose end it saw begins anew."""
    page: frozenset[str] = frozenset()
    """Jobs that were read from the list of all waiting jobs, behind its head."""
    began: str = ""
    """The cursor of that page."""
    barriers: tuple[tuple[str, str], ...] = ()
    """Jobs that wait for machines and stand before the page, each with the cursor at which the jobs behind it begin."""

    def after(self, decisions: Iterable[AdmissionDecision], after_heads: str) -> "_Turn":
        """Return how the next cycle goes on where no teams are set up: those who wait still stand before the rest."""
        if _EVERY_QUEUE not in self.stopped:
            return self._replace(barriers=())
        known = {name for name, _ in self.barriers}
        waits = [each.job_id for each in decisions if each.holds_up and each.job_id not in known]
        found = sorted((name in self.page, name) for name in waits)
        added = tuple((name, self.began if is_behind else after_heads) for is_behind, name in found)
        return self._replace(barriers=(*self.barriers, *added))

    def back_to_whom_it_passed(self, decisions: Iterable[AdmissionDecision]) -> "_Turn | None":
        """Return the turn as it goes back to the first job that waits no more; None where all of them still wait.

        The jobs behind that one stood in its shadow, so they come before those of this page.
        """
        waits = {each.job_id for each in decisions if each.action in (Action.WAIT, Action.BEHIND)}
        for index, (name, cursor) in enumerate(self.barriers):
            if name not in waits:
                stopped = {**self.stopped, _EVERY_QUEUE: cursor}
                return self._replace(stopped=stopped, barriers=self.barriers[:index])
        return None

    def note(self, ledger: Ledger) -> None:
        """Let the next pass go on from there. Idempotent: yes; where another was quicker, from where that stopped."""
        barriers = {"barriers": [list(each) for each in self.barriers]} if self.barriers else {}
        doc = {"cursors": dict(self.stopped), **barriers}
        if (self.row.doc or {"cursors": {}}) != doc:
            with contextlib.suppress(Conflict):
                ledger.commit(Put(Row(self.row.key, doc, self.row.version)))


class _Look(NamedTuple):
    """What a pass read, with the versions its writes depend on."""

    tree: Row
    jobs: Mapping[str, tuple[Job, int]]
    """By id: the job and its row's version."""
    setup: SetUp = SetUp()
    released: read_charges.Charges = read_charges.Charges()
    """The charges as they were read, with those that waiting jobs released."""
    outdated: tuple[Row, ...] = ()
    """Released charges that nobody needs any more."""
    rooms: tuple[Room, ...] = ()
    charges: tuple[Charge, ...] = ()
    holders: Mapping[str, tuple[Job, int]] = {}
    """Jobs that hold a charge, where teams share the fleet. Each is asked to stop only as it was read here."""
    stopping: frozenset[str] = frozenset()
    """Jobs whose attempts were asked to stop."""
    spent: Mapping[tuple[str, str], Spent] = {}
    used: Mapping[str, Mapping[str, float]] = {}
    """Of teams whose queues go by use: by submitter, what is left of what it used."""
    at_risk: Mapping[str, float] = {}
    """By job that holds a charge, in accelerator-seconds."""
    cursors: Mapping[str, str] = {}
    """Where a queue goes on: by team."""
    after_heads: Mapping[str, str] = {}
    """The same where only the heads were read."""
    turn: "_Turn | None" = None
    of_kueue: Mapping[tuple[str, str], str] = {}
    """(cluster, namespace) in which Kueue admits → what says so."""
    rented: rentals.Rented = rentals.Rented()
    elastic: Mapping[str, tuple[Job, int]] = {}
    """Those of several sizes that hold nodes or are changing size."""
    short: tuple[serving.Short, ...] = ()
    """Serving workloads of whose replicas some wait."""
    covered: Mapping[str, int] = {}
    """By such a workload, the replicas that rented nodes will take."""
    demands: tuple[Request, ...] = ()
    """What the other replicas wait for."""
    all_rooms: tuple[Room, ...] = ()
    """`rooms`, with what is kept for those."""
    unreadable: Mapping[str, EvenkeelError] = {}
    """Clusters whose nodes, pods and Jobs could not be read, each with the error."""
    aside: frozenset[str] = frozenset()
    """Jobs whose admission the ledger refused in this cycle: nothing is decided about them."""

    @property
    def memory(self) -> scheduler_state.Memory:
        """What passes remember, as far as it still matters."""
        return scheduler_state.Memory.model_validate(self.tree.doc.get("memory") or {})

    def pending(self, policy: Policy, now: datetime) -> tuple[Request, ...]:
        """Return what the waiting jobs ask for that may start."""
        terms = policy.scheduling.elastic
        return tuple(
            start_size.patient(request_facts.request_of(self.rented.where_rented(job), policy, now), job.lost_at, terms)
            for job in self._asking()
            if (job.cluster, job.namespace) not in self.of_kueue and not self._is_unreadable(job)
        )

    def handed_over(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers where Kueue admits: each goes to the LocalQueue of its team."""
        jobs = sorted(self._asking(), key=lambda job: Request.of(job).place_in_queue)
        return tuple(hand_over(Request.of(job), self.setup.local_queue_of(job.spec.team), now) for job in jobs)

    def beside_kueue(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to those that may not, since Kueue admits where they are to run."""
        return tuple(
            beside_kueue(Request.of(job), job.namespace, self.of_kueue[job.cluster, job.namespace], now)
            for job in self._asking()
            if (job.cluster, job.namespace) in self.of_kueue and not self._is_unreadable(job)
        )

    def on_unreadable_clusters(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to the jobs that are to run where nothing could be read."""
        return tuple(
            on_unreadable_cluster(Request.of(self.rented.where_rented(job)), now)
            for job in self._asking()
            if self._is_unreadable(job)
        )

    def misplaced(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to those that may not start, since their namespace is another team's."""
        owners = ((job, self._other_owner(job)) for job, _ in self.jobs.values())
        return tuple(
            in_anothers_namespace(Request.of(job), job.namespace, owner, now) for job, owner in owners if owner
        )

    def _is_unreadable(self, job: Job) -> bool:
        return self.rented.where_rented(job).cluster in self.unreadable

    def _asking(self) -> Iterator[Job]:
        """Yield the waiting jobs that rules are asked about."""
        for job, _ in self.jobs.values():
            if job.job_id not in self.aside and not self._other_owner(job):
                yield job

    def _other_owner(self, job: Job) -> str:
        """Return the team whose own a job's namespace is, where that is not the job's team; else an empty name."""
        owner = self.setup.namespaces.get(job.namespace, "")
        return owner if owner != job.spec.team else ""


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
    admission: Admission = Admission.EVENKEEL,
) -> Outcome:
    """Run one pass. In any mode but `act` the same decisions are recorded, and nothing is admitted.

    Idempotent: yes, every admission is conditional on the tree's and the job's version; concurrent passes are safe.
    """
    cycle = Source(kind=SourceKind.SCHEDULING_CYCLE)
    results = heartbeats.Results()
    try:
        outcome = _run(
            ledger,
            cluster,
            provider,
            workflows,
            ids,
            telemetry,
            clusters=clusters,
            policy=policy,
            mode=mode,
            now=now,
            admission=admission,
            results=results,
        )
    except EvenkeelError as error:
        results.failed(cycle, error)
        heartbeats.beat(ledger, telemetry, WRITER, now, results)
        raise
    if outcome.is_complete:
        results.answered(cycle)
    else:
        results.failed(cycle, "The queue changed during every try.")
    heartbeats.beat(ledger, telemetry, WRITER, now, results)
    return outcome


def _run(
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
    admission: Admission,
    results: heartbeats.Results,
) -> Outcome:
    admitted: list[str] = []
    aside: set[str] = set()
    for _ in range(_ROUNDS):
        try:
            if admission is Admission.KUEUE:
                look = _load_pending(ledger, policy)._replace(aside=frozenset(aside))
                decisions = (*look.misplaced(now), *look.handed_over(now))
                placed: rentals.Places = {}
                resizes = resize_facts.ResizePlan()
                spikes: tuple[rent_for_serving.Spike, ...] = ()
            else:
                look = _load(ledger, cluster, provider, clusters, policy, now)._replace(aside=frozenset(aside))
                for name, error in look.unreadable.items():
                    results.failed(Source(kind=SourceKind.KUBERNETES_LIST, target=name), error)
                look, weighed = _decide(look, ledger, policy, now)
                barred = (*look.misplaced(now), *look.on_unreadable_clusters(now), *look.beside_kueue(now))
                decisions = (*barred, *weighed)
                resizes = _resizes(look, decisions, policy, now)
                spikes = _spikes(look, resizes, ledger, policy, now)
                placed = _places(look, decisions, spikes, ledger, policy, now)
            refused = _carry_out(
                decisions,
                placed,
                resizes,
                spikes,
                look,
                admitted,
                ledger,
                workflows,
                ids,
                telemetry,
                policy=policy,
                mode=mode,
                now=now,
            )
        except Conflict:
            continue  # somebody was first: look again
        if refused:
            aside |= refused
            continue  # others may have what was decided for these jobs
        read_charges.delete(look.outdated, ledger)
        if look.turn is not None:
            look.turn.note(ledger)
        waiting = len(decisions) - len([one for one in decisions if one.action is Action.ADMIT])
        if not waiting and len(decisions) >= policy.scheduling.heads_per_pass:
            continue  # the whole head of the queue is in: look at what came after it
        if look.unreadable.keys() >= set(clusters):
            raise look.unreadable[clusters[0]]  # the jobs say why they wait; the request for this cycle is repeated
        return Outcome(admitted=tuple(admitted), waiting=waiting)
    telemetry.warning("A pass ended before the queue's head stood still; the next one goes on", rounds=_ROUNDS)
    return Outcome(admitted=tuple(admitted), is_complete=False)


# ---------------------------------------------------------------- load


def _load_pending(ledger: Ledger, policy: Policy) -> _Look:
    """Read who waits, and nothing else: where Kueue admits, nobody else's quota and no machine is weighed here."""
    tree = ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    setup = read_setup.run(ledger).setup
    queued = _queued(ledger, tree, setup, policy.scheduling.heads_per_pass)
    return _with_jobs(
        _Look(tree, {}, setup, cursors=queued.cursors, after_heads=queued.cursors, turn=queued.turn), queued, ledger
    )


def _load(
    ledger: Ledger, cluster: Cluster, provider: Provider, clusters: Sequence[str], policy: Policy, now: datetime
) -> _Look:
    tree = ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    setup = read_setup.run(ledger).setup
    queued = _queued(ledger, tree, setup, policy.scheduling.heads_per_pass)
    # The order matters. A rental that ends between two reads is counted twice at worst, never not at all; and so is a
    # pod that is created. Jobs come after the charges: what an attempt gave back is seen with the job that had it.
    rented = rentals.load(ledger)
    sized = scheduler_state.Memory.model_validate(tree.doc.get("memory") or {}).elastic
    look = _with_jobs(
        _Look(tree, {}, setup, cursors=queued.cursors, after_heads=queued.cursors, turn=queued.turn),
        queued,
        ledger,
        sized,
    )
    jobs, charges, elastic = dict(look.jobs), look.charges, look.elastic
    is_at_rest = not jobs and not _drained(setup) and not rented.rentals and not sized.is_in_use
    is_at_rest = is_at_rest and not any(each.rents_from for each in policy.scheduling.serving)
    if is_at_rest and not policy.scheduling.reservations:
        return look
    serves = frozenset(each.cluster for each in policy.scheduling.serving)
    seen, unreadable = _read_clusters(cluster, provider, clusters, serves)
    listed = [(name, each) for name, facts in seen.items() for each in facts.workloads]
    workloads = [(attempt.cluster, each) for attempt, each in attempt_rows.owned(ledger, listed)]
    in_use = {(name, node): count for name, facts in seen.items() for node, count in facts.in_use.items()}
    seen_nodes = [node for name in clusters if name in seen for node in seen[name].nodes]
    provider_nodes = seen[clusters[0]].provider_nodes if clusters[0] in seen else ()
    unhealthy = unhealthy_nodes.among(seen_nodes, ledger, policy, now)
    rooms = rooms_of(join_nodes(seen_nodes, provider_nodes, clusters[0]), in_use, charges, workloads, unhealthy)
    rooms = request_facts.with_ends(rented.rooms(rooms, jobs, policy.burst.pools), policy)
    of_kueue = {(name, each): by for name, facts in seen.items() for each, by in facts.of_kueue.items()}
    elsewhere = {charge.job_id for charge in charges if charge.cluster in unreadable}
    elastic = {name: each for name, each in elastic.items() if name not in elsewhere}
    look = look._replace(rooms=rooms, of_kueue=of_kueue, rented=rented, elastic=elastic, unreadable=unreadable)
    pods = {name: facts.pods for name, facts in seen.items() if name in serves}
    look = _beside_serving(look, pods, _readable(policy, look).scheduling, now)
    if not setup.has_teams:
        return look
    holders = _read(ledger, (rows.job_key(charge.job_id) for charge in charges))
    spent = read_budgets.spent(setup, ledger, rented.rentals, now)
    left = left_by_team(setup, spent, charges, rented.rentals, policy.economy, now) if policy.burst.pools else {}
    return look._replace(
        charges=(*(_as_ranked(charge, holders) for charge in charges), *_kept_quota(look)),
        holders=holders,
        stopping=_stopping(look, holders),
        rented=rented._replace(budgets_left=left),
        spent=spent,
        used=read_use.run(setup, ledger, now),
        at_risk=_at_risk(charges, holders, policy, now) if setup.fleet.switches.spares_work else {},
    )


class _ClusterFacts(NamedTuple):
    """What was read of one cluster."""

    workloads: tuple[WorkloadSeen, ...]
    in_use: Mapping[str, int]
    nodes: tuple[KubernetesNode, ...]
    of_kueue: Mapping[str, str]
    provider_nodes: Sequence[ProviderNode]
    pods: Sequence[ForeignPod]


def _read_clusters(
    cluster: Cluster, provider: Provider, names: Sequence[str], serves: frozenset[str]
) -> tuple[dict[str, _ClusterFacts], dict[str, EvenkeelError]]:
    """Read each cluster by itself, and HyperPod's nodes with the first one. If one read fails, all of it is left out.

    Args:
        cluster: Kubernetes.
        provider: HyperPod, whose nodes join the first cluster.
        names: Every cluster of the fleet.
        serves: Those with serving workloads, whose pods are read, too.
    """
    seen: dict[str, _ClusterFacts] = {}
    unreadable: dict[str, EvenkeelError] = {}
    for name in names:
        try:
            seen[name] = _ClusterFacts(
                cluster.workloads(name),
                cluster.accelerators_in_use(name),
                cluster.nodes(name),
                cluster.kueue_namespaces(name),
                provider.nodes() if name == names[0] else (),
                cluster.pods(name) if name in serves else (),
            )
        except EvenkeelError as error:
            unreadable[name] = error
    return seen, unreadable


def _readable(policy: Policy, look: _Look) -> Policy:
    """Return the policy with the serving workloads of clusters that could be read."""
    serves = tuple(each for each in policy.scheduling.serving if each.cluster not in look.unreadable)
    return policy.but(scheduling=policy.scheduling.but(serving=serves)) if look.unreadable else policy


def _kept_quota(look: _Look) -> Iterator[Charge]:
    """Yield what interrupted jobs on unreadable clusters released: it stays theirs until those can be read.

    A preempted job is no such job: what it released was taken for another.
    """
    for charge, _ in look.released.released:
        job = look.jobs[charge.job_id][0] if charge.job_id in look.jobs else None
        if job is None or charge.cluster not in look.unreadable or job.current_attempt != charge.attempt:
            continue
        if not job.is_preempted:
            yield charge


def _beside_serving(
    look: _Look, pods: Mapping[str, Sequence[ForeignPod]], policy: SchedulingPolicy, now: datetime
) -> _Look:
    """Keep for the replicas of serving workloads the nodes that they are about to take."""
    short = serving.short_of(policy.serving, pods)
    classes = look.setup.fleet.priority_classes
    # All of them take what comes free, those too for whom a node is on its way.
    kept = serving_demand.kept_for(serving_demand.demands_of(short, look.rooms, classes, now), look.rooms, policy)
    covered = rent_for_serving.covered(policy.serving, look.rented, pods, look.rooms)
    demands = serving_demand.demands_of(short, look.rooms, classes, now, covered)
    return look._replace(rooms=kept, all_rooms=look.rooms, short=short, covered=covered, demands=demands)


class _Queued(NamedTuple):
    """Where jobs that wait are to be found. The index may lag behind, so each is read from its own row afterwards."""

    keys: tuple[Key, ...]
    cursors: dict[str, str]
    """By team whose queue is longer than a page: where it goes on."""
    turn: _Turn | None


def _queued(ledger: Ledger, tree: Row, setup: SetUp, heads: int) -> _Queued:
    """Return the first jobs of each queue, of each where it goes on, and how far those behind were read in turn."""
    state = f"JOB#{JobState.PENDING}"
    # What was submitted before there were teams stands first, and where all fit on a page there is nothing to ask for.
    first = ledger.by_state(Table.JOBS, state, limit=heads)
    found = [row.key for row in first.rows]
    cursors: dict[str, str] = {_EVERY_QUEUE: first.cursor} if first.cursor else {}
    for team in setup.by_name if first.cursor else ():
        page = ledger.by_state(Table.JOBS, state, prefix=rows.queue_prefix(team), limit=heads)
        found += [row.key for row in page.rows]
        if page.cursor:
            cursors[team] = page.cursor
    behind, turn = _in_turn(ledger, setup, cursors, heads) if cursors else ([], None)
    # Who waits for its evictions stays the head of its queue, wherever it stands.
    sticky = scheduler_state.Memory.model_validate(tree.doc.get("memory") or {}).sticky.values() if cursors else ()
    barriers = [name for name, _ in turn.barriers] if turn else ()
    return _Queued((*map(rows.job_key, (*sticky, *barriers)), *found, *behind), cursors, turn)


def _with_jobs(look: _Look, queued: _Queued, ledger: Ledger, sized: scheduler_state.ElasticMemory = _NO_SIZES) -> _Look:
    """Return the look with the charges, and with the jobs that wait and those of several sizes, read after them.

    An interrupted job waits wherever the index lists it, or does not list it yet: its released charge names it.

    Raises:
        Conflict: an attempt is being settled this instant.
    """
    charges = read_charges.run(ledger)
    elastic = resize_jobs.load(ledger, charges.held, sized)
    read = {**_read(ledger, (*map(rows.job_key, charges.owners), *queued.keys)), **elastic}
    charges = charges.agreed(read)
    return look._replace(
        jobs={name: each for name, each in read.items() if each[0].state is JobState.PENDING},
        cursors=queued.cursors,
        after_heads=queued.cursors,
        turn=queued.turn,
        elastic=elastic,
        charges=charges.held,
        released=charges,
        outdated=charges.outdated(read),
    )


def _in_turn(ledger: Ledger, setup: SetUp, cursors: Mapping[str, str], heads: int) -> tuple[list[Key], _Turn]:
    """Read on in each long queue from where the pass before stopped; a strict one lets nobody pass its head anyway."""
    state = f"JOB#{JobState.PENDING}"
    row = ledger.get(rows.turn_key()) or Row(rows.turn_key(), {})
    before: dict[str, str] = row.doc.get("cursors", {})
    found: list[Key] = []
    stopped: dict[str, str] = {}
    turn = _Turn(row, stopped)
    for team, after_heads in cursors.items():
        if _is_strict(team, setup):
            continue
        cursor = before.get(team, after_heads)
        page = ledger.by_state(Table.JOBS, state, prefix=_prefix(team), limit=heads * _TURN_PAGES, cursor=cursor)
        # Each team's queue is read by itself.
        found += [each.key for each in page.rows if team or each.doc.get("queue", "") not in setup.by_name]
        if page.cursor:
            stopped[team] = page.cursor
        if team == _EVERY_QUEUE and not setup.has_teams:
            barriers = tuple((str(name), str(at)) for name, at in row.doc.get("barriers", ()))
            turn = turn._replace(
                page=frozenset(str(each.doc["jobId"]) for each in page.rows), began=cursor, barriers=barriers
            )
    return found, turn


def _prefix(team: str) -> str:
    return "" if team == _EVERY_QUEUE else rows.queue_prefix(team)


def _is_strict(team: str, setup: SetUp) -> bool:
    return team != _EVERY_QUEUE and setup.by_name[team].queue.strategy is QueueingStrategy.STRICT


def _read(ledger: Ledger, keys: Iterable[Key]) -> dict[str, tuple[Job, int]]:
    found = get_all(ledger, keys).values()
    jobs = ((rows.read(row, Job), row.version) for row in found)
    return {job.job_id: (job, version) for job, version in jobs}


def _as_ranked(charge: Charge, holders: Mapping[str, tuple[Job, int]]) -> Charge:
    """Return a charge with what its job is worth by now: somebody may have ranked it anew since it was admitted."""
    holder = holders.get(charge.job_id)
    return charge.but(priority=holder[0].priority) if holder else charge


def _stopping(look: _Look, holders: Mapping[str, tuple[Job, int]]) -> frozenset[str]:
    """Return the jobs that were asked to stop, by whomever, and hold their charge still."""
    asked = {name for name, (job, _) in holders.items() if job.stop_of(job.current_attempt)}
    return frozenset((asked | look.memory.stopping.keys()) & {charge.job_id for charge in look.charges})


def _at_risk(
    charges: Iterable[Charge], holders: Mapping[str, tuple[Job, int]], policy: Policy, now: datetime
) -> dict[str, float]:
    """Return what each holder would lose of its work, as far as the tables know: nobody looks at its checkpoints."""
    return {
        charge.job_id: round(
            charge.accelerators
            * lost_seconds(charge, holders[charge.job_id][0], policy.economy.expected_checkpoint_seconds, now)
        )
        for charge in charges
        if charge.admitted_at and charge.job_id in holders
    }


def _drained(setup: SetUp) -> frozenset[str]:
    """Return the teams whose jobs are all to stop."""
    return frozenset(team.name for team in setup.teams if team.queue.stop is StopPolicy.HOLD_AND_DRAIN)


# ---------------------------------------------------------------- decide


def _decide(look: _Look, ledger: Ledger, policy: Policy, now: datetime) -> tuple[_Look, tuple[AdmissionDecision, ...]]:
    """Decide about the heads; where none of a queue can start or is in the way, about those behind them, too."""
    pending = look.pending(policy, now)
    decisions = _weigh(look, pending, policy, now)
    more = _more(look, decisions, ledger, policy.scheduling.heads_per_pass * _MOST_PAGES)
    if more is not None:
        look, pending = more, more.pending(policy, now)
        decisions = _weigh(look, pending, policy, now)
    turn = look.turn if not look.setup.has_teams else None
    if turn is not None:
        back = turn.back_to_whom_it_passed(decisions)
        if back is not None:
            jobs = {name: each for name, each in look.jobs.items() if name not in back.page}
            look = look._replace(jobs=jobs, turn=back)
            pending = look.pending(policy, now)
            decisions = _weigh(look, pending, policy, now)
        elif _EVERY_QUEUE in look.after_heads:
            look = look._replace(turn=turn.after(decisions, look.after_heads[_EVERY_QUEUE]))
    fitted = start_size.fit(
        pending, decisions, lambda asked: _weigh(look, asked, policy, now), now, look.rented.serving
    )
    return look, fitted


def _weigh(look: _Look, pending: tuple[Request, ...], policy: Policy, now: datetime) -> tuple[AdmissionDecision, ...]:
    """Decide about all that wait, by the rules of this fleet."""
    if not look.setup.has_teams:
        return admit(Snapshot(rooms=look.rooms, pending=pending), policy.scheduling, now)
    snapshot = team_cycle.Snapshot(
        look.setup,
        look.rooms,
        pending,
        look.charges,
        look.stopping,
        look.memory,
        look.spent,
        {name: job.reason_of_queue for name, (job, _) in look.jobs.items()},
        look.used,
        look.at_risk,
        frozenset(look.unreadable),
    )
    return team_cycle.share(snapshot, policy.scheduling, policy.economy, now)


_MOVES = frozenset({Action.ADMIT, Action.PREEMPT})
"""Where no teams are set up, jobs are read in order: whoever waits holds up those behind it for its machines alone."""
_IN_NOBODYS_WAY = frozenset(
    {Action.NO_QUOTA, Action.WAIT, Action.ALIKE, Action.HELD, Action.BACK_OFF, Action.NEVER_FITS}
)


def _more(look: _Look, decisions: Iterable[AdmissionDecision], ledger: Ledger, limit: int) -> _Look | None:
    """Read on in each queue whose heads are all parked; None where none is, or none has more."""
    kinds: dict[str, set[Action]] = {}
    for decided in decisions:
        team = look.jobs[decided.job_id][0].spec.team if look.setup.has_teams else _EVERY_QUEUE
        kinds.setdefault(team, set()).add(decided.action)
    jobs, cursors, turn = dict(look.jobs), dict(look.cursors), look.turn
    held = frozenset(charge.job_id for charge in look.charges)
    for team, cursor in look.cursors.items():
        if team == _EVERY_QUEUE and look.setup.has_teams:
            continue  # each team's queue is read by itself
        found_kinds = kinds.get(team, set())
        goes_on = not found_kinds & _MOVES if team == _EVERY_QUEUE else not found_kinds - _IN_NOBODYS_WAY
        if _is_strict(team, look.setup) or not goes_on:
            continue
        state = f"JOB#{JobState.PENDING}"
        page = ledger.by_state(Table.JOBS, state, prefix=_prefix(team), limit=limit, cursor=cursor)
        found = _read(ledger, (row.key for row in page.rows))
        # A job whose charge the look still holds was settled since: the next cycle weighs it.
        jobs |= {name: each for name, each in found.items() if each[0].state is JobState.PENDING and name not in held}
        if turn is not None and team == _EVERY_QUEUE:
            turn = turn._replace(page=turn.page - found.keys())  # these were read in order, without a gap
        del cursors[team]
        if page.cursor:
            cursors[team] = page.cursor
    return None if cursors == look.cursors else look._replace(jobs=jobs, cursors=cursors, turn=turn)


def _resizes(
    look: _Look, decisions: tuple[AdmissionDecision, ...], policy: Policy, now: datetime
) -> resize_facts.ResizePlan:
    """Return which running jobs are to change size, for those who wait or to use what is idle."""

    def weigh(fleet: resize_facts.Fleet) -> tuple[AdmissionDecision, ...]:
        other = look._replace(rooms=fleet.rooms, charges=fleet.charges, stopping=fleet.stopping)
        return _weigh(other, fleet.pending, policy, now)

    facts = resize_facts.Facts(
        fleet=resize_facts.Fleet(look.all_rooms, look.charges, look.stopping, look.pending(policy, now)),
        decisions=decisions,
        jobs={name: job for name, (job, _) in look.elastic.items()},
        leaving=frozenset(look.memory.stopping),
        memory=look.memory.elastic,
        setup=look.setup,
        policy=policy.scheduling,
        now=now,
        demands=look.demands,
        asked_by=lambda job: request_facts.request_of(job, policy, now),
    )
    return resize_plan.plan(facts, weigh)


def _spikes(
    look: _Look, resizes: resize_facts.ResizePlan, ledger: Ledger, policy: Policy, now: datetime
) -> tuple[rent_for_serving.Spike, ...]:
    """Return what is to be rented for replicas that find no node, though others shrink for them."""
    seen = rent_for_serving.Seen(look.short, look.covered, look.demands, resizes.helped)
    readable = _readable(policy, look)
    return rent_for_serving.weigh(seen, look.all_rooms, look.charges, look.rented, ledger, readable, now)


def _places(
    look: _Look,
    decisions: Sequence[AdmissionDecision],
    spikes: Sequence[rent_for_serving.Spike],
    ledger: Ledger,
    policy: Policy,
    now: datetime,
) -> rentals.Places:
    """Return where those should run that cannot start on what is there; what is rented for replicas comes first."""
    decide = _deciding(look, ledger, policy, now)
    rented, begun = rent_for_serving.beside(look.rented, spikes, policy)
    return rentals.weigh(decisions, look.jobs, look.rooms, look.charges, rented, ledger, decide, policy, now, begun)


def _deciding(look: _Look, ledger: Ledger, policy: Policy, now: datetime) -> rentals.Decide:
    """Return the rules of this pass, to be asked about other machines, jobs and charges."""

    def decide(
        rooms: tuple[Room, ...], jobs: rentals.Jobs, charges: tuple[Charge, ...]
    ) -> tuple[AdmissionDecision, ...]:
        other = look._replace(rooms=rooms, jobs=jobs, charges=charges, cursors={}, turn=None, rented=rentals.Rented())
        return _decide(other, ledger, policy, now)[1]

    return decide


# ---------------------------------------------------------------- act and record


class _Tree:
    """The tree as this pass last wrote it: each commit is held to its version."""

    def __init__(self, look: _Look, now: datetime) -> None:
        self._row = look.tree
        self.memory = look.memory.pruned(look.charges, look.setup, now) if look.setup.has_teams else look.memory

    def put(self, memory: scheduler_state.Memory) -> Put:
        """Return the write that raises it."""
        told = memory.to_row()
        doc = {name: value for name, value in self._row.doc.items() if name != "memory"}
        return Put(Row(self._row.key, {**doc, "memory": told} if told else doc, self._row.version))

    def raised(self, memory: scheduler_state.Memory) -> None:
        """Note that it was written."""
        written = self.put(memory).row
        self._row, self.memory = Row(written.key, written.doc, written.version + 1), memory


def _carry_out(
    decisions: Sequence[AdmissionDecision],
    placed: rentals.Places,
    resizes: resize_facts.ResizePlan,
    spikes: Sequence[rent_for_serving.Spike],
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
) -> frozenset[str]:
    """Commit what was decided. Returns the jobs whose admission the ledger refused; then nothing else was committed."""
    tree = _Tree(look, now)
    desk = Desk(ledger, ids, telemetry, policy, mode, now)
    # Who starts comes first: what is said of the others, and who has to stop, counts on it.
    refused_jobs = _admit(decisions, look, tree, admitted, workflows, desk)
    if refused_jobs:
        return refused_jobs
    rent_for_serving.carry_out(spikes, tree, workflows, desk)
    reasons = _Reasons(ledger, telemetry)
    for decided in decisions:
        job, version = look.jobs[decided.job_id]
        allowed = launch_mode(mode, is_planned=job.is_planned(job.current_attempt + 1))
        if decided.action is Action.PREEMPT and allowed is Mode.ACT and decided.job_id not in resizes.room:
            try:
                asked = _commit_preemption(
                    ledger, decided, look, tree, ids, telemetry, policy=policy, mode=allowed, now=now
                )
            except Refused as refused:
                _set_aside(decided.job_id, refused, ledger, telemetry, now)
                continue
            if not asked:
                reasons.add(_reason(job, version, decided, look.setup, ids, policy, allowed, now), job.job_id)
        elif decided.job_id in look.rented.serving and decided.action is not Action.ADMIT:
            continue  # the job says already what is rented for it
        elif rentals.is_to_rent(placed.get(decided.job_id)) and allowed is Mode.ACT and not resizes.room:
            rental, writes, token = rentals.begin(
                _in_queue(job, look.setup), version, placed[decided.job_id], ids, policy, allowed, now
            )
            try:
                ledger.commit(tree.put(tree.memory), *writes, token=token)
            except Refused as refused:
                _set_aside(decided.job_id, refused, ledger, telemetry, now)
                continue
            tree.raised(tree.memory)
            telemetry.count("RentalsBegun")
            telemetry.info("Nodes are rented for a job", job_id=job.job_id, rental=rental.name, pool=rental.offer.pool)
            rentals.start(rental, workflows, telemetry)
        elif decided.action is not Action.ADMIT or allowed is not Mode.ACT:
            note = rentals.noted(job, placed.get(decided.job_id), ids, policy, allowed, now)
            reasons.add(_reason(job, version, decided, look.setup, ids, policy, allowed, now, *note), job.job_id)
    reasons.commit()
    resize_jobs.carry_out(resizes, {**look.holders, **look.elastic}, look.jobs, tree, desk)
    if mode is Mode.ACT:
        _send_home(decisions, look, tree, ledger, ids, telemetry, policy, now)
        _leave(look, tree, ledger, ids, telemetry, policy, now)
        _drain(look, tree, ledger, telemetry, now)
    return frozenset()


def _admit(
    decisions: Sequence[AdmissionDecision],
    look: _Look,
    tree: _Tree,
    admitted: list[str],
    workflows: Workflows,
    desk: Desk,
) -> frozenset[str]:
    """Create the attempts that were decided, and start them. Returns the jobs whose admission the ledger refused."""
    found: list[tuple[AdmissionDecision, Attempt, Mode]] = []
    for decided in decisions:
        job, _ = look.jobs[decided.job_id]
        allowed = launch_mode(desk.mode, is_planned=job.is_planned(job.current_attempt + 1))
        if decided.action is Action.ADMIT and allowed is Mode.ACT:
            attempt = _admission(job, decided, desk.ids.new("dec"), desk.now)
            rental = look.rented.serving.get(decided.job_id)
            if rental is not None and is_on(attempt, rental):
                attempt = attempt.but(is_rented=True)
            found.append((decided, attempt, allowed))
    attempts = {attempt.job_id: attempt for _, attempt, _ in found}
    refused_jobs: set[str] = set()

    def commit(some: Sequence[batches.Part]) -> None:
        _commit_admissions(desk.ledger, [attempts[part.subject] for part in some], some, look, tree)
        for attempt in (attempts[part.subject] for part in some):
            admitted.append(attempt.workload_name)
            desk.telemetry.count("JobsAdmitted")
            desk.telemetry.info("Job admitted", job_id=attempt.job_id, attempt=attempt.attempt, pool=attempt.pool)
            start_run(attempt, workflows, desk.telemetry)

    def set_aside(part: batches.Part, refused: Refused) -> None:
        refused_jobs.add(part.subject)
        _set_aside(part.subject, refused, desk.ledger, desk.telemetry, desk.now)

    parts = (_admission_part(each, look, desk.policy, desk.now) for each in found)
    for some in batches.cut(parts, besides=(tree.put(tree.memory),), besides_each=1):
        batches.commit_each(some, commit, set_aside)
    return frozenset(refused_jobs)


def _set_aside(job_id: str, refused: Refused, ledger: Ledger, telemetry: Telemetry, now: datetime) -> None:
    """Tell a job that the ledger refused what was decided about it, and try it again later. Idempotent: yes.

    Its own row may be what is refused. Then the log and the metric tell it, and every cycle finds it again.
    """
    batches.note_refusal(telemetry, job_id, refused)
    row = ledger.get(rows.job_key(job_id))
    if row is None:
        return
    job = rows.read(row, Job)
    if job.state is not JobState.PENDING:
        return
    text = f"The ledger refused to store this job's decision. Evenkeel tries again after {_ASIDE.seconds // 60} min."
    entry = TimelineEntry(at=now, kind="set aside", text=text, writer=WRITER)
    with contextlib.suppress(Conflict, Refused):
        ledger.commit(
            Put(rows.job_row(job.but(reason=text, placement=None, not_before=now + _ASIDE), row.version)),
            Put(rows.timeline_row(job_id, entry, "set-aside")),
        )


def _admission(job: Job, decided: AdmissionDecision, decision_id: str, now: datetime) -> Attempt:
    return Attempt(
        job_id=job.job_id,
        attempt=job.current_attempt + 1,
        state=AttemptState.STARTING,
        cluster=decided.facts.request.cluster,
        namespace=job.namespace,
        local_queue=decided.facts.local_queue,
        pool=decided.pool,
        instance_type=decided.instance_type,
        nodes=decided.nodes,
        node_names=decided.node_names,
        size=decided.facts.request.nodes,
        accelerators=decided.facts.request.nodes * job.spec.accelerators_per_node,
        team=job.spec.team,
        admitted_at=now,
        decision_id=decision_id,
    )


def _admission_part(
    admission: tuple[AdmissionDecision, Attempt, Mode], look: _Look, policy: Policy, now: datetime
) -> batches.Part:
    """Return what admits one job: its attempt with its charge, the record and the line of its timeline."""
    decided, attempt, mode = admission
    job, version = look.jobs[attempt.job_id]
    number = attempt.attempt
    started = _in_queue(job.at_size(attempt.ranks, now), look.setup).but(
        state=JobState.STARTING,
        reason=decided.reason,
        current_attempt=number,
        local_queue=attempt.local_queue,
        not_before=None,
        queued_at=None,
        # Who gave way has started again once Kueue has let it in.
        is_preempted=job.is_preempted and bool(attempt.local_queue),
        placement=None,
        goes_home=False,
        lost_at=None,
    )
    where = ", ".join(attempt.node_names[:4]) + (" and more" if len(attempt.node_names) > 4 else "")
    entry = TimelineEntry(
        at=now,
        kind="admitted",
        text=f"Attempt {number} goes to Kueue's LocalQueue {attempt.local_queue}."
        if attempt.local_queue
        else f"Attempt {number} admitted to {attempt.pool}: {where}.",
        decision_id=attempt.decision_id,
        writer=WRITER,
    )
    released = look.released.released_by(job)
    return batches.Part(
        job.job_id,
        (
            Put(rows.charge_row(attempt, job, decided.use)),
            Put(rows.job_row(started, version)),
            Put(rows.attempt_row(attempt, 0)),
            Put(rows.decision_row(_record(decided, attempt.decision_id, decided.reason, policy, mode, now))),
            Put(rows.timeline_row(job.job_id, entry, f"admitted-{number}")),
            *((Delete(released.key, released.version),) if released else ()),
        ),
    )


def _commit_admissions(
    ledger: Ledger, attempts: Sequence[Attempt], parts: Sequence[batches.Part], look: _Look, tree: _Tree
) -> None:
    """Create attempts: all of them or none, and only if nobody admitted anything since the look."""
    memory = tree.memory
    usage: Counter[str] = Counter()
    for attempt in attempts:
        job, _ = look.jobs[attempt.job_id]
        usage[attempt.team] += attempt.accelerators
        memory = memory.after_admission(attempt.team, job.job_id)
        memory = memory.but(elastic=memory.elastic.after_admission(job.job_id, is_elastic=job.spec.elastic is not None))
    sums = (Add(rows.usage_key(team), {"accelerators": count}) for team, count in usage.items())
    # Some of a refused batch are other writes, so they need another token.
    token = f"{attempts[0].decision_id}/{len(attempts)}"
    ledger.commit(tree.put(memory), *sums, *(write for part in parts for write in part.writes), token=token)
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
) -> bool:
    """Ask those to stop who have to, with the record of why; False where nobody is left to ask.

    Whoever was asked before is not asked again. Each is asked as it was read with the look: one that was ranked higher,
    suspended or settled since makes the commit fail, and the cycle decides again.

    More than fit into one commit are asked in several. After a crash between them the next pass finds the first ones
    on their way, takes them first, and asks the rest.
    """
    job, version = look.jobs[decided.job_id]
    fresh = {each.job_id: each.reason for each in decided.victims if each.job_id not in look.stopping}
    attempts = {charge.job_id: charge.attempt for charge in look.charges}
    found = look.holders
    names = [name for name in fresh if name in found and found[name][0].current_attempt == attempts.get(name)]
    if not names:
        return False
    why = {name: f"Preempted by {job.job_id} of team {job.spec.team} ({fresh[name]})." for name in names}
    parts = [batches.Part(name, _stop(*found[name], why[name], f"schedule_jobs/{job.job_id}", now)) for name in names]
    record = _record(decided, ids.new("dec"), decided.reason, policy, mode, now)
    waits = _in_queue(job, look.setup).but(reason=decided.reason)
    own: tuple[Write, ...] = (Put(rows.job_row(waits, version)), Put(rows.decision_row(record)))
    token = record.decision_id
    for some in batches.cut(parts, besides=(tree.put(tree.memory), *own)):
        memory = tree.memory.after_preemption(job.spec.team, job.job_id, [part.subject for part in some], now)
        ledger.commit(tree.put(memory), *(write for part in some for write in part.writes), *own, token=token)
        tree.raised(memory)
        own, token = (), ids.new("dec")
    telemetry.count("JobsPreempted", len(names))
    telemetry.info("Jobs asked to stop for another", job_id=job.job_id, victims=names)
    return True


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
            try:
                ledger.commit(tree.put(memory), *writes)
            except Refused as refused:
                batches.note_refusal(telemetry, name, refused)
                continue
            tree.raised(memory)
            telemetry.info("Job asked to stop, its queue is drained", job_id=name)


def _send_home(
    decisions: Sequence[AdmissionDecision],
    look: _Look,
    tree: _Tree,
    ledger: Ledger,
    ids: Ids,
    telemetry: Telemetry,
    policy: Policy,
    now: datetime,
) -> None:
    """Ask a job on rented nodes to go on where room is paid for. Idempotent: yes, it is asked once."""
    decide = _deciding(look, ledger, policy, now)
    there = tuple(each for each in look.rented.rentals if each.offer.cluster not in look.unreadable)
    rented = look.rented._replace(rentals=there)
    found = rentals.homeward(decisions, look.rooms, look.charges, rented, ledger, decide, ids, policy, Mode.ACT, now)
    if found is None:
        return
    memory = tree.memory
    if look.setup.has_teams:
        memory = memory.but(stopping={**memory.stopping, found.job_id: ""})
    try:
        ledger.commit(tree.put(memory), *found.writes, token=found.token)
    except Refused as refused:
        batches.note_refusal(telemetry, found.job_id, refused)
        return
    tree.raised(memory)
    telemetry.count("JobsSentHome")
    telemetry.info("Job asked to go home", job_id=found.job_id)


def _leave(
    look: _Look, tree: _Tree, ledger: Ledger, ids: Ids, telemetry: Telemetry, policy: Policy, now: datetime
) -> None:
    """Ask jobs to leave machines whose reservation ends. Idempotent: yes, whoever was asked is not asked again."""
    parts = leave_pools.due(look.charges, look.rooms, ledger, ids, policy, now)

    def commit(some: Sequence[batches.Part]) -> None:
        memory = tree.memory
        names = [part.subject for part in some]
        if look.setup.has_teams:
            memory = memory.but(stopping={**memory.stopping, **dict.fromkeys(names, "")})
        ledger.commit(tree.put(memory), *(write for part in some for write in part.writes))
        tree.raised(memory)
        telemetry.count("JobsLeavingPools", len(names))
        telemetry.info("Jobs asked to stop before a reservation ends", jobs=names)

    for some in batches.cut(parts, besides=(tree.put(tree.memory),)):
        batches.commit_each(some, commit, lambda part, refused: batches.note_refusal(telemetry, part.subject, refused))


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


class _Reasons:
    """What a pass says of those who wait: many in one commit, since each of them is a round trip."""

    def __init__(self, ledger: Ledger, telemetry: Telemetry) -> None:
        self._ledger = ledger
        self._telemetry = telemetry
        self._parts: list[batches.Part] = []

    def add(self, writes: tuple[Write, ...], job_id: str) -> None:
        """Say it with the others, now or with those that follow."""
        if writes:
            self._parts.append(batches.Part(job_id, writes))
        if len(self._parts) == _MOST_REASONS:
            self.commit()

    def commit(self) -> None:
        """Say what is not said yet. A reason that the ledger refuses is counted; the others are said."""
        for some in batches.cut(self._parts):
            batches.commit_each(
                some,
                lambda parts: self._ledger.commit(*(write for part in parts for write in part.writes)),
                lambda part, refused: batches.note_refusal(self._telemetry, part.subject, refused),
            )
        self._parts.clear()


def _reason(
    job: Job,
    version: int,
    decided: AdmissionDecision,
    setup: SetUp,
    ids: Ids,
    policy: Policy,
    mode: Mode,
    now: datetime,
    note: PlacementNote | None = None,
    records: tuple[Write, ...] = (),
) -> tuple[Write, ...]:
    """Return what says on the job why it waits: nothing where it says so already."""
    if decided.action is Action.BACK_OFF:
        return ()  # the job says already what failed
    reason = said_of(decided, mode)
    placed = _in_queue(job, setup).but(reason=f"{reason} {note.text}" if note else reason, placement=note)
    if placed == job:
        return ()
    said = (Put(rows.job_row(placed, version)), *records)
    if job.reason_of_queue == reason:
        return said
    return (*said, Put(rows.decision_row(_record(decided, ids.new("dec"), reason, policy, mode, now))))


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
