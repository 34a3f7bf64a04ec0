"""Load step of a scheduling cycle: read the quota tree, queues, charges, jobs and clusters into one snapshot.

    tree ─ set-up ─ queues ─ rentals ─┬─ charges ─ jobs ─ Jobs and pods ─ attempts ─┬─ spending   (the order matters)
                                      ├─ nodes of each cluster ─────────────────────┤
                                      └─ rows of nodes ─────────────────────────────┘

A rental or a pod that changes between two reads may count twice, but is never missed. Jobs are read after the
charges, so freed quota is seen only together with the job that released it (docs/decisions/0023). Nodes are read after
the rentals, so a node whose rental ends is never seen as free.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.cycle_plan import MissingFacts
from evenkeel.domain.admission.cycle_snapshot import CycleSnapshot
from evenkeel.domain.admission.decide_cycle import draining_teams, is_strict
from evenkeel.domain.admission.queue_cursors import ALL_JOBS, QueueCursors, queues_to_read
from evenkeel.domain.admission.request_facts import with_reservation_ends
from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import node_capacity
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.jobs.charge import Charge, resources_taken
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import FleetNode, KubernetesNode, ProviderNode, join_nodes
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.recovery.leases import Holds
from evenkeel.domain.recovery.resume import charge_lost_work
from evenkeel.domain.renting.book import RentalBook
from evenkeel.domain.resources import Resources
from evenkeel.ports import EvenkeelError, Key, Ledger, Page, PodsInUse, Row, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.rentals import rentals
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage import (
    attempt_record,
    fleet_rows,
    job_rows,
    past_runs,
    provider_records,
    quota_rows,
    read_charges,
    rows,
    stored_nodes,
    team_setup,
)
from evenkeel.services.storage.quota_tree import stored_state

_MAX_PAGES = 4
"""Pages that a cycle reads at once after the head of a parked queue."""
_PAGES_PER_LONG_QUEUE = 1
"""Pages that a cycle reads of each long queue, from the cursor of the last cycle."""
_READS_AT_ONCE = 8
_PENDING = f"JOB#{JobState.PENDING}"

StoredJobs = Mapping[str, tuple[Job, int]]
"""Job id → the job and the version of its row."""


class LoadedCycle(NamedTuple):
    """Everything that a cycle read, with the rows and versions that its commits depend on."""

    tree: Row
    snapshot: CycleSnapshot
    versions: Mapping[str, int] = {}
    """Job id → version of its row."""
    charges: read_charges.Charges = read_charges.Charges()
    outdated: tuple[Row, ...] = ()
    """Rows of released charges that no job needs now."""
    cursors_row: Row | None = None
    """The row of the queue cursors; None if no queue is longer than its head."""
    errors: Mapping[str, EvenkeelError] = {}
    """Cluster that could not be read → the error."""

    def stored(self, job_id: str) -> tuple[Job, int]:
        """Return a job that the cycle read, with the version of its row."""
        job = self.snapshot.known_job(job_id)
        assert job is not None, f"the plan names {job_id}, which was not read"
        return job, self.versions[job_id]


def run(context: Context) -> LoadedCycle:
    """Read everything that a cycle decides from. If Kueue admits, the snapshot has only the pending jobs.

    Raises:
        Conflict: an attempt is being settled at this instant.
    """
    tree = context.ledger.get(quota_rows.tree_key()) or Row(quota_rows.tree_key(), {})
    snapshot = CycleSnapshot(
        authority=context.site.admission,
        setup=team_setup.load(context.ledger).setup,
        scheduler_state=stored_state(tree),
        automation_hold_reason=_automation_hold_reason(context),
    )
    queues = _read_queues(snapshot, context)
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return _with_jobs(LoadedCycle(tree, snapshot), queues, ElasticState(), context.ledger)
    # The rentals are read before the charges and the nodes.
    rented = rentals.load(context.ledger)
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
        # Pending jobs need the nodes, whatever is read next.
        lists = _NodeLists.start(readers, context) if queues.keys else None
        loaded = _with_jobs(LoadedCycle(tree, snapshot), queues, snapshot.scheduler_state.elastic, context.ledger)
        if _has_nothing_to_decide(loaded.snapshot, rented, context.policy):
            return loaded
        loaded = _with_clusters(loaded, rented, lists or _NodeLists.start(readers, context), context)
    return _with_quotas(loaded, context)


def read_missing(loaded: LoadedCycle, missing: MissingFacts, context: Context) -> LoadedCycle:
    """Read the facts that a plan named as missing."""
    if missing.queues:
        return _read_later_pages(loaded, missing.queues, context)
    stored = _read_jobs(context.ledger, map(job_rows.job_key, missing.jobs))
    loaded = loaded._replace(
        snapshot=loaded.snapshot._replace(jobs_with_charge={**loaded.snapshot.jobs_with_charge, **_jobs_by_id(stored)}),
        versions={**loaded.versions, **_versions_of(stored)},
    )
    jobs = (loaded.snapshot.known_job(name) for name in missing.attempts_of)
    return loaded._replace(
        snapshot=loaded.snapshot._replace(
            shortages=rentals.read_shortages(context.ledger)[0] if missing.needs_shortages else None,
            past_runs=past_runs.load(context.ledger) if missing.needs_past_runs else (),
            attempts=rentals.read_attempts(context.ledger, (job for job in jobs if job)),
        )
    )


# ---------------------------------------------------------------- queues


class _Queues(NamedTuple):
    """Keys of pending jobs. Each job is read by its key afterwards, since the index of pending jobs may lag."""

    keys: tuple[Key, ...]
    head_ends: Mapping[str, str]
    """Team whose queue is longer than a page → the cursor after that page."""
    next_cursors: QueueCursors | None
    cursors_row: Row | None
    has_later_pages: bool = False
    """Whether the cycle can examine jobs of later pages, too."""


def _automation_hold_reason(context: Context) -> str:
    row = context.ledger.get(fleet_rows.hold_key())
    hold = rows.decode(row, Holds).scheduling_hold(context.now) if row else None
    return hold.wait_reason if hold else ""


def _read_queues(snapshot: CycleSnapshot, context: Context) -> _Queues:
    """Read the head of each queue, and one more page of as many long queues as a cycle can examine."""
    ledger, setup, policy = context.ledger, snapshot.setup, context.policy.scheduling
    heads = policy.jobs_per_head(len(setup.by_name))
    # If all pending jobs fit on one page, no team's queue has more. Jobs older than the teams come first on the page.
    first = ledger.by_state(Table.JOBS, _PENDING, limit=heads)
    keys = [row.key for row in first.rows]
    next_page: dict[str, str] = {ALL_JOBS: first.cursor} if first.cursor else {}
    teams = tuple(setup.by_name) if first.cursor else ()
    for team, page in _read_pages([(team, heads, None) for team in teams], ledger):
        keys += [row.key for row in page.rows]
        if page.cursor:
            next_page[team] = page.cursor
    if not next_page:
        return _Queues(tuple(keys), {}, None, None)
    later_keys, cursors, row = _read_next_pages(setup, next_page, policy, ledger)
    # A job that waits until its victims stop stays the head of its queue, wherever it is listed.
    first_keys = map(
        job_rows.job_key, (*snapshot.scheduler_state.sticky.values(), *(name for name, _ in cursors.barriers))
    )
    has_later_pages = len(keys) + len(later_keys) + policy.jobs_per_page * _MAX_PAGES <= policy.examined_jobs_limit
    return _Queues((*first_keys, *keys, *later_keys), next_page, cursors, row, has_later_pages)


def _read_pages(queries: Iterable[tuple[str, int, str | None]], ledger: Ledger) -> list[tuple[str, Page]]:
    """Read a page of several queues in parallel. A query is a team, a number of jobs and a cursor."""
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
        reads = [(team, readers.submit(_read_page, ledger, team, limit, cursor)) for team, limit, cursor in queries]
    return [(team, read.result()) for team, read in reads]


def _read_page(ledger: Ledger, team: str, limit: int, cursor: str | None) -> Page:
    return ledger.by_state(Table.JOBS, _PENDING, prefix=_queue_prefix(team), limit=limit, cursor=cursor)


def _read_next_pages(
    setup: TeamSetup, next_page: Mapping[str, str], policy: SchedulingPolicy, ledger: Ledger
) -> tuple[list[Key], QueueCursors, Row]:
    """Load the next page of long queues, from the stored cursors. In a strict queue no job may pass the head.

    If there are more long queues than a cycle can examine, each cycle reads the queues after the last cycle's queues.
    """
    row = ledger.get(quota_rows.queue_cursors_key()) or Row(quota_rows.queue_cursors_key(), {})
    stored_cursors: dict[str, str] = row.doc.get("cursors", {})
    long_queues = sorted(team for team in next_page if not is_strict(team, setup))
    queues_this_cycle = queues_to_read(long_queues, row.doc.get("turn"), policy.long_queues_per_cycle)
    keys: list[Key] = []
    other_queues = set(long_queues) - set(queues_this_cycle)
    next_cursors = {team: cursor for team, cursor in stored_cursors.items() if team in other_queues}
    last_queue = queues_this_cycle[-1] if len(queues_this_cycle) < len(long_queues) else None
    cursors = QueueCursors(next_cursors, last_queue=last_queue)
    limit = policy.jobs_per_page * _PAGES_PER_LONG_QUEUE
    queries = [(team, limit, stored_cursors.get(team, next_page[team])) for team in queues_this_cycle]
    for team, page in _read_pages(queries, ledger):
        # The queue of each team is read by itself.
        keys += [row.key for row in page.rows if team or row.doc.get("queue", "") not in setup.by_name]
        if page.cursor:
            next_cursors[team] = page.cursor
        if team == ALL_JOBS and not setup.has_teams:
            cursors = cursors._replace(
                page_jobs=frozenset(str(row.doc["jobId"]) for row in page.rows),
                page_start=stored_cursors.get(team, next_page[team]),
                barriers=tuple((str(name), str(at)) for name, at in row.doc.get("barriers", ())),
            )
    return keys, cursors, row


def _read_later_pages(loaded: LoadedCycle, teams: Iterable[str], context: Context) -> LoadedCycle:
    """Read several pages at once after the heads of these queues, until the cycle has enough jobs to examine."""
    snapshot, policy = loaded.snapshot, context.policy.scheduling
    limit = policy.jobs_per_page * _MAX_PAGES
    pending, versions = dict(snapshot.pending), dict(loaded.versions)
    next_page, cursors = dict(snapshot.readable_further), snapshot.next_cursors
    charged_jobs = frozenset(charge.job_id for charge in snapshot.charges())
    for team in teams:
        if len(pending) >= policy.examined_jobs_limit:
            break
        page = context.ledger.by_state(
            Table.JOBS, _PENDING, prefix=_queue_prefix(team), limit=limit, cursor=next_page.pop(team)
        )
        jobs = _read_jobs(context.ledger, (row.key for row in page.rows))
        # A job whose charge this cycle still sees as held was settled since. The next cycle decides about it.
        waiting = {
            name: entry
            for name, entry in jobs.items()
            if entry[0].state is JobState.PENDING and name not in charged_jobs
        }
        pending |= _jobs_by_id(waiting)
        versions |= _versions_of(waiting)
        if cursors is not None and team == ALL_JOBS:
            cursors = cursors._replace(
                page_jobs=cursors.page_jobs - jobs.keys()
            )  # the cycle read these jobs in order, without a gap
        if page.cursor:
            next_page[team] = page.cursor
    return loaded._replace(
        snapshot=snapshot._replace(pending=pending, readable_further=next_page, next_cursors=cursors), versions=versions
    )


def _queue_prefix(team: str) -> str:
    return "" if team == ALL_JOBS else job_rows.queue_prefix(team)


# ---------------------------------------------------------------- jobs and charges


def _with_jobs(loaded: LoadedCycle, queues: _Queues, elastic_state: ElasticState, ledger: Ledger) -> LoadedCycle:
    """Read the charges, and after them the pending jobs and the elastic jobs.

    An interrupted job is found even if the index does not list it yet: its released charge names it.

    Raises:
        Conflict: an attempt is being settled at this instant.
    """
    charges = read_charges.run(ledger)
    elastic_names = {*(charge.job_id for charge in charges.held if charge.is_elastic), *elastic_state.resizing}
    elastic = _read_jobs(ledger, map(job_rows.job_key, sorted(elastic_names)))
    jobs = {**_read_jobs(ledger, (*map(job_rows.job_key, charges.owners), *queues.keys)), **elastic}
    charges = charges.agreed(jobs)
    snapshot = loaded.snapshot._replace(
        pending={name: job for name, (job, _) in jobs.items() if job.state is JobState.PENDING},
        elastic=_jobs_by_id(elastic),
        live_charges=charges.held,
        released_charges=tuple(charge for charge, _ in charges.released),
        readable_further=queues.head_ends if queues.has_later_pages else {},
        head_ends=queues.head_ends,
        next_cursors=queues.next_cursors,
    )
    return loaded._replace(
        snapshot=snapshot,
        versions=_versions_of(jobs),
        charges=charges,
        outdated=charges.outdated(jobs),
        cursors_row=queues.cursors_row,
    )


def _has_nothing_to_decide(snapshot: CycleSnapshot, rented: RentalBook, policy: Policy) -> bool:
    """Whether there is nothing to decide, so that no cluster has to be read."""
    return not (
        snapshot.pending
        or draining_teams(snapshot.setup)
        or rented.rentals
        or snapshot.scheduler_state.elastic.is_in_use
        or any(workload.rents_from for workload in policy.scheduling.serving)
        or policy.scheduling.reservations
    )


def _with_quotas(loaded: LoadedCycle, context: Context) -> LoadedCycle:
    """Read the jobs that hold charges, and the spending and use of the teams."""
    snapshot, policy = loaded.snapshot, context.policy
    setup = snapshot.setup
    if not setup.has_teams:
        return loaded
    stored = _read_jobs(context.ledger, (job_rows.job_key(charge.job_id) for charge in snapshot.live_charges))
    running = {name: entry for name, entry in stored.items() if name not in snapshot.pending}
    jobs_with_charge, rented = _jobs_by_id(stored), snapshot.rented
    spent = rentals.spent_by_period(setup, context, rented.rentals)
    budgets_left = (
        remaining_by_team(setup, spent, snapshot.live_charges, rented.rentals, policy.economy, context.now)
        if policy.burst.pools
        else {}
    )
    return loaded._replace(
        snapshot=snapshot._replace(
            jobs_with_charge=jobs_with_charge,
            # The later read of an elastic job counts.
            elastic={name: jobs_with_charge.get(name, job) for name, job in snapshot.elastic.items()},
            rented=rented._replace(budgets_left=budgets_left),
            spent=spent,
            used=read_usage.run(setup, context),
            work_at_risk_by_job=_work_at_risk(snapshot.live_charges, jobs_with_charge, context)
            if setup.fleet.switches.spares_work
            else {},
        ),
        # A pending job is committed as it was decided, so its version stays.
        versions={**_versions_of(stored), **loaded.versions, **_versions_of(running)},
    )


def _work_at_risk(charges: Iterable[Charge], holders: Mapping[str, Job], context: Context) -> dict[str, float]:
    """Return the work that each holder of a charge would lose, estimated without reading its checkpoints."""
    usual = context.policy.economy.expected_checkpoint_seconds
    return {
        charge.job_id: round(charge.accelerators * charge_lost_work(charge, holders[charge.job_id], usual, context.now))
        for charge in charges
        if charge.admitted_at and charge.job_id in holders
    }


def _read_jobs(ledger: Ledger, keys: Iterable[Key]) -> dict[str, tuple[Job, int]]:
    stored = get_all(ledger, keys).values()
    return {job.job_id: (job, row.version) for row, job in rows.readable(stored, Job)}


def _jobs_by_id(stored: StoredJobs) -> dict[str, Job]:
    return {name: job for name, (job, _) in stored.items()}


def _versions_of(stored: StoredJobs) -> dict[str, int]:
    return {name: version for name, (_, version) in stored.items()}


# ---------------------------------------------------------------- clusters


class _ClusterFacts(NamedTuple):
    """The facts that were read of one cluster."""

    workloads: Sequence[tuple[Attempt, ObservedWorkload]]
    in_use: Mapping[str, Resources]
    nodes: tuple[KubernetesNode, ...]
    kueue_namespaces: Mapping[str, str]
    provider_nodes: Sequence[ProviderNode]
    pods: Sequence[UnmanagedPod]


class _NodeLists(NamedTuple):
    """Reads of the nodes that are under way. A list of nodes is the longest read of a cycle."""

    of: Mapping[str, Future[tuple[KubernetesNode, ...]]]
    """Cluster → its node objects."""
    stored: Future[tuple[FleetNode, ...]]
    """The nodes of the last sweep."""

    @classmethod
    def start(cls, readers: ThreadPoolExecutor, context: Context) -> "_NodeLists":
        """Start the reads of all clusters."""
        lists = {name: readers.submit(context.cluster.nodes, name) for name in context.site.clusters}
        return cls(lists, readers.submit(stored_nodes.load, context))


def _with_clusters(loaded: LoadedCycle, rented: RentalBook, lists: _NodeLists, context: Context) -> LoadedCycle:
    """Read the nodes, pods and Jobs of each cluster, and the state of the serving workloads."""
    snapshot, policy, names = loaded.snapshot, context.policy, context.site.clusters
    serving_clusters = frozenset(workload.cluster for workload in policy.scheduling.serving)
    clusters, errors = _read_clusters(serving_clusters, lists, context)
    workloads = [(name, workload) for name, facts in clusters.items() for _, workload in facts.workloads]
    in_use = {(name, node): amounts for name, facts in clusters.items() for node, amounts in facts.in_use.items()}
    nodes = [node for name in names if name in clusters for node in clusters[name].nodes]
    provider_nodes = clusters[names[0]].provider_nodes if names[0] in clusters else ()
    unhealthy = unhealthy_nodes.unhealthy_among(nodes, context)
    used = resources_taken(in_use, snapshot.live_charges, workloads)
    capacities = node_capacity(join_nodes(nodes, provider_nodes, names[0]), used, unhealthy)
    capacities = rented.reserve_nodes(capacities, snapshot.pending.values(), policy.burst.pools)
    return loaded._replace(
        snapshot=snapshot._replace(
            capacities=with_reservation_ends(capacities, policy),
            kueue_namespaces={
                (name, namespace): shown_by
                for name, facts in clusters.items()
                for namespace, shown_by in facts.kueue_namespaces.items()
            },
            unreadable_clusters=frozenset(errors),
            rented=rented,
            serving_pods={name: facts.pods for name, facts in clusters.items() if name in serving_clusters},
            serving_states=rentals.serving_states(policy.scheduling.serving, context.ledger),
        ),
        errors=errors,
    )


def _read_clusters(
    serving_clusters: frozenset[str], lists: _NodeLists, context: Context
) -> tuple[dict[str, _ClusterFacts], dict[str, EvenkeelError]]:
    """Read each cluster by itself, and HyperPod's records with the first cluster. A failed read leaves its cluster out.

    Args:
        serving_clusters: Clusters with serving workloads: their pods are read, too.
        lists: The nodes, whose reads have started.
        context: Names the clusters.
    """
    facts: dict[str, _ClusterFacts] = {}
    errors: dict[str, EvenkeelError] = {}
    cluster, names = context.cluster, context.site.clusters
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
        reads = {
            name: (
                readers.submit(cluster.pods_in_use, name),
                readers.submit(cluster.kueue_namespaces, name),
                readers.submit(cluster.pods, name) if name in serving_clusters else None,
            )
            for name in names
        }
        # The attempts of one cluster are read while the lists of other clusters load.
        owned = {name: _owned_workloads(name, pods, context) for name, (pods, _, _) in reads.items()}
    for name, (pods, namespaces, serving) in reads.items():
        try:
            movable, nodes, stored = pods.result().movable, lists.of[name].result(), lists.stored.result()
            facts[name] = _ClusterFacts(
                owned[name],
                stored_nodes.with_bound_pods(name, movable, nodes, stored, context),
                nodes,
                namespaces.result(),
                provider_records.load(nodes, stored, context) if name == names[0] else (),
                serving.result() if serving else (),
            )
        except EvenkeelError as error:
            errors[name] = error
    return facts, errors


def _owned_workloads(
    name: str, read: Future[PodsInUse], context: Context
) -> Sequence[tuple[Attempt, ObservedWorkload]]:
    """Return the workloads of a cluster that belong to attempts; none if the cluster could not be read."""
    try:
        listed = read.result().attempts
    except EvenkeelError:
        return ()  # `_read_clusters` reports the error
    return attempt_record.owned_workloads(context.ledger, ((name, workload) for workload in listed))
