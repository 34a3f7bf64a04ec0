"""The queue position and expected start of a pending job."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.capacity.instance_types import is_accelerator
from evenkeel.domain.capacity.network_topology import known_domains
from evenkeel.domain.capacity.node_capacity import NodeCapacity, NodeKey, stored_capacity
from evenkeel.domain.capacity.start_estimates import ESTIMATE_METHOD, DomainDemand, estimate_start
from evenkeel.domain.jobs.charge import Charge, charged_resources
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.capacity import Tree
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.rental_book import reserve_rented_nodes
from evenkeel.domain.values import rfc3339
from evenkeel.domain.waiting import ConditionKind, Wait, WaitState, wait_name
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.jobs import check_fit
from evenkeel.services.queries.jobs import read_teams
from evenkeel.services.storage import charge_rows, pagination, past_jobs, team_setup
from evenkeel.services.tables import job_rows, rows, subject_rows

Json = dict[str, Any]

_MAX_AHEAD = 1000
_MAX_NODES = 5000


# ---------------------------------------------------------------- where a job stands


def queue_position(job: Job, context: Context) -> Json | None:
    """Return a pending job's position in its queue, and the estimate of its start; None if it is not pending.

    The position is unknown beyond the first thousand. There is no estimate before enough jobs of its team have run,
    nor while a charge cannot be read.
    """
    if job.state is JobState.STARTING:
        return _position_with_kueue(job, context.ledger)
    if job.state is not JobState.PENDING:
        return None
    prefix = job_rows.queue_prefix(job.queue) if job.queue else ""
    page = context.ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", prefix=prefix, limit=_MAX_AHEAD)
    names = [str(row.doc["jobId"]) for row in page.rows]
    if job.job_id not in names:
        return {"position": None, "estimate": None}
    index = names.index(job.job_id)
    return {"position": index + 1, "estimate": _estimate_start(job, page.rows[:index], context)}


def waits_with_kueue(job: Job, ledger: Ledger) -> Wait | None:
    """Return the state of a job that waits for Kueue; None if it does not."""
    if job.state is not JobState.STARTING:
        return None
    row = ledger.get(subject_rows.wait_key(job.job_id, wait_name(ConditionKind.ATTEMPT_ADMITTED, job.current_attempt)))
    wait = rows.decode(row, Wait) if row else None
    return wait if wait and wait.state is WaitState.OPEN and wait.kueue_status else None


def _position_with_kueue(job: Job, ledger: Ledger) -> Json | None:
    """Return its position among the Workloads of its LocalQueue. Only Kueue could know when it starts."""
    wait = waits_with_kueue(job, ledger)
    return {"position": wait.kueue_position, "estimate": None} if wait else None


def _estimate_start(job: Job, ahead: Sequence[Any], context: Context) -> Json | None:
    runs = [past_job.seconds for past_job in past_jobs.load_past_jobs(context.ledger) if past_job.team == job.spec.team]
    if len(runs) < context.policy.economy.min_samples:
        return None
    setup = team_setup.load_setup(context.ledger).setup
    charges, unreadable_count = charge_rows.readable_charges(context.ledger)
    if unreadable_count:
        return None  # the free quota is unknown
    if check_fit.why_never_fits(
        job, check_fit.read_configured_fleet(job.cluster, context.ledger), setup, context.policy, context.now
    ):
        return None
    capacities = reserve_rented_nodes(stored_node_capacity(context.ledger, charges), (), context.policy.burst.pools)
    free_accelerators = sum(
        capacity.free.accelerators for capacity in capacities if capacity.is_open and not capacity.reserved_for
    )
    in_domain = _domain_demand(job, capacities, charges, context.now)
    if job.queue in setup.by_name:
        free_accelerators = min(free_accelerators, _free_quota(job.queue, setup, charges))
        charges = tuple(charge for charge in charges if (charge.queue or charge.team) == job.queue)
    estimate = estimate_start(
        free_accelerators,
        [
            (charge.accelerators, (context.now - (charge.admitted_at or context.now)).total_seconds())
            for charge in charges
        ],
        [_total_accelerators(row.doc["spec"]) for row in ahead],
        job.spec.nodes * job.spec.accelerators_per_node,
        runs,
        in_domain,
    )

    def at(seconds: float | None) -> str | None:
        return None if seconds is None else rfc3339(context.now + timedelta(seconds=seconds))

    return {
        "startsAt": at(estimate.seconds),
        "earliestAt": at(estimate.earliest_seconds),
        "latestAt": at(estimate.latest_seconds),
        "samples": estimate.samples,
        "basis": ESTIMATE_METHOD,
    }


def _domain_demand(
    job: Job, capacities: Iterable[NodeCapacity], charges: Iterable[Charge], now: datetime
) -> DomainDemand | None:
    """Return the domains of the network level that a gang requires; None if it requires none."""
    level = job.spec.required_network_level
    if level is None or job.spec.nodes == 1:
        return None
    ran: dict[NodeKey, float] = {}
    for charge in charges:
        seconds = (now - (charge.admitted_at or now)).total_seconds()
        for name in charge.node_names:
            key = (charge.cluster, name)
            ran[key] = min(seconds, ran.get(key, seconds))
    open_nodes = [
        capacity
        for capacity in capacities
        if capacity.cluster == job.cluster and capacity.is_open and not capacity.reserved_for
    ]
    domains = known_domains(open_nodes, level)
    return DomainDemand(
        level, job.spec.nodes, [[ran.get(capacity.node_key) for capacity in domain] for domain in domains]
    )


def _total_accelerators(spec: Json) -> int:
    return int(spec["nodes"]) * int(spec["acceleratorsPerNode"])


def _free_quota(queue: str, setup: TeamSetup, charges: Iterable[Charge]) -> int:
    quota_tree = setup.scheduler_declarations
    tree = Tree(quota_tree.queues, quota_tree.cohorts)
    for name, amounts in read_teams.use_by_team(setup, charges).items():
        tree.queues[name].add_all(amounts)
    quota_node = tree.queues[queue]
    return sum(quota_node.free(key) for key in quota_node.quotas if is_accelerator(key[1]))


# ---------------------------------------------------------------- the stored nodes


def stored_node_capacity(ledger: Ledger, charges: Iterable[Charge]) -> tuple[NodeCapacity, ...]:
    """Return the capacity of the nodes as the last sweep stored them. Charges count before their pods exist."""
    node_rows, _ = pagination.read_partition(ledger, Table.FLEET, "NODE", at_most=_MAX_NODES, keep=is_present)
    nodes = [node for _, node in rows.readable_rows(node_rows, FleetNode)]
    unhealthy_by_node = unhealthy_nodes.load_unhealthy_nodes(ledger)
    unhealthy = {
        (node.life.cluster, node.node_name)
        for node in nodes
        if unhealthy_nodes.is_unhealthy_node(node, unhealthy_by_node)
    }
    return stored_capacity(nodes, charged_resources(charges), unhealthy)


def is_present(row: Row) -> bool:
    """Whether a node that is stored in a row is not gone."""
    return not row.doc.get("isGone")
