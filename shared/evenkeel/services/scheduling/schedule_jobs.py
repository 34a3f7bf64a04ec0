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
    rent_plan,
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
    delegate_to_kueue,
    hold_in_kueue_namespace,
    hold_in_other_teams_namespace,
    hold_on_unreadable_cluster,
    recorded_reason,
)
from evenkeel.domain.admission.fifo import AdmissionAuthority, QueueSnapshot, admit
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.capacity.node_capacity import NodeCapacity, node_capacity
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external import serving
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.charge import Charge, accelerators_taken
from evenkeel.domain.jobs.job import Job, JobState, PlacementNote, StopRequest
from evenkeel.domain.kueue.objects import QueueingStrategy, StopPolicy
from evenkeel.domain.nodes import KubernetesNode, ProviderNode, join_nodes
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.spending import Spent
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.recovery.modes import launch_mode
from evenkeel.domain.recovery.resume import lost_seconds
from evenkeel.domain.renting.book import RentalBook
from evenkeel.domain.renting.candidates import PlacementContext, jobs_to_place, nodes_to_rent, placement_facts
from evenkeel.domain.renting.migration import DepartureDecision, decide_departure
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision, place_in_queue_order
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Add,
    Conflict,
    Delete,
    EvenkeelError,
    Key,
    Ledger,
    Put,
    Refused,
    Row,
    Table,
    TransientError,
    WorkflowName,
    Write,
    get_all,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.rentals import rentals
from evenkeel.services.scheduling import drain_reservations, read_usage, resize_jobs
from evenkeel.services.storage import attempt_rows, batches, heartbeats, read_charges, read_setup, rows

WRITER = "schedule_jobs"
_MAX_RETRIES = 3
"""Looks that one pass takes before it leaves the rest to the next."""
_MAX_PAGES = 4
"""Pages of one team's queue that a pass reads besides, all at once, where nobody on the first can start."""
_PAGES_PER_CYCLE = 1
"""Pages of one team's queue that a pass reads besides, from where the pass before stopped: whoever stands behind any
number of parked jobs is looked at within so many passes as the queue has such pages."""
_MAX_REASONS = 12
"""In one commit, where `batches.cut` lets so many be."""
_RETRY_AFTER_REFUSAL = timedelta(hours=1)
"""How long a job is not tried again after the ledger refused to store what was decided about it."""


Placements = Mapping[str, PlacementDecision | str]
"""By job: where it should run, or why nothing is rented for it."""
_ALL_JOBS = ""
"""In the place of a team's name: the list of all waiting jobs. Where no teams are set up it is the one queue; else it
also holds jobs that were submitted before there were teams, and those of teams that were removed."""
_NO_ELASTIC_STATE = scheduler_state.ElasticState()


class Outcome(Value):
    """What a pass did."""

    admitted: tuple[str, ...] = ()
    """Names of the attempts' workflows."""
    waiting: int = 0
    """Jobs of the queue's head that stay pending."""
    is_complete: bool = True
    """False where others kept changing the queue under the pass; the next one goes on."""


class _QueueCursors(NamedTuple):
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

    def after(self, decisions: Iterable[AdmissionDecision], cursors_after_heads: str) -> "_QueueCursors":
        """Return how the next cycle goes on where no teams are set up: those who wait still stand before the rest."""
        if _ALL_JOBS not in self.stopped:
            return self._replace(barriers=())
        known = {name for name, _ in self.barriers}
        waits = [each.job_id for each in decisions if each.blocks_queue and each.job_id not in known]
        found = sorted((name in self.page, name) for name in waits)
        added = tuple((name, self.began if is_behind else cursors_after_heads) for is_behind, name in found)
        return self._replace(barriers=(*self.barriers, *added))

    def rewound_to_unblocked_job(self, decisions: Iterable[AdmissionDecision]) -> "_QueueCursors | None":
        """Return the turn as it goes back to the first job that waits no more; None where all of them still wait.

        The jobs behind that one stood in its shadow, so they come before those of this page.
        """
        waits = {each.job_id for each in decisions if each.action in (Action.WAIT, Action.BLOCKED)}
        for index, (name, cursor) in enumerate(self.barriers):
            if name not in waits:
                stopped = {**self.stopped, _ALL_JOBS: cursor}
                return self._replace(stopped=stopped, barriers=self.barriers[:index])
        return None

    def note(self, ledger: Ledger) -> None:
        """Let the next pass go on from there. Idempotent: yes; where another was quicker, from where that stopped."""
        barriers = {"barriers": [list(each) for each in self.barriers]} if self.barriers else {}
        doc = {"cursors": dict(self.stopped), **barriers}
        if (self.row.doc or {"cursors": {}}) != doc:
            with contextlib.suppress(Conflict):
                ledger.commit(Put(Row(self.row.key, doc, self.row.version)))


class _CycleSnapshot(NamedTuple):
    """What a pass read, with the versions its writes depend on."""

    tree: Row
    jobs: Mapping[str, tuple[Job, int]]
    """By id: the job and its row's version."""
    setup: TeamSetup = TeamSetup()
    released: read_charges.Charges = read_charges.Charges()
    """The charges as they were read, with those that waiting jobs released."""
    outdated: tuple[Row, ...] = ()
    """Released charges that nobody needs any more."""
    capacities: tuple[NodeCapacity, ...] = ()
    charges: tuple[Charge, ...] = ()
    holders: Mapping[str, tuple[Job, int]] = {}
    """Jobs that hold a charge, where teams share the fleet. Each is asked to stop only as it was read here."""
    stopping: frozenset[str] = frozenset()
    """Jobs whose attempts were asked to stop."""
    spent: Mapping[tuple[str, str], Spent] = {}
    used: Mapping[str, Mapping[str, float]] = {}
    """Of teams whose queues go by use: by submitter, what is left of what it used."""
    work_at_risk_by_job: Mapping[str, float] = {}
    """By job that holds a charge, in accelerator-seconds."""
    cursors: Mapping[str, str] = {}
    """Where a queue goes on: by team."""
    cursors_after_heads: Mapping[str, str] = {}
    """The same where only the heads were read."""
    queue_cursors: "_QueueCursors | None" = None
    of_kueue: Mapping[tuple[str, str], str] = {}
    """(cluster, namespace) in which Kueue admits → what says so."""
    rented: RentalBook = RentalBook()
    elastic: Mapping[str, tuple[Job, int]] = {}
    """Those of several sizes that hold nodes or are changing size."""
    short: tuple[serving.ReplicaShortfall, ...] = ()
    """Serving workloads of whose replicas some wait."""
    satisfied_replicas: Mapping[str, int] = {}
    """By such a workload, the replicas that rented nodes will take."""
    demands: tuple[AdmissionRequest, ...] = ()
    """What the other replicas wait for."""
    all_capacities: tuple[NodeCapacity, ...] = ()
    """`rooms`, with what is kept for those."""
    unreadable: Mapping[str, EvenkeelError] = {}
    """Clusters whose nodes, pods and Jobs could not be read, each with the error."""
    deferred_jobs: frozenset[str] = frozenset()
    """Jobs whose admission the ledger refused in this cycle: nothing is decided about them."""

    @property
    def memory(self) -> scheduler_state.SchedulerState:
        """What passes remember, as far as it still matters."""
        return scheduler_state.SchedulerState.model_validate(self.tree.doc.get("memory") or {})

    def pending(self, policy: Policy, now: datetime) -> tuple[AdmissionRequest, ...]:
        """Return what the waiting jobs ask for that may start."""
        terms = policy.scheduling.elastic
        return tuple(
            start_size.with_spare_wait(
                request_facts.admission_request(self.rented.in_rented_cluster(job), policy, now), job.lost_at, terms
            )
            for job in self._eligible_jobs()
            if (job.cluster, job.namespace) not in self.of_kueue and not self._is_unreadable(job)
        )

    def handed_over(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers where Kueue admits: each goes to the LocalQueue of its team."""
        jobs = sorted(self._eligible_jobs(), key=lambda job: AdmissionRequest.of(job).queue_order_key)
        return tuple(
            delegate_to_kueue(AdmissionRequest.of(job), self.setup.local_queue_of(job.spec.team), now) for job in jobs
        )

    def hold_in_kueue_namespace(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to those that may not, since Kueue admits where they are to run."""
        return tuple(
            hold_in_kueue_namespace(
                AdmissionRequest.of(job), job.namespace, self.of_kueue[job.cluster, job.namespace], now
            )
            for job in self._eligible_jobs()
            if (job.cluster, job.namespace) in self.of_kueue and not self._is_unreadable(job)
        )

    def on_unreadable_clusters(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to the jobs that are to run where nothing could be read."""
        return tuple(
            hold_on_unreadable_cluster(AdmissionRequest.of(self.rented.in_rented_cluster(job)), now)
            for job in self._eligible_jobs()
            if self._is_unreadable(job)
        )

    def in_other_teams_namespaces(self, now: datetime) -> tuple[AdmissionDecision, ...]:
        """Return the answers to those that may not start, since their namespace is another team's."""
        owners = ((job, self._namespace_owner(job)) for job, _ in self.jobs.values())
        return tuple(
            hold_in_other_teams_namespace(AdmissionRequest.of(job), job.namespace, owner, now)
            for job, owner in owners
            if owner
        )

    def _is_unreadable(self, job: Job) -> bool:
        return self.rented.in_rented_cluster(job).cluster in self.unreadable

    def _eligible_jobs(self) -> Iterator[Job]:
        """Yield the waiting jobs that rules are asked about."""
        for job, _ in self.jobs.values():
            if job.job_id not in self.deferred_jobs and not self._namespace_owner(job):
                yield job

    def _namespace_owner(self, job: Job) -> str:
        """Return the team whose own a job's namespace is, where that is not the job's team; else an empty name."""
        owner = self.setup.namespaces.get(job.namespace, "")
        return owner if owner != job.spec.team else ""


def run(context: Context) -> Outcome:
    """Run one pass. In any mode but `act` the same decisions are recorded, and nothing is admitted.

    Idempotent: yes, every admission is conditional on the tree's and the job's version; concurrent passes are safe.
    """
    cycle = Source(kind=SourceKind.SCHEDULING_CYCLE)
    results = heartbeats.SourceResults()
    try:
        outcome = _run(context, results=results)
    except EvenkeelError as error:
        results.failed(cycle, error)
        heartbeats.record_heartbeat(context, WRITER, results)
        raise
    if outcome.is_complete:
        results.answered(cycle)
    else:
        results.failed(cycle, "The queue changed on every attempt.")
    heartbeats.record_heartbeat(context, WRITER, results)
    return outcome


def _run(context: Context, *, results: heartbeats.SourceResults) -> Outcome:
    admitted: list[str] = []
    deferred_jobs: set[str] = set()
    for _ in range(_MAX_RETRIES):
        try:
            if context.site.admission is AdmissionAuthority.KUEUE:
                cycle = _load_pending(context)._replace(deferred_jobs=frozenset(deferred_jobs))
                decisions = (*cycle.in_other_teams_namespaces(context.now), *cycle.handed_over(context.now))
                placed: Placements = {}
                resizes = resize_facts.ResizePlan()
                serving_rental_plans: tuple[serving_demand.ServingRentalPlan, ...] = ()
            else:
                cycle = _load(context)._replace(deferred_jobs=frozenset(deferred_jobs))
                for name, error in cycle.unreadable.items():
                    results.failed(Source(kind=SourceKind.KUBERNETES_LIST, target=name), error)
                cycle, weighed = _decide(cycle, context)
                barred = (
                    *cycle.in_other_teams_namespaces(context.now),
                    *cycle.on_unreadable_clusters(context.now),
                    *cycle.hold_in_kueue_namespace(context.now),
                )
                decisions = (*barred, *weighed)
                resizes = _plan_resizes(cycle, decisions, context.policy, context.now)
                serving_rental_plans = _plan_serving_rentals(cycle, resizes, context)
                placed = _plan_placements(cycle, decisions, serving_rental_plans, context)
            refused = _commit_all(decisions, placed, resizes, serving_rental_plans, cycle, admitted, context)
        except Conflict:
            continue  # somebody was first: look again
        if refused:
            deferred_jobs |= refused
            continue  # others may have what was decided for these jobs
        read_charges.delete(cycle.outdated, context.ledger)
        if cycle.queue_cursors is not None:
            cycle.queue_cursors.note(context.ledger)
        waiting = len(decisions) - len([one for one in decisions if one.action is Action.ADMIT])
        if not waiting and len(decisions) >= context.policy.scheduling.heads_per_cycle:
            continue  # the whole head of the queue is in: look at what came after it
        if cycle.unreadable.keys() >= set(context.site.clusters):
            raise cycle.unreadable[
                context.site.clusters[0]
            ]  # the jobs say why they wait; the request for this cycle is repeated
        return Outcome(admitted=tuple(admitted), waiting=waiting)
    context.telemetry.warning(
        "A pass ended before the queue's head stood still; the next one goes on", rounds=_MAX_RETRIES
    )
    return Outcome(admitted=tuple(admitted), is_complete=False)


# ---------------------------------------------------------------- load


def _load_pending(context: Context) -> _CycleSnapshot:
    """Read who waits, and nothing else: where Kueue admits, nobody else's quota and no machine is weighed here."""
    tree = context.ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    setup = read_setup.run(context.ledger).setup
    queued = _queue_keys(context.ledger, tree, setup, context.policy.scheduling.heads_per_cycle)
    return _with_jobs(
        _CycleSnapshot(
            tree,
            {},
            setup,
            cursors=queued.cursors,
            cursors_after_heads=queued.cursors,
            queue_cursors=queued.queue_cursors,
        ),
        queued,
        context.ledger,
    )


def _load(context: Context) -> _CycleSnapshot:
    tree = context.ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    setup = read_setup.run(context.ledger).setup
    queued = _queue_keys(context.ledger, tree, setup, context.policy.scheduling.heads_per_cycle)
    # The order matters. A rental that ends between two reads is counted twice at worst, never not at all; and so is a
    # pod that is created. Jobs come after the charges: what an attempt gave back is seen with the job that had it.
    rented = rentals.load(context.ledger)
    sized = scheduler_state.SchedulerState.model_validate(tree.doc.get("memory") or {}).elastic
    cycle = _with_jobs(
        _CycleSnapshot(
            tree,
            {},
            setup,
            cursors=queued.cursors,
            cursors_after_heads=queued.cursors,
            queue_cursors=queued.queue_cursors,
        ),
        queued,
        context.ledger,
        sized,
    )
    jobs, charges, elastic = dict(cycle.jobs), cycle.charges, cycle.elastic
    is_at_rest = not jobs and not _draining_teams(setup) and not rented.rentals and not sized.is_in_use
    is_at_rest = is_at_rest and not any(each.rents_from for each in context.policy.scheduling.serving)
    if is_at_rest and not context.policy.scheduling.reservations:
        return cycle
    serves = frozenset(each.cluster for each in context.policy.scheduling.serving)
    seen, unreadable = _read_clusters(context, context.site.clusters, serves)
    listed = [(name, each) for name, facts in seen.items() for each in facts.workloads]
    workloads = [(attempt.cluster, each) for attempt, each in attempt_rows.owned(context.ledger, listed)]
    in_use = {(name, node): count for name, facts in seen.items() for node, count in facts.in_use.items()}
    seen_nodes = [node for name in context.site.clusters if name in seen for node in seen[name].nodes]
    provider_nodes = seen[context.site.clusters[0]].provider_nodes if context.site.clusters[0] in seen else ()
    unhealthy = unhealthy_nodes.unhealthy_among(seen_nodes, context)
    nodes = join_nodes(seen_nodes, provider_nodes, context.site.clusters[0])
    capacities = node_capacity(nodes, accelerators_taken(in_use, charges, workloads), unhealthy)
    capacities = request_facts.with_reservation_ends(
        rented.capacities(capacities, jobs, context.policy.burst.pools), context.policy
    )
    of_kueue = {(name, each): by for name, facts in seen.items() for each, by in facts.of_kueue.items()}
    elsewhere = {charge.job_id for charge in charges if charge.cluster in unreadable}
    elastic = {name: each for name, each in elastic.items() if name not in elsewhere}
    cycle = cycle._replace(
        capacities=capacities, of_kueue=of_kueue, rented=rented, elastic=elastic, unreadable=unreadable
    )
    pods = {name: facts.pods for name, facts in seen.items() if name in serves}
    cycle = _reserve_for_serving(cycle, pods, _readable(context.policy, cycle).scheduling, context.now)
    if not setup.has_teams:
        return cycle
    holders = _read(context.ledger, (rows.job_key(charge.job_id) for charge in charges))
    spent = rentals.spent_by_period(setup, context, rented.rentals)
    left = (
        remaining_by_team(setup, spent, charges, rented.rentals, context.policy.economy, context.now)
        if context.policy.burst.pools
        else {}
    )
    return cycle._replace(
        charges=(*(_with_current_priority(charge, holders) for charge in charges), *_retained_charges(cycle)),
        holders=holders,
        stopping=_jobs_asked_to_stop(cycle, holders),
        rented=rented._replace(budgets_left=left),
        spent=spent,
        used=read_usage.run(setup, context),
        work_at_risk_by_job=_work_at_risk(charges, holders, context.policy, context.now)
        if setup.fleet.switches.spares_work
        else {},
    )


class _ClusterFacts(NamedTuple):
    """What was read of one cluster."""

    workloads: tuple[ObservedWorkload, ...]
    in_use: Mapping[str, int]
    nodes: tuple[KubernetesNode, ...]
    of_kueue: Mapping[str, str]
    provider_nodes: Sequence[ProviderNode]
    pods: Sequence[UnmanagedPod]


def _read_clusters(
    context: Context, names: Sequence[str], serves: frozenset[str]
) -> tuple[dict[str, _ClusterFacts], dict[str, EvenkeelError]]:
    """Read each cluster by itself, and HyperPod's nodes with the first one. If one read fails, all of it is left out.

    Args:
        names: Every cluster of the fleet.
        serves: Those with serving workloads, whose pods are read, too.
    """
    seen: dict[str, _ClusterFacts] = {}
    unreadable: dict[str, EvenkeelError] = {}
    for name in names:
        try:
            seen[name] = _ClusterFacts(
                context.cluster.workloads(name),
                context.cluster.accelerators_in_use(name),
                context.cluster.nodes(name),
                context.cluster.kueue_namespaces(name),
                context.provider.nodes() if name == names[0] else (),
                context.cluster.pods(name) if name in serves else (),
            )
        except EvenkeelError as error:
            unreadable[name] = error
    return seen, unreadable


def _readable(policy: Policy, cycle: _CycleSnapshot) -> Policy:
    """Return the policy with the serving workloads of clusters that could be read."""
    serves = tuple(each for each in policy.scheduling.serving if each.cluster not in cycle.unreadable)
    return policy.but(scheduling=policy.scheduling.but(serving=serves)) if cycle.unreadable else policy


def _retained_charges(cycle: _CycleSnapshot) -> Iterator[Charge]:
    """Yield what interrupted jobs on unreadable clusters released: it stays theirs until those can be read.

    A preempted job is no such job: what it released was taken for another.
    """
    for charge, _ in cycle.released.released:
        job = cycle.jobs[charge.job_id][0] if charge.job_id in cycle.jobs else None
        if job is None or charge.cluster not in cycle.unreadable or job.current_attempt != charge.attempt:
            continue
        if not job.is_preempted:
            yield charge


def _reserve_for_serving(
    cycle: _CycleSnapshot, pods: Mapping[str, Sequence[UnmanagedPod]], policy: SchedulingPolicy, now: datetime
) -> _CycleSnapshot:
    """Keep for the replicas of serving workloads the nodes that they are about to take."""
    short = serving.replica_shortfalls(policy.serving, pods)
    classes = cycle.setup.fleet.priority_classes
    # All of them take what comes free, those too for whom a node is on its way.
    kept = serving_demand.reserve_for_replicas(
        serving_demand.replica_requests(short, cycle.capacities, classes, now), cycle.capacities, policy
    )
    satisfied_replicas = serving_demand.satisfied_replicas(policy.serving, cycle.rented, pods, cycle.capacities)
    demands = serving_demand.replica_requests(short, cycle.capacities, classes, now, satisfied_replicas)
    return cycle._replace(
        capacities=kept,
        all_capacities=cycle.capacities,
        short=short,
        satisfied_replicas=satisfied_replicas,
        demands=demands,
    )


class _QueueKeys(NamedTuple):
    """Where jobs that wait are to be found. The index may lag behind, so each is read from its own row afterwards."""

    keys: tuple[Key, ...]
    cursors: dict[str, str]
    """By team whose queue is longer than a page: where it goes on."""
    queue_cursors: _QueueCursors | None


def _queue_keys(ledger: Ledger, tree: Row, setup: TeamSetup, heads: int) -> _QueueKeys:
    """Return the first jobs of each queue, of each where it goes on, and how far those behind were read in turn."""
    state = f"JOB#{JobState.PENDING}"
    # What was submitted before there were teams stands first, and where all fit on a page there is nothing to ask for.
    first = ledger.by_state(Table.JOBS, state, limit=heads)
    found = [row.key for row in first.rows]
    cursors: dict[str, str] = {_ALL_JOBS: first.cursor} if first.cursor else {}
    for team in setup.by_name if first.cursor else ():
        page = ledger.by_state(Table.JOBS, state, prefix=rows.queue_prefix(team), limit=heads)
        found += [row.key for row in page.rows]
        if page.cursor:
            cursors[team] = page.cursor
    behind, queue_cursors = _next_pages(ledger, setup, cursors, heads) if cursors else ([], None)
    # Who waits for its evictions stays the head of its queue, wherever it stands.
    sticky = (
        scheduler_state.SchedulerState.model_validate(tree.doc.get("memory") or {}).sticky.values() if cursors else ()
    )
    barriers = [name for name, _ in queue_cursors.barriers] if queue_cursors else ()
    return _QueueKeys((*map(rows.job_key, (*sticky, *barriers)), *found, *behind), cursors, queue_cursors)


def _with_jobs(
    cycle: _CycleSnapshot, queued: _QueueKeys, ledger: Ledger, sized: scheduler_state.ElasticState = _NO_ELASTIC_STATE
) -> _CycleSnapshot:
    """Return the look with the charges, and with the jobs that wait and those of several sizes, read after them.

    An interrupted job waits wherever the index lists it, or does not list it yet: its released charge names it.

    Raises:
        Conflict: an attempt is being settled this instant.
    """
    charges = read_charges.run(ledger)
    elastic = resize_jobs.load(ledger, charges.held, sized)
    read = {**_read(ledger, (*map(rows.job_key, charges.owners), *queued.keys)), **elastic}
    charges = charges.agreed(read)
    return cycle._replace(
        jobs={name: each for name, each in read.items() if each[0].state is JobState.PENDING},
        cursors=queued.cursors,
        cursors_after_heads=queued.cursors,
        queue_cursors=queued.queue_cursors,
        elastic=elastic,
        charges=charges.held,
        released=charges,
        outdated=charges.outdated(read),
    )


def _next_pages(
    ledger: Ledger, setup: TeamSetup, cursors: Mapping[str, str], heads: int
) -> tuple[list[Key], _QueueCursors]:
    """Read on in each long queue from where the pass before stopped; a strict one lets nobody pass its head anyway."""
    state = f"JOB#{JobState.PENDING}"
    row = ledger.get(rows.queue_cursors_key()) or Row(rows.queue_cursors_key(), {})
    before: dict[str, str] = row.doc.get("cursors", {})
    found: list[Key] = []
    stopped: dict[str, str] = {}
    queue_cursors = _QueueCursors(row, stopped)
    for team, cursors_after_heads in cursors.items():
        if _is_strict(team, setup):
            continue
        cursor = before.get(team, cursors_after_heads)
        page = ledger.by_state(Table.JOBS, state, prefix=_prefix(team), limit=heads * _PAGES_PER_CYCLE, cursor=cursor)
        # Each team's queue is read by itself.
        found += [each.key for each in page.rows if team or each.doc.get("queue", "") not in setup.by_name]
        if page.cursor:
            stopped[team] = page.cursor
        if team == _ALL_JOBS and not setup.has_teams:
            barriers = tuple((str(name), str(at)) for name, at in row.doc.get("barriers", ()))
            queue_cursors = queue_cursors._replace(
                page=frozenset(str(each.doc["jobId"]) for each in page.rows), began=cursor, barriers=barriers
            )
    return found, queue_cursors


def _prefix(team: str) -> str:
    return "" if team == _ALL_JOBS else rows.queue_prefix(team)


def _is_strict(team: str, setup: TeamSetup) -> bool:
    return team != _ALL_JOBS and setup.by_name[team].queue.strategy is QueueingStrategy.STRICT


def _read(ledger: Ledger, keys: Iterable[Key]) -> dict[str, tuple[Job, int]]:
    found = get_all(ledger, keys).values()
    jobs = ((rows.read(row, Job), row.version) for row in found)
    return {job.job_id: (job, version) for job, version in jobs}


def _with_current_priority(charge: Charge, holders: Mapping[str, tuple[Job, int]]) -> Charge:
    """Return a charge with what its job is worth by now: somebody may have ranked it anew since it was admitted."""
    holder = holders.get(charge.job_id)
    return charge.but(priority=holder[0].priority) if holder else charge


def _jobs_asked_to_stop(cycle: _CycleSnapshot, holders: Mapping[str, tuple[Job, int]]) -> frozenset[str]:
    """Return the jobs that were asked to stop, by whomever, and hold their charge still."""
    asked = {name for name, (job, _) in holders.items() if job.stop_of(job.current_attempt)}
    return frozenset((asked | cycle.memory.stopping.keys()) & {charge.job_id for charge in cycle.charges})


def _work_at_risk(
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


def _draining_teams(setup: TeamSetup) -> frozenset[str]:
    """Return the teams whose jobs are all to stop."""
    return frozenset(team.name for team in setup.teams if team.queue.stop is StopPolicy.HOLD_AND_DRAIN)


# ---------------------------------------------------------------- decide


def _decide(cycle: _CycleSnapshot, context: Context) -> tuple[_CycleSnapshot, tuple[AdmissionDecision, ...]]:
    """Decide about the heads; where none of a queue can start or is in the way, about those behind them, too."""
    pending = cycle.pending(context.policy, context.now)
    decisions = _decide_pending(cycle, pending, context.policy, context.now)
    more = _read_further(cycle, decisions, context.ledger, context.policy.scheduling.heads_per_cycle * _MAX_PAGES)
    if more is not None:
        cycle, pending = more, more.pending(context.policy, context.now)
        decisions = _decide_pending(cycle, pending, context.policy, context.now)
    queue_cursors = cycle.queue_cursors if not cycle.setup.has_teams else None
    if queue_cursors is not None:
        back = queue_cursors.rewound_to_unblocked_job(decisions)
        if back is not None:
            jobs = {name: each for name, each in cycle.jobs.items() if name not in back.page}
            cycle = cycle._replace(jobs=jobs, queue_cursors=back)
            pending = cycle.pending(context.policy, context.now)
            decisions = _decide_pending(cycle, pending, context.policy, context.now)
        elif _ALL_JOBS in cycle.cursors_after_heads:
            cycle = cycle._replace(queue_cursors=queue_cursors.after(decisions, cycle.cursors_after_heads[_ALL_JOBS]))
    fitted = start_size.fit_sizes(
        pending,
        decisions,
        lambda asked: _decide_pending(cycle, asked, context.policy, context.now),
        context.now,
        cycle.rented.serving,
    )
    return cycle, fitted


def _decide_pending(
    cycle: _CycleSnapshot, pending: tuple[AdmissionRequest, ...], policy: Policy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Decide about all that wait, by the rules of this fleet."""
    if not cycle.setup.has_teams:
        return admit(QueueSnapshot(capacities=cycle.capacities, pending=pending), policy.scheduling, now)
    snapshot = team_cycle.TeamCycleSnapshot(
        cycle.setup,
        cycle.capacities,
        pending,
        cycle.charges,
        cycle.stopping,
        cycle.memory,
        cycle.spent,
        {name: job.queue_reason for name, (job, _) in cycle.jobs.items()},
        cycle.used,
        cycle.work_at_risk_by_job,
        frozenset(cycle.unreadable),
    )
    return team_cycle.run_team_cycle(snapshot, policy.scheduling, policy.economy, now)


_PROGRESS = frozenset({Action.ADMIT, Action.PREEMPT})
"""Where no teams are set up, jobs are read in order: whoever waits holds up those behind it for its machines alone."""
_NOT_BLOCKING = frozenset(
    {Action.NO_QUOTA, Action.WAIT, Action.SAME_SHAPE, Action.HELD, Action.BACK_OFF, Action.NEVER_FITS}
)


def _read_further(
    cycle: _CycleSnapshot, decisions: Iterable[AdmissionDecision], ledger: Ledger, limit: int
) -> _CycleSnapshot | None:
    """Read on in each queue whose heads are all parked; None where none is, or none has more."""
    kinds: dict[str, set[Action]] = {}
    for decided in decisions:
        team = cycle.jobs[decided.job_id][0].spec.team if cycle.setup.has_teams else _ALL_JOBS
        kinds.setdefault(team, set()).add(decided.action)
    jobs, cursors, queue_cursors = dict(cycle.jobs), dict(cycle.cursors), cycle.queue_cursors
    held = frozenset(charge.job_id for charge in cycle.charges)
    for team, cursor in cycle.cursors.items():
        if team == _ALL_JOBS and cycle.setup.has_teams:
            continue  # each team's queue is read by itself
        found_kinds = kinds.get(team, set())
        goes_on = not found_kinds & _PROGRESS if team == _ALL_JOBS else not found_kinds - _NOT_BLOCKING
        if _is_strict(team, cycle.setup) or not goes_on:
            continue
        state = f"JOB#{JobState.PENDING}"
        page = ledger.by_state(Table.JOBS, state, prefix=_prefix(team), limit=limit, cursor=cursor)
        found = _read(ledger, (row.key for row in page.rows))
        # A job whose charge the look still holds was settled since: the next cycle weighs it.
        jobs |= {name: each for name, each in found.items() if each[0].state is JobState.PENDING and name not in held}
        if queue_cursors is not None and team == _ALL_JOBS:
            queue_cursors = queue_cursors._replace(
                page=queue_cursors.page - found.keys()
            )  # these were read in order, without a gap
        del cursors[team]
        if page.cursor:
            cursors[team] = page.cursor
    return None if cursors == cycle.cursors else cycle._replace(jobs=jobs, cursors=cursors, queue_cursors=queue_cursors)


def _plan_resizes(
    cycle: _CycleSnapshot, decisions: tuple[AdmissionDecision, ...], policy: Policy, now: datetime
) -> resize_facts.ResizePlan:
    """Return which running jobs are to change size, for those who wait or to use what is idle."""

    def weigh(fleet: resize_facts.CycleFleet) -> tuple[AdmissionDecision, ...]:
        other = cycle._replace(capacities=fleet.capacities, charges=fleet.charges, stopping=fleet.stopping)
        return _decide_pending(other, fleet.pending, policy, now)

    facts = resize_facts.ResizeInputs(
        fleet=resize_facts.CycleFleet(cycle.all_capacities, cycle.charges, cycle.stopping, cycle.pending(policy, now)),
        decisions=decisions,
        jobs={name: job for name, (job, _) in cycle.elastic.items()},
        leaving=frozenset(cycle.memory.stopping),
        memory=cycle.memory.elastic,
        setup=cycle.setup,
        policy=policy.scheduling,
        now=now,
        demands=cycle.demands,
        to_request=lambda job: request_facts.admission_request(job, policy, now),
    )
    return resize_plan.plan(facts, weigh)


def _plan_serving_rentals(
    cycle: _CycleSnapshot, resizes: resize_facts.ResizePlan, context: Context
) -> tuple[serving_demand.ServingRentalPlan, ...]:
    """Return what is to be rented for replicas that find no node, though others shrink for them."""
    policy, ledger = _readable(context.policy, cycle), context.ledger
    if not any(each.rents_from for each in policy.scheduling.serving):
        return ()
    states = rentals.serving_states(policy.scheduling.serving, ledger)
    demand = serving_demand.ServingDemand(
        cycle.short, cycle.satisfied_replicas, cycle.demands, resizes.satisfied_demands
    )
    seen = PlacementContext(context.now, cycle.all_capacities, cycle.charges, rented=cycle.rented)
    if demand.short:
        seen = rentals.with_stored_facts(seen, ledger)
    return serving_demand.plan_serving_rentals(demand, states, seen, policy)


def _plan_placements(
    cycle: _CycleSnapshot,
    decisions: Sequence[AdmissionDecision],
    serving_rental_plans: Sequence[serving_demand.ServingRentalPlan],
    context: Context,
) -> Placements:
    """Return where jobs should run that cannot start now, after the nodes that are rented for replicas."""
    to_rent = [each for plan in serving_rental_plans for each in plan.to_rent]
    policy, now, begun = context.policy, context.now, len(to_rent)
    waiting = [cycle.jobs[name][0] for name in rent_plan.jobs_without_nodes(decisions, cycle.rented)]
    asked = jobs_to_place(waiting, policy, now)
    if not asked:
        return {}
    left = rent_plan.capacity_left(cycle.capacities, decisions)
    rented = cycle.rented.with_planned(to_rent, policy.burst.pools)
    seen = rentals.with_stored_facts(
        PlacementContext(now, left, cycle.charges, queue=tuple(waiting), rented=rented), context.ledger
    )
    ran = rentals.ran_seconds(context.ledger, asked)
    found = place_in_queue_order([placement_facts(job, seen, policy, ran.get(job.job_id, 0.0)) for job in asked])
    answers: dict[str, PlacementDecision | str] = {}
    for job, placed in zip(asked, found, strict=True):
        answers[job.job_id] = placed
        if placed.action is not PlacementAction.RENT:
            continue
        pool = next(each for each in policy.burst.pools if each.name == placed.pool)
        jobs = {**cycle.jobs, job.job_id: (job.but(cluster=pool.cluster), cycle.jobs[job.job_id][1])}
        with_rented = (*cycle.capacities, *nodes_to_rent(job, pool, now))
        why_not = rent_plan.why_rental_would_not_help(
            job.job_id, pool, _decide_if(cycle, with_rented, jobs, cycle.charges, context)
        )
        if why_not:
            answers[job.job_id] = why_not
        elif begun >= policy.burst.rentals_per_cycle:
            answers[job.job_id] = "Evenkeel rents nodes for the job in one of the next scheduling cycles."
        else:
            begun += 1
    return answers


def _decide_if(
    cycle: _CycleSnapshot,
    capacities: tuple[NodeCapacity, ...],
    jobs: Mapping[str, tuple[Job, int]],
    charges: tuple[Charge, ...],
    context: Context,
) -> tuple[AdmissionDecision, ...]:
    """Return what the rules of this cycle would decide about other nodes, jobs and charges."""
    other = cycle._replace(
        capacities=capacities, jobs=jobs, charges=charges, cursors={}, queue_cursors=None, rented=RentalBook()
    )
    return _decide(other, context)[1]


# ---------------------------------------------------------------- act and record


class _QuotaTree:
    """The tree as this pass last wrote it: each commit is held to its version."""

    def __init__(self, cycle: _CycleSnapshot, now: datetime) -> None:
        self._row = cycle.tree
        self.memory = cycle.memory.pruned(cycle.charges, cycle.setup, now) if cycle.setup.has_teams else cycle.memory

    def put(self, memory: scheduler_state.SchedulerState) -> Put:
        """Return the write that raises it."""
        memory_row = memory.to_row()
        doc = {name: value for name, value in self._row.doc.items() if name != "memory"}
        return Put(Row(self._row.key, {**doc, "memory": memory_row} if memory_row else doc, self._row.version))

    def raised(self, memory: scheduler_state.SchedulerState) -> None:
        """Note that it was written."""
        written = self.put(memory).row
        self._row, self.memory = Row(written.key, written.doc, written.version + 1), memory


def _commit_all(
    decisions: Sequence[AdmissionDecision],
    placed: Placements,
    resizes: resize_facts.ResizePlan,
    serving_rental_plans: Sequence[serving_demand.ServingRentalPlan],
    cycle: _CycleSnapshot,
    admitted: list[str],
    context: Context,
) -> frozenset[str]:
    """Commit what was decided. Returns the jobs whose admission the ledger refused; then nothing else was committed."""
    tree = _QuotaTree(cycle, context.now)
    # Who starts comes first: what is said of the others, and who has to stop, counts on it.
    refused_jobs = _admit(decisions, cycle, tree, admitted, context)
    if refused_jobs:
        return refused_jobs
    rentals.begin_for_deployments(serving_rental_plans, tree, context)
    reasons = _ReasonBatch(context)
    for decided in decisions:
        job, version = cycle.jobs[decided.job_id]
        allowed = launch_mode(context.mode, is_planned=job.is_planned(job.current_attempt + 1))
        answer = placed.get(decided.job_id)
        to_rent = answer if isinstance(answer, PlacementDecision) and answer.action is PlacementAction.RENT else None
        if decided.action is Action.PREEMPT and allowed is Mode.ACT and decided.job_id not in resizes.shrinks_by_waiter:
            try:
                asked = _commit_preemption(context.but(mode=allowed), decided, cycle, tree)
            except Refused as refused:
                _defer_after_refusal(decided.job_id, refused, context)
                continue
            if not asked:
                reasons.add(_reason_writes(job, version, decided, cycle.setup, context.but(mode=allowed)), job.job_id)
        elif decided.job_id in cycle.rented.serving and decided.action is not Action.ADMIT:
            continue  # the job says already what is rented for it
        elif to_rent is not None and allowed is Mode.ACT and not resizes.shrinks_by_waiter:
            current = _with_current_queue(job, cycle.setup)
            try:
                rentals.begin_for_job(current, version, to_rent, tree, context.but(mode=allowed))
            except Refused as refused:
                _defer_after_refusal(decided.job_id, refused, context)
        elif decided.action is not Action.ADMIT or allowed is not Mode.ACT:
            note = rentals.placement_note(job, answer, context.but(mode=allowed))
            reasons.add(
                _reason_writes(job, version, decided, cycle.setup, context.but(mode=allowed), *note), job.job_id
            )
    reasons.commit()
    resize_jobs.carry_out(resizes, {**cycle.holders, **cycle.elastic}, cycle.jobs, tree, context)
    if context.mode is Mode.ACT:
        _migrate_to_committed(decisions, cycle, tree, context)
        _drain_expiring_reservations(cycle, tree, context)
        _drain_stopped_queues(cycle, tree, context)
    return frozenset()


def _admit(
    decisions: Sequence[AdmissionDecision],
    cycle: _CycleSnapshot,
    tree: _QuotaTree,
    admitted: list[str],
    context: Context,
) -> frozenset[str]:
    """Create the attempts that were decided, and start them. Returns the jobs whose admission the ledger refused."""
    found: list[tuple[AdmissionDecision, Attempt, Mode]] = []
    for decided in decisions:
        job, _ = cycle.jobs[decided.job_id]
        allowed = launch_mode(context.mode, is_planned=job.is_planned(job.current_attempt + 1))
        if decided.action is Action.ADMIT and allowed is Mode.ACT:
            attempt = _new_attempt(job, decided, context.ids.new("dec"), context.now)
            rental = cycle.rented.serving.get(decided.job_id)
            if rental is not None and rental.hosts(attempt):
                attempt = attempt.but(is_rented=True)
            found.append((decided, attempt, allowed))
    attempts = {attempt.job_id: attempt for _, attempt, _ in found}
    refused_jobs: set[str] = set()

    def commit(some: Sequence[batches.WriteGroup]) -> None:
        _commit_admissions(context.ledger, [attempts[part.subject] for part in some], some, cycle, tree)
        for attempt in (attempts[part.subject] for part in some):
            admitted.append(attempt.workload_name)
            context.telemetry.count("JobsAdmitted")
            context.telemetry.info("Job admitted", job_id=attempt.job_id, attempt=attempt.attempt, pool=attempt.pool)
            start_run(attempt, context)

    def set_aside(part: batches.WriteGroup, refused: Refused) -> None:
        refused_jobs.add(part.subject)
        _defer_after_refusal(part.subject, refused, context)

    parts = (_admission_part(each, cycle, context) for each in found)
    for some in batches.cut(parts, besides=(tree.put(tree.memory),), besides_each=1):
        batches.commit_each(some, commit, set_aside)
    return frozenset(refused_jobs)


def _defer_after_refusal(job_id: str, refused: Refused, context: Context) -> None:
    """Tell a job that the ledger refused what was decided about it, and try it again later. Idempotent: yes.

    Its own row may be what is refused. Then the log and the metric tell it, and every cycle finds it again.
    """
    batches.note_refusal(context.telemetry, job_id, refused)
    row = context.ledger.get(rows.job_key(job_id))
    if row is None:
        return
    job = rows.read(row, Job)
    if job.state is not JobState.PENDING:
        return
    minutes = _RETRY_AFTER_REFUSAL.seconds // 60
    text = f"The ledger refused to store this job's decision. Evenkeel tries again after {minutes} min."
    entry = TimelineEntry(at=context.now, kind="deferred", text=text, writer=WRITER)
    with contextlib.suppress(Conflict, Refused):
        context.ledger.commit(
            Put(
                rows.job_row(
                    job.but(reason=text, placement=None, not_before=context.now + _RETRY_AFTER_REFUSAL), row.version
                )
            ),
            Put(rows.timeline_row(job_id, entry, "set-aside")),
        )


def _new_attempt(job: Job, decided: AdmissionDecision, decision_id: str, now: datetime) -> Attempt:
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
    admission: tuple[AdmissionDecision, Attempt, Mode], cycle: _CycleSnapshot, context: Context
) -> batches.WriteGroup:
    """Return what admits one job: its attempt with its charge, the record and the line of its timeline."""
    decided, attempt, mode = admission
    job, version = cycle.jobs[attempt.job_id]
    number = attempt.attempt
    started = _with_current_queue(job.at_size(attempt.ranks, context.now), cycle.setup).but(
        state=JobState.STARTING,
        reason=decided.reason,
        current_attempt=number,
        local_queue=attempt.local_queue,
        not_before=None,
        queued_at=None,
        # Who gave way has started again once Kueue has let it in.
        is_preempted=job.is_preempted and bool(attempt.local_queue),
        placement=None,
        is_migrating_back=False,
        lost_at=None,
    )
    where = ", ".join(attempt.node_names[:4]) + (" and more" if len(attempt.node_names) > 4 else "")
    entry = TimelineEntry(
        at=context.now,
        kind="admitted",
        text=f"Attempt {number} goes to Kueue's LocalQueue {attempt.local_queue}."
        if attempt.local_queue
        else f"Attempt {number} admitted to {attempt.pool}: {where}.",
        decision_id=attempt.decision_id,
        writer=WRITER,
    )
    released = cycle.released.released_by(job)
    return batches.WriteGroup(
        job.job_id,
        (
            Put(rows.charge_row(attempt, job, decided.use)),
            Put(rows.job_row(started, version)),
            Put(rows.attempt_row(attempt, 0)),
            Put(rows.decision_row(_record(decided, attempt.decision_id, decided.reason, context.but(mode=mode)))),
            Put(rows.timeline_row(job.job_id, entry, f"admitted-{number}")),
            *((Delete(released.key, released.version),) if released else ()),
        ),
    )


def _commit_admissions(
    ledger: Ledger,
    attempts: Sequence[Attempt],
    parts: Sequence[batches.WriteGroup],
    cycle: _CycleSnapshot,
    tree: _QuotaTree,
) -> None:
    """Create attempts: all of them or none, and only if nobody admitted anything since the look."""
    memory = tree.memory
    usage: Counter[str] = Counter()
    for attempt in attempts:
        job, _ = cycle.jobs[attempt.job_id]
        usage[attempt.team] += attempt.accelerators
        memory = memory.after_admission(attempt.team, job.job_id)
        memory = memory.but(elastic=memory.elastic.after_admission(job.job_id, is_elastic=job.spec.elastic is not None))
    sums = (Add(rows.usage_key(team), {"accelerators": count}) for team, count in usage.items())
    # Some of a refused batch are other writes, so they need another token.
    token = f"{attempts[0].decision_id}/{len(attempts)}"
    ledger.commit(tree.put(memory), *sums, *(write for part in parts for write in part.writes), token=token)
    tree.raised(memory)


def _commit_preemption(context: Context, decided: AdmissionDecision, cycle: _CycleSnapshot, tree: _QuotaTree) -> bool:
    """Ask those to stop who have to, with the record of why; False where nobody is left to ask.

    Whoever was asked before is not asked again. Each is asked as it was read with the look: one that was ranked higher,
    suspended or settled since makes the commit fail, and the cycle decides again.

    More than fit into one commit are asked in several. After a crash between them the next pass finds the first ones
    on their way, takes them first, and asks the rest.
    """
    job, version = cycle.jobs[decided.job_id]
    fresh = {each.job_id: each.reason for each in decided.victims if each.job_id not in cycle.stopping}
    attempts = {charge.job_id: charge.attempt for charge in cycle.charges}
    found = cycle.holders
    names = [name for name in fresh if name in found and found[name][0].current_attempt == attempts.get(name)]
    if not names:
        return False
    why = {name: f"Preempted by {job.job_id} of team {job.spec.team} ({fresh[name]})." for name in names}
    parts = [
        batches.WriteGroup(name, _stop_writes(*found[name], why[name], f"schedule_jobs/{job.job_id}", context.now))
        for name in names
    ]
    record = _record(decided, context.ids.new("dec"), decided.reason, context)
    waits = _with_current_queue(job, cycle.setup).but(reason=decided.reason)
    own: tuple[Write, ...] = (Put(rows.job_row(waits, version)), Put(rows.decision_row(record)))
    token = record.decision_id
    for some in batches.cut(parts, besides=(tree.put(tree.memory), *own)):
        memory = tree.memory.after_preemption(job.spec.team, job.job_id, [part.subject for part in some], context.now)
        context.ledger.commit(tree.put(memory), *(write for part in some for write in part.writes), *own, token=token)
        tree.raised(memory)
        own, token = (), context.ids.new("dec")
    context.telemetry.count("JobsPreempted", len(names))
    context.telemetry.info("Jobs asked to stop for another", job_id=job.job_id, victims=names)
    return True


def _stop_writes(job: Job, version: int, why: str, by: str, now: datetime) -> tuple[Write, ...]:
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


def _drain_stopped_queues(cycle: _CycleSnapshot, tree: _QuotaTree, context: Context) -> None:
    """Ask all jobs of drained queues to stop. Idempotent: yes, whoever was asked is not asked again."""
    teams = _draining_teams(cycle.setup)
    attempts = {
        charge.job_id: charge.attempt
        for charge in cycle.charges
        if charge.team in teams and charge.job_id not in tree.memory.stopping
    }
    for name, (job, version) in _read(context.ledger, (rows.job_key(name) for name in attempts)).items():
        if job.current_attempt != attempts[name]:
            continue
        writes = _stop_writes(
            job, version, f"The queue of team {job.spec.team} is drained.", f"{WRITER}/drain", context.now
        )
        memory = tree.memory.but(stopping={**tree.memory.stopping, name: ""})
        if writes:
            try:
                context.ledger.commit(tree.put(memory), *writes)
            except Refused as refused:
                batches.note_refusal(context.telemetry, name, refused)
                continue
            tree.raised(memory)
            context.telemetry.info("Job asked to stop, its queue is drained", job_id=name)


def _migrate_to_committed(
    decisions: Sequence[AdmissionDecision], cycle: _CycleSnapshot, tree: _QuotaTree, context: Context
) -> None:
    """Ask one job to leave its rented nodes. Idempotent: yes, a job is asked once."""
    found = _next_departure(decisions, cycle, context.but(mode=Mode.ACT))
    if found is None:
        return
    job, version, departure = found
    writes, token = rentals.departure_writes(job, version, departure, context.but(mode=Mode.ACT))
    memory = tree.memory
    if cycle.setup.has_teams:
        memory = memory.but(stopping={**memory.stopping, job.job_id: ""})
    try:
        context.ledger.commit(tree.put(memory), *writes, token=token)
    except Refused as refused:
        batches.note_refusal(context.telemetry, job.job_id, refused)
        return
    tree.raised(memory)
    context.telemetry.count("JobsMigratedBack")
    context.telemetry.info("Job asked to migrate back to committed capacity", job_id=job.job_id)


def _next_departure(
    decisions: Sequence[AdmissionDecision], cycle: _CycleSnapshot, context: Context
) -> tuple[Job, int, DepartureDecision] | None:
    """Return the first job that leaves its rented nodes, with its row's version; None if every job stays."""
    left = rent_plan.committed_left(cycle.capacities, decisions)
    has_free_node = any(each.is_open and each.free for each in left)
    ready = [
        each
        for each in cycle.rented.rentals
        if each.state is RentalState.READY
        and each.offer.cluster not in cycle.unreadable
        and (has_free_node or each.due_at is not None)
    ]
    jobs = _read(context.ledger, (rows.job_key(each.job_id) for each in ready))
    for rental in ready:
        if rental.job_id not in jobs or not rent_plan.may_leave(jobs[rental.job_id][0], rental, cycle.charges):
            continue
        job, version = jobs[rental.job_id]
        target, ran = None, 0.0
        if has_free_node:
            alone = {job.job_id: (job.but(state=JobState.PENDING), version)}
            others = tuple(charge for charge in cycle.charges if charge.job_id != job.job_id)
            would = _decide_if(cycle, left, alone, others, context)
            target = rent_plan.committed_target(would, rental, left, context.policy)
        if target is not None:
            ran = rentals.ran_seconds(context.ledger, [job], context.now).get(job.job_id, 0.0)
        departure = decide_departure(job, rental, target, context.policy, context.now, ran_seconds=ran)
        if departure is not None:
            return job, version, departure
    return None


def _drain_expiring_reservations(cycle: _CycleSnapshot, tree: _QuotaTree, context: Context) -> None:
    """Ask jobs to leave machines whose reservation ends. Idempotent: yes, whoever was asked is not asked again."""
    parts = drain_reservations.stops_due(cycle.charges, cycle.capacities, context)

    def commit(some: Sequence[batches.WriteGroup]) -> None:
        memory = tree.memory
        names = [part.subject for part in some]
        if cycle.setup.has_teams:
            memory = memory.but(stopping={**memory.stopping, **dict.fromkeys(names, "")})
        context.ledger.commit(tree.put(memory), *(write for part in some for write in part.writes))
        tree.raised(memory)
        context.telemetry.count("JobsDrainedFromReservations", len(names))
        context.telemetry.info("Jobs asked to stop before a reservation ends", jobs=names)

    for some in batches.cut(parts, besides=(tree.put(tree.memory),)):
        batches.commit_each(
            some, commit, lambda part, refused: batches.note_refusal(context.telemetry, part.subject, refused)
        )


def _with_current_queue(job: Job, setup: TeamSetup) -> Job:
    """Return a job in the queue where it belongs by now: teams may have been set up since it was submitted."""
    queue = job.spec.team if job.spec.team in setup.by_name else ""
    if queue == job.queue:
        return job
    return job.but(queue=queue, priority=setup.priority_of(job.spec.priority_class))


def start_run(attempt: Attempt, context: Context) -> bool:
    """Start the workflow of an attempt; False where that failed, which the sweeper makes good.

    Idempotent: yes, by the execution's name; one that exists already is success.
    """
    document = {"schemaVersion": 1, "jobId": attempt.job_id, "attempt": attempt.attempt}
    try:
        context.workflows.start(WorkflowName.RUN_JOB, attempt.workload_name, document)
    except TransientError as error:
        context.telemetry.warning(
            "The workflow of an attempt could not be started yet", job_id=attempt.job_id, error=str(error)
        )
        return False
    return True


class _ReasonBatch:
    """What a pass says of those who wait: many in one commit, since each of them is a round trip."""

    def __init__(self, context: Context) -> None:
        self._ledger = context.ledger
        self._telemetry = context.telemetry
        self._parts: list[batches.WriteGroup] = []

    def add(self, writes: tuple[Write, ...], job_id: str) -> None:
        """Say it with the others, now or with those that follow."""
        if writes:
            self._parts.append(batches.WriteGroup(job_id, writes))
        if len(self._parts) == _MAX_REASONS:
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


def _reason_writes(
    job: Job,
    version: int,
    decided: AdmissionDecision,
    setup: TeamSetup,
    context: Context,
    note: PlacementNote | None = None,
    records: tuple[Write, ...] = (),
) -> tuple[Write, ...]:
    """Return what says on the job why it waits: nothing where it says so already."""
    if decided.action is Action.BACK_OFF:
        return ()  # the job says already what failed
    reason = recorded_reason(decided, context.mode)
    placed = _with_current_queue(job, setup).but(reason=f"{reason} {note.text}" if note else reason, placement=note)
    if placed == job:
        return ()
    writes = (Put(rows.job_row(placed, version)), *records)
    if job.queue_reason == reason:
        return writes
    return (*writes, Put(rows.decision_row(_record(decided, context.ids.new("dec"), reason, context))))


def _record(decided: AdmissionDecision, decision_id: str, reason: str, context: Context) -> Decision:
    return Decision(
        decision_id=decision_id,
        kind="ADMISSION",
        subject=decided.job_id,
        action=decided.action,
        reason=reason,
        alternatives=decided.alternatives,
        facts=decided.facts.to_json(),
        policy_hash=context.policy.hash,
        mode=context.mode,
        decided_at=context.now,
    )
