"""Load step of a scheduling cycle: read the quota tree, queues, charges, jobs and clusters into one snapshot.

    tree ─ set-up ─ queues ─ rentals ─┬─ charges ─ jobs ─ Jobs and pods ────────────┬─ spending   (the order matters)
                                      ├─ nodes of each cluster ─────────────────────┤
                                      └─ rows of nodes ─────────────────────────────┘

A rental or a pod that changes between two reads may count twice, but a cycle never misses it. A cycle reads the jobs
after the charges, so it sees freed quota only together with the job that released it (docs/decisions/0023). It reads
the nodes after the rentals, so a node whose rental ends never looks free.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.scheduler_state import ElasticState
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.recovery.resume_options import charge_lost_work
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.scheduling.cycle_plan import MissingFacts
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.decide_cycle import draining_teams
from evenkeel.domain.scheduling.departure_plan import ending_reservations
from evenkeel.ports import Ledger, Row, Table, every, get_all
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import read_usage
from evenkeel.services.scheduling.load_clusters import NodeLists, read_clusters_and_nodes
from evenkeel.services.scheduling.load_queues import QueuedJobKeys, read_later_pages, read_queues
from evenkeel.services.scheduling.loaded_cycle import READS_AT_ONCE, LoadedCycle, jobs_by_id, read_jobs, versions_of
from evenkeel.services.storage import charge_rows, past_jobs, scheduling_hold, team_setup
from evenkeel.services.storage.quota_tree import stored_state
from evenkeel.services.tables import job_rows, quota_rows, rows

_CHARGES_READ_BY_KEY = 400
"""A cycle reads the jobs of up to this number of charges by their keys. Above it, the cycle lists the jobs by state."""
_STATES_WITH_CHARGE = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


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
        automation_hold_reason=scheduling_hold.wait_reason(context),
    )
    queues = read_queues(snapshot, context)
    if snapshot.authority is AdmissionAuthority.KUEUE:
        return _read_jobs_and_charges(LoadedCycle(tree, snapshot), queues, ElasticState(), context.ledger)
    # The rentals are read before the charges and the nodes.
    rental_book = rental_store.load(context.ledger)
    with ThreadPoolExecutor(max_workers=READS_AT_ONCE) as readers:
        # Pending jobs need the nodes, whatever is read next.
        lists = NodeLists.start(readers, context) if queues.keys else None
        loaded_cycle = _read_jobs_and_charges(
            LoadedCycle(tree, snapshot), queues, snapshot.scheduler_state.elastic, context.ledger
        )
        if _has_nothing_to_decide(loaded_cycle.snapshot, rental_book, context):
            return loaded_cycle
        loaded_cycle = read_clusters_and_nodes(
            loaded_cycle, rental_book, lists or NodeLists.start(readers, context), context
        )
    return _read_quotas(loaded_cycle, context)


def read_fleet(loaded_cycle: LoadedCycle, context: Context) -> LoadedCycle:
    """Read the quota tree, the rentals, the nodes and the budgets. Where Kueue admits jobs, only rentals need them.

    The attempts of the live charges are read, too. Kueue chose their nodes, so their charges lack them.
    """
    tree = context.ledger.get(quota_rows.tree_key()) or Row(quota_rows.tree_key(), {})
    snapshot = loaded_cycle.snapshot._replace(scheduler_state=stored_state(tree))
    rental_book = rental_store.load(context.ledger)
    with ThreadPoolExecutor(max_workers=READS_AT_ONCE) as readers:
        lists = NodeLists.start(readers, context)
        keys = [job_rows.attempt_key(charge.job_id, charge.attempt) for charge in snapshot.live_charges]
        stored_rows = get_all(context.ledger, keys).values()
        attempts = {attempt.job_id: attempt for _, attempt in rows.readable_rows(stored_rows, Attempt)}
        charges = tuple(
            charge.on_nodes_of(attempts[charge.job_id]) if charge.job_id in attempts else charge
            for charge in snapshot.live_charges
        )
        snapshot = snapshot._replace(live_charges=charges, attempts=tuple(attempts.values()))
        loaded_cycle = read_clusters_and_nodes(
            loaded_cycle._replace(tree=tree, snapshot=snapshot), rental_book, lists, context
        )
    return _read_quotas(loaded_cycle, context)


def read_missing(loaded_cycle: LoadedCycle, missing_facts: MissingFacts, context: Context) -> LoadedCycle:
    """Read the facts that a plan named as missing."""
    if missing_facts.queues:
        return read_later_pages(loaded_cycle, missing_facts.queues, context)
    stored_jobs = read_jobs(context.ledger, map(job_rows.job_key, missing_facts.jobs))
    loaded_cycle = loaded_cycle._replace(
        snapshot=loaded_cycle.snapshot._replace(
            jobs_with_charge={**loaded_cycle.snapshot.jobs_with_charge, **jobs_by_id(stored_jobs)}
        ),
        versions={**loaded_cycle.versions, **versions_of(stored_jobs)},
    )
    jobs = (loaded_cycle.snapshot.known_job(job_id) for job_id in missing_facts.attempts_of)
    return loaded_cycle._replace(
        snapshot=loaded_cycle.snapshot._replace(
            shortages=rental_store.read_shortages(context.ledger)[0] if missing_facts.needs_shortages else None,
            past_jobs=past_jobs.load_past_jobs(context.ledger) if missing_facts.needs_past_jobs else (),
            attempts=rental_store.read_attempts(context.ledger, (job for job in jobs if job)),
        )
    )


# ---------------------------------------------------------------- jobs and charges


def _read_jobs_and_charges(
    loaded_cycle: LoadedCycle, queues: QueuedJobKeys, elastic_state: ElasticState, ledger: Ledger
) -> LoadedCycle:
    """Read the charges, and after them the pending jobs and the elastic jobs.

    A released charge names an interrupted job, even if the index does not list the job yet.

    Raises:
        Conflict: an attempt is being settled at this instant.
    """
    charges = charge_rows.load_charges(ledger)
    elastic_ids = {*(charge.job_id for charge in charges.live if charge.is_elastic), *elastic_state.resizing}
    elastic = read_jobs(ledger, map(job_rows.job_key, sorted(elastic_ids)))
    jobs = {**read_jobs(ledger, (*map(job_rows.job_key, charges.released_job_ids), *queues.keys)), **elastic}
    charges = charges.as_of(jobs)
    snapshot = loaded_cycle.snapshot._replace(
        pending={job_id: job for job_id, (job, _) in jobs.items() if job.state is JobState.PENDING},
        elastic=jobs_by_id(elastic),
        live_charges=charges.live,
        released_charges=tuple(charge for charge, _ in charges.released),
        cursor_after_read=queues.cursor_after_first_page if queues.may_read_later_pages else {},
        cursor_after_first_page=queues.cursor_after_first_page,
        cursors_of_next_cycle=queues.cursors_of_next_cycle,
    )
    return loaded_cycle._replace(
        snapshot=snapshot,
        versions=versions_of(jobs),
        charges=charges,
        outdated=charges.unneeded_rows(jobs),
        cursors_row=queues.cursors_row,
        heads=queues.heads,
    )


def _has_nothing_to_decide(snapshot: CycleSnapshot, rental_book: RentalBook, context: Context) -> bool:
    """Whether there is nothing to decide, so that no cluster has to be read."""
    ending_pools = ending_reservations(context.policy, context.now)
    return not (
        snapshot.pending
        or draining_teams(snapshot.setup)
        or rental_book.rentals
        or snapshot.scheduler_state.elastic.is_in_use
        or any(workload.rents_from for workload in context.policy.scheduling.serving)
        or any((charge.cluster, charge.pool) in ending_pools for charge in snapshot.live_charges)
    )


def _read_quotas(loaded_cycle: LoadedCycle, context: Context) -> LoadedCycle:
    """Read the jobs that hold charges, and the spending and use of the teams."""
    snapshot, policy = loaded_cycle.snapshot, context.policy
    setup = snapshot.setup
    if not setup.has_teams:
        return loaded_cycle
    stored_jobs = _read_charged_jobs(snapshot.live_charges, context.ledger)
    running_jobs = {job_id: entry for job_id, entry in stored_jobs.items() if job_id not in snapshot.pending}
    jobs_with_charge, rental_book = jobs_by_id(stored_jobs), snapshot.rental_book
    spent = rental_store.spent_by_period(setup, context, rental_book.rentals)
    budgets_left = (
        remaining_by_team(setup, spent, snapshot.live_charges, rental_book.rentals, policy.economy, context.now)
        if policy.burst.pools
        else {}
    )
    return loaded_cycle._replace(
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
        versions={**versions_of(stored_jobs), **loaded_cycle.versions, **versions_of(running_jobs)},
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


def _read_charged_jobs(charges: Sequence[Charge], ledger: Ledger) -> dict[str, tuple[Job, int]]:
    """Read the jobs that hold charges: a few by their keys, and many from the index, which needs fewer reads.

    The index may lag. Then the next cycle sees a stop request or a priority, and the commit of a decision about an
    older version fails. If the index does not list a job with its charged attempt, the cycle reads the job by its key.
    """
    listed_jobs: dict[str, tuple[Job, int]] = {}
    if len(charges) > _CHARGES_READ_BY_KEY:
        attempts = {charge.job_id: charge.attempt for charge in charges}
        with ThreadPoolExecutor(max_workers=READS_AT_ONCE) as readers:
            lists = [readers.submit(_list_jobs, state, ledger) for state in _STATES_WITH_CHARGE]
        for row, job in rows.readable_rows((row for job_list in lists for row in job_list.result()), Job):
            if job.current_attempt == attempts.get(job.job_id):
                listed_jobs[job.job_id] = (job, row.version)
    return listed_jobs | read_jobs(
        ledger, (job_rows.job_key(charge.job_id) for charge in charges if charge.job_id not in listed_jobs)
    )


def _list_jobs(state: JobState, ledger: Ledger) -> tuple[Row, ...]:
    return tuple(every(lambda cursor: ledger.by_state(Table.JOBS, f"JOB#{state}", limit=10_000, cursor=cursor)))
