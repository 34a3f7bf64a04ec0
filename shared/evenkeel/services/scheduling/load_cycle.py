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
from evenkeel.domain.admission.build_request import with_reservation_ends
from evenkeel.domain.admission.cycle_plan import MissingFacts
from evenkeel.domain.admission.cycle_snapshot import CycleSnapshot
from evenkeel.domain.admission.decide_cycle import draining_teams, is_strict
from evenkeel.domain.admission.departure_plan import ending_reservations
from evenkeel.domain.admission.queue_cursors import ALL_JOBS, QueueCursors, queues_to_read
from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import node_capacity
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.jobs.charge import Charge, resources_in_use_or_charged
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import FleetNode, KubernetesNode, ProviderNode, join_nodes
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.recovery.holds import Holds
from evenkeel.domain.recovery.resume import charge_lost_work
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.resources import Resources
from evenkeel.ports import EvenkeelError, Key, Ledger, Page, PodsInUse, Row, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.rentals import rentals
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage import (
    attempt_record,
    charge_rows,
    fleet_rows,
    job_rows,
    past_jobs,
    provider_nodes,
    quota_rows,
    rows,
    stored_nodes,
    team_setup,
)
from evenkeel.services.storage.quota_tree import stored_state

_PAGES_PER_PARKED_QUEUE = 4
"""Pages that a cycle reads at once after the first page of a queue, if all jobs of that page are parked."""
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
    charges: charge_rows.Charges = charge_rows.Charges()
    outdated: tuple[Row, ...] = ()
    """Rows of released charges that no job needs now."""
    cursors_row: Row | None = None
    """The row of the queue cursors; None if no queue is longer than its first page."""
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
        setup=team_setup.load_setup(context.ledger).setup,
        scheduler_state=stored_state(tree),
        automation_hold_reason=_automation_hold_reason(context),
    )
    queues = _read_queues(snapshot, context)
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return _read_jobs_and_charges(LoadedCycle(tree, snapshot), queues, ElasticState(), context.ledger)
    # The rentals are read before the charges and the nodes.
    rental_book = rentals.load(context.ledger)
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
        # Pending jobs need the nodes, whatever is read next.
        lists = _NodeLists.start(readers, context) if queues.keys else None
        loaded = _read_jobs_and_charges(
            LoadedCycle(tree, snapshot), queues, snapshot.scheduler_state.elastic, context.ledger
        )
        if _has_nothing_to_decide(loaded.snapshot, rental_book, context):
            return loaded
        loaded = _read_clusters_and_nodes(loaded, rental_book, lists or _NodeLists.start(readers, context), context)
    return _read_quotas(loaded, context)


def read_fleet(loaded: LoadedCycle, context: Context) -> LoadedCycle:
    """Read the facts that only rentals need where Kueue admits: the tree, the rentals, the nodes and the budgets.

    The attempts of the live charges are read, too. Kueue chose their nodes, so their charges lack them.
    """
    tree = context.ledger.get(quota_rows.tree_key()) or Row(quota_rows.tree_key(), {})
    snapshot = loaded.snapshot._replace(scheduler_state=stored_state(tree))
    rental_book = rentals.load(context.ledger)
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
        lists = _NodeLists.start(readers, context)
        keys = [job_rows.attempt_key(charge.job_id, charge.attempt) for charge in snapshot.live_charges]
        stored = get_all(context.ledger, keys).values()
        attempts = {attempt.job_id: attempt for _, attempt in rows.readable_rows(stored, Attempt)}
        charges = tuple(
            charge.on_nodes_of(attempts[charge.job_id]) if charge.job_id in attempts else charge
            for charge in snapshot.live_charges
        )
        snapshot = snapshot._replace(live_charges=charges, attempts=tuple(attempts.values()))
        loaded = _read_clusters_and_nodes(loaded._replace(tree=tree, snapshot=snapshot), rental_book, lists, context)
    return _read_quotas(loaded, context)


def read_missing(loaded: LoadedCycle, missing: MissingFacts, context: Context) -> LoadedCycle:
    """Read the facts that a plan named as missing."""
    if missing.queues:
        return _read_later_pages(loaded, missing.queues, context)
    stored_jobs = _read_jobs(context.ledger, map(job_rows.job_key, missing.jobs))
    loaded = loaded._replace(
        snapshot=loaded.snapshot._replace(
            jobs_with_charge={**loaded.snapshot.jobs_with_charge, **_jobs_by_id(stored_jobs)}
        ),
        versions={**loaded.versions, **_versions_of(stored_jobs)},
    )
    jobs = (loaded.snapshot.known_job(job_id) for job_id in missing.attempts_of)
    return loaded._replace(
        snapshot=loaded.snapshot._replace(
            shortages=rentals.read_shortages(context.ledger)[0] if missing.needs_shortages else None,
            past_jobs=past_jobs.load_past_jobs(context.ledger) if missing.needs_past_jobs else (),
            attempts=rentals.read_attempts(context.ledger, (job for job in jobs if job)),
        )
    )


# ---------------------------------------------------------------- queues


class _QueuedJobKeys(NamedTuple):
    """Keys of pending jobs. Each job is read by its key afterwards, since the index of pending jobs may lag."""

    keys: tuple[Key, ...]
    cursor_after_first_page: Mapping[str, str]
    """Team whose queue is longer than a page → the cursor after that page."""
    cursors_of_next_cycle: QueueCursors | None
    cursors_row: Row | None
    may_read_later_pages: bool = False
    """Whether the cycle can examine jobs of later pages, too."""


def _automation_hold_reason(context: Context) -> str:
    row = context.ledger.get(fleet_rows.hold_key())
    hold = rows.decode(row, Holds).scheduling_hold(context.now) if row else None
    return hold.wait_reason if hold else ""


def _read_queues(snapshot: CycleSnapshot, context: Context) -> _QueuedJobKeys:
    """Read the first page of each queue, and one more page of as many long queues as a cycle can examine."""
    ledger, setup, policy = context.ledger, snapshot.setup, context.policy.scheduling
    page_size = policy.jobs_per_first_page(len(setup.by_name))
    # If all pending jobs fit on one page, no team's queue has more. Jobs older than the teams come first on the page.
    first_page = ledger.by_state(Table.JOBS, _PENDING, limit=page_size)
    keys = [row.key for row in first_page.rows]
    cursor_after_first_page: dict[str, str] = {ALL_JOBS: first_page.cursor} if first_page.cursor else {}
    teams = tuple(setup.by_name) if first_page.cursor else ()
    for team, page in _read_pages([(team, page_size, None) for team in teams], ledger):
        keys += [row.key for row in page.rows]
        if page.cursor:
            cursor_after_first_page[team] = page.cursor
    if not cursor_after_first_page:
        return _QueuedJobKeys(tuple(keys), {}, None, None)
    later_keys, cursors, cursors_row = _read_next_pages(setup, cursor_after_first_page, policy, ledger)
    # A job that waits until its victims stop stays the head of its queue, wherever it is listed.
    first_keys = map(
        job_rows.job_key, (*snapshot.scheduler_state.sticky.values(), *(job_id for job_id, _ in cursors.barriers))
    )
    may_read_later_pages = (
        len(keys) + len(later_keys) + policy.jobs_per_page * _PAGES_PER_PARKED_QUEUE <= policy.examined_jobs_limit
    )
    return _QueuedJobKeys(
        (*first_keys, *keys, *later_keys), cursor_after_first_page, cursors, cursors_row, may_read_later_pages
    )


def _read_pages(queries: Iterable[tuple[str, int, str | None]], ledger: Ledger) -> list[tuple[str, Page]]:
    """Read a page of several queues in parallel. A query is a team, a number of jobs and a cursor."""
    with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
        reads = [(team, readers.submit(_read_page, ledger, team, limit, cursor)) for team, limit, cursor in queries]
    return [(team, read.result()) for team, read in reads]


def _read_page(ledger: Ledger, team: str, limit: int, cursor: str | None) -> Page:
    return ledger.by_state(Table.JOBS, _PENDING, prefix=_queue_prefix(team), limit=limit, cursor=cursor)


def _read_next_pages(
    setup: TeamSetup, cursor_after_first_page: Mapping[str, str], policy: SchedulingPolicy, ledger: Ledger
) -> tuple[list[Key], QueueCursors, Row]:
    """Load the next page of long queues, from the stored cursors. In a strict queue no job may pass the head.

    If there are more long queues than a cycle can examine, each cycle reads the queues after the last cycle's queues.
    """
    cursors_row = ledger.get(quota_rows.queue_cursors_key()) or Row(quota_rows.queue_cursors_key(), {})
    stored_cursors: dict[str, str] = cursors_row.doc.get("cursors", {})
    long_queues = sorted(team for team in cursor_after_first_page if not is_strict(team, setup))
    queues_this_cycle = queues_to_read(long_queues, cursors_row.doc.get("turn"), policy.long_queues_per_cycle)
    keys: list[Key] = []
    other_queues = set(long_queues) - set(queues_this_cycle)
    page_starts = {team: cursor for team, cursor in stored_cursors.items() if team in other_queues}
    last_queue = queues_this_cycle[-1] if len(queues_this_cycle) < len(long_queues) else None
    cursors = QueueCursors(page_starts, last_queue=last_queue)
    limit = policy.jobs_per_page * _PAGES_PER_LONG_QUEUE
    queries = [(team, limit, stored_cursors.get(team, cursor_after_first_page[team])) for team in queues_this_cycle]
    for team, page in _read_pages(queries, ledger):
        # The queue of each team is read by itself.
        keys += [row.key for row in page.rows if team or row.doc.get("queue", "") not in setup.by_name]
        if page.cursor:
            page_starts[team] = page.cursor
        if team == ALL_JOBS and not setup.has_teams:
            cursors = cursors._replace(
                page_jobs=frozenset(str(row.doc["jobId"]) for row in page.rows),
                page_start=stored_cursors.get(team, cursor_after_first_page[team]),
                barriers=tuple((str(job_id), str(at)) for job_id, at in cursors_row.doc.get("barriers", ())),
            )
    return keys, cursors, cursors_row


def _read_later_pages(loaded: LoadedCycle, teams: Iterable[str], context: Context) -> LoadedCycle:
    """Read several pages at once after the first pages of these queues, until the cycle has enough jobs to examine."""
    snapshot, policy = loaded.snapshot, context.policy.scheduling
    limit = policy.jobs_per_page * _PAGES_PER_PARKED_QUEUE
    pending, versions = dict(snapshot.pending), dict(loaded.versions)
    cursor_after_read, cursors = dict(snapshot.cursor_after_read), snapshot.cursors_of_next_cycle
    charged_jobs = frozenset(charge.job_id for charge in snapshot.charges())
    for team in teams:
        if len(pending) >= policy.examined_jobs_limit:
            break
        page = context.ledger.by_state(
            Table.JOBS, _PENDING, prefix=_queue_prefix(team), limit=limit, cursor=cursor_after_read.pop(team)
        )
        jobs = _read_jobs(context.ledger, (row.key for row in page.rows))
        # A job whose charge this cycle still sees as live was settled since. The next cycle decides about it.
        pending_jobs = {
            job_id: entry
            for job_id, entry in jobs.items()
            if entry[0].state is JobState.PENDING and job_id not in charged_jobs
        }
        pending |= _jobs_by_id(pending_jobs)
        versions |= _versions_of(pending_jobs)
        if cursors is not None and team == ALL_JOBS:
            cursors = cursors._replace(
                page_jobs=cursors.page_jobs - jobs.keys()
            )  # the cycle read these jobs in order, without a gap
        if page.cursor:
            cursor_after_read[team] = page.cursor
    return loaded._replace(
        snapshot=snapshot._replace(pending=pending, cursor_after_read=cursor_after_read, cursors_of_next_cycle=cursors),
        versions=versions,
    )


def _queue_prefix(team: str) -> str:
    return "" if team == ALL_JOBS else job_rows.queue_prefix(team)


# ---------------------------------------------------------------- jobs and charges


def _read_jobs_and_charges(
    loaded: LoadedCycle, queues: _QueuedJobKeys, elastic_state: ElasticState, ledger: Ledger
) -> LoadedCycle:
    """Read the charges, and after them the pending jobs and the elastic jobs.

    An interrupted job is found even if the index does not list it yet: its released charge names it.

    Raises:
        Conflict: an attempt is being settled at this instant.
    """
    charges = charge_rows.load_charges(ledger)
    elastic_ids = {*(charge.job_id for charge in charges.live if charge.is_elastic), *elastic_state.resizing}
    elastic = _read_jobs(ledger, map(job_rows.job_key, sorted(elastic_ids)))
    jobs = {**_read_jobs(ledger, (*map(job_rows.job_key, charges.released_job_ids), *queues.keys)), **elastic}
    charges = charges.as_of(jobs)
    snapshot = loaded.snapshot._replace(
        pending={job_id: job for job_id, (job, _) in jobs.items() if job.state is JobState.PENDING},
        elastic=_jobs_by_id(elastic),
        live_charges=charges.live,
        released_charges=tuple(charge for charge, _ in charges.released),
        cursor_after_read=queues.cursor_after_first_page if queues.may_read_later_pages else {},
        cursor_after_first_page=queues.cursor_after_first_page,
        cursors_of_next_cycle=queues.cursors_of_next_cycle,
    )
    return loaded._replace(
        snapshot=snapshot,
        versions=_versions_of(jobs),
        charges=charges,
        outdated=charges.unneeded_rows(jobs),
        cursors_row=queues.cursors_row,
    )


def _has_nothing_to_decide(snapshot: CycleSnapshot, rental_book: RentalBook, context: Context) -> bool:
    """Whether there is nothing to decide, so that no cluster has to be read."""
    ending = ending_reservations(context.policy, context.now)
    return not (
        snapshot.pending
        or draining_teams(snapshot.setup)
        or rental_book.rentals
        or snapshot.scheduler_state.elastic.is_in_use
        or any(workload.rents_from for workload in context.policy.scheduling.serving)
        or any((charge.cluster, charge.pool) in ending for charge in snapshot.live_charges)
    )


def _read_quotas(loaded: LoadedCycle, context: Context) -> LoadedCycle:
    """Read the jobs that hold charges, and the spending and use of the teams."""
    snapshot, policy = loaded.snapshot, context.policy
    setup = snapshot.setup
    if not setup.has_teams:
        return loaded
    stored_jobs = _read_jobs(context.ledger, (job_rows.job_key(charge.job_id) for charge in snapshot.live_charges))
    running = {job_id: entry for job_id, entry in stored_jobs.items() if job_id not in snapshot.pending}
    jobs_with_charge, rental_book = _jobs_by_id(stored_jobs), snapshot.rental_book
    spent = rentals.spent_by_period(setup, context, rental_book.rentals)
    budgets_left = (
        remaining_by_team(setup, spent, snapshot.live_charges, rental_book.rentals, policy.economy, context.now)
        if policy.burst.pools
        else {}
    )
    return loaded._replace(
        snapshot=snapshot._replace(
            jobs_with_charge=jobs_with_charge,
            # The later read of an elastic job counts.
            elastic={job_id: jobs_with_charge.get(job_id, job) for job_id, job in snapshot.elastic.items()},
            rental_book=rental_book._replace(budgets_left=budgets_left),
            spent=spent,
            used=read_usage.run(setup, context),
            work_at_risk_by_job=_work_at_risk(snapshot.live_charges, jobs_with_charge, context)
            if setup.fleet.switches.spares_work
            else {},
        ),
        # A pending job is committed as it was decided, so its version stays.
        versions={**_versions_of(stored_jobs), **loaded.versions, **_versions_of(running)},
    )


def _work_at_risk(charges: Iterable[Charge], jobs_with_charge: Mapping[str, Job], context: Context) -> dict[str, float]:
    """Return the work that each holder of a charge would lose, estimated without reading its checkpoints."""
    usual = context.policy.economy.expected_checkpoint_seconds
    return {
        charge.job_id: round(
            charge.accelerators * charge_lost_work(charge, jobs_with_charge[charge.job_id], usual, context.now)
        )
        for charge in charges
        if charge.admitted_at and charge.job_id in jobs_with_charge
    }


def _read_jobs(ledger: Ledger, keys: Iterable[Key]) -> dict[str, tuple[Job, int]]:
    found_rows = get_all(ledger, keys).values()
    return {job.job_id: (job, row.version) for row, job in rows.readable_rows(found_rows, Job)}


def _jobs_by_id(stored_jobs: StoredJobs) -> dict[str, Job]:
    return {job_id: job for job_id, (job, _) in stored_jobs.items()}


def _versions_of(stored_jobs: StoredJobs) -> dict[str, int]:
    return {job_id: version for job_id, (_, version) in stored_jobs.items()}


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

    nodes_by_cluster: Mapping[str, Future[tuple[KubernetesNode, ...]]]
    last_sweep: Future[tuple[FleetNode, ...]]
    """The nodes of the last sweep."""

    @classmethod
    def start(cls, readers: ThreadPoolExecutor, context: Context) -> "_NodeLists":
        """Start the reads of all clusters."""
        lists = {name: readers.submit(context.cluster.nodes, name) for name in context.site.clusters}
        return cls(lists, readers.submit(stored_nodes.load_stored_nodes, context))


def _read_clusters_and_nodes(
    loaded: LoadedCycle, rental_book: RentalBook, lists: _NodeLists, context: Context
) -> LoadedCycle:
    """Read the nodes, pods and Jobs of each cluster, and the state of the serving workloads."""
    snapshot, policy, names = loaded.snapshot, context.policy, context.site.clusters
    serving_clusters = frozenset(workload.cluster for workload in policy.scheduling.serving)
    clusters, errors = _read_each_cluster(serving_clusters, lists, context)
    workloads = [(name, workload) for name, facts in clusters.items() for _, workload in facts.workloads]
    in_use = {(name, node): amounts for name, facts in clusters.items() for node, amounts in facts.in_use.items()}
    nodes = [node for name in names if name in clusters for node in clusters[name].nodes]
    provider_nodes = clusters[names[0]].provider_nodes if names[0] in clusters else ()
    unhealthy = unhealthy_nodes.unhealthy_among(nodes, context)
    used = resources_in_use_or_charged(in_use, snapshot.live_charges, workloads)
    capacities = node_capacity(join_nodes(nodes, provider_nodes, names[0]), used, unhealthy)
    capacities = rental_book.reserve_nodes(capacities, snapshot.pending.values(), policy.burst.pools)
    return loaded._replace(
        snapshot=snapshot._replace(
            capacities=with_reservation_ends(capacities, policy),
            kueue_namespaces={
                (name, namespace): shown_by
                for name, facts in clusters.items()
                for namespace, shown_by in facts.kueue_namespaces.items()
            },
            unreadable_clusters=frozenset(errors),
            rental_book=rental_book,
            serving_pods={name: facts.pods for name, facts in clusters.items() if name in serving_clusters},
            serving_states=rentals.serving_states(policy.scheduling.serving, context.ledger),
        ),
        errors=errors,
    )


def _read_each_cluster(
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
            movable, last_sweep = pods.result().movable, lists.last_sweep.result()
            nodes = lists.nodes_by_cluster[name].result()
            facts[name] = _ClusterFacts(
                owned[name],
                stored_nodes.requests_by_node(name, movable, nodes, last_sweep, context),
                nodes,
                namespaces.result(),
                provider_nodes.load_provider_nodes(nodes, last_sweep, context) if name == names[0] else (),
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
        return ()  # `_read_each_cluster` reports the error
    return attempt_record.owned_workloads(context.ledger, ((name, workload) for workload in listed))
