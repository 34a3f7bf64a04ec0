"""Whether a job could ever start on the configured fleet.

The admission rules are applied to the job alone, as if every node of the fleet were idle and no other job held quota.
Nodes that are down, cordoned, tainted or being replaced count as if they were in service. Only a job that the rules
refuse even then is refused. On a fleet that no sweep has read, no job is refused.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.build_request import with_default_amounts
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.network_topology import has_position
from evenkeel.domain.capacity.node_capacity import NodeCapacity, idle_capacity
from evenkeel.domain.capacity.pod_shares import NodeShares, amounts_of
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.validation import SpecError
from evenkeel.domain.kueue.objects import StopPolicy
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.candidates import nodes_to_rent
from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.ports import Ledger, Table
from evenkeel.services.storage import heartbeats, pagination
from evenkeel.services.tables import rows

MAX_NODES = 5000
_UNKNOWN_ACCELERATORS = 1024
"""Accelerators of a node if neither its node object nor the catalogue states them."""


class ConfiguredFleet(NamedTuple):
    """The nodes of a cluster when all of them are in service."""

    capacities: tuple[NodeCapacity, ...] = ()
    is_complete: bool = False
    """Whether a sweep has read the cluster, and all its nodes are here."""


def read_configured_fleet(cluster: str, ledger: Ledger) -> ConfiguredFleet:
    """Return a cluster's nodes as the last sweeps stored them, including gone nodes: they may be replaced."""
    node_rows, is_cut = pagination.read_partition(ledger, Table.FLEET, "NODE", at_most=MAX_NODES)
    readable_nodes = [node for _, node in rows.readable_rows(node_rows, FleetNode)]
    nodes = [node for node in readable_nodes if node.life.cluster == cluster]
    # A node slot counts once, even if several nodes were in it one after the other.
    by_slot = {node.slot or node.life.key: node for node in nodes}
    is_read = len(readable_nodes) == len(node_rows) and not is_cut
    is_complete = bool(nodes) and is_read and not _has_unread_source(cluster, ledger)
    return ConfiguredFleet(tuple(map(_capacity_when_idle, by_slot.values())), is_complete)


def _has_unread_source(cluster: str, ledger: Ledger) -> bool:
    """Whether a source of this cluster's nodes failed and never answered. Then some nodes are unknown."""
    reports = heartbeats.load_source_reports(ledger)
    sources = (Source(kind=SourceKind.KUBERNETES_LIST, target=cluster), Source(kind=SourceKind.HYPERPOD))
    source_reports = (reports.get(source.name) for source in sources)
    return any(report is not None and report.seen_at is None for report in source_reports)


def _capacity_when_idle(node: FleetNode) -> NodeCapacity:
    amounts = amounts_of(node.instance_type, node.allocatable)
    # A node without a node object may offer whatever its instance type has.
    allocatable = node.allocatable.at_least(amounts.replace(cpu_millis=0, memory_mib=0))
    if amounts == NONE:
        allocatable = Resources(accelerators=_UNKNOWN_ACCELERATORS)
    return idle_capacity(node, allocatable)


def why_never_fits(
    job: Job, fleet: ConfiguredFleet, setup: TeamSetup, policy: Policy, now: datetime
) -> SpecError | None:
    """Return the field that keeps a job from ever starting, with the reason; None if the job may start one day.

    Args:
        job: The job as it would be queued.
        fleet: The nodes of its cluster.
        setup: The present teams and quotas.
        policy: Names the pools to rent from and the spare nodes.
        now: The time.
    """
    if not fleet.is_complete:
        return None
    team = setup.by_name.get(job.queue)
    if setup.has_teams and (team is None or team.queue.stop is not StopPolicy.NONE):
        return None  # a stopped queue starts no job, but it may be resumed at any time

    def decide(spec: JobSpec) -> AdmissionDecision:
        return _decide_on_configured_fleet(job.replace(spec=spec), fleet, setup, policy, now)

    if job.spec.required_network_level and _shows_some_locations_only(fleet.capacities):
        job = job.replace(spec=job.spec.replace(required_network_level=None))
    answer = decide(job.spec)
    if answer.action is AdmissionAction.ADMIT:
        return None
    field = next(
        (
            name
            for name, spec in _with_one_requirement_removed(job.spec)
            if decide(spec).action is AdmissionAction.ADMIT
        ),
        "nodes",
    )
    return SpecError(field, f"The job can never start here. {answer.reason}")


def _shows_some_locations_only(capacities: Iterable[NodeCapacity]) -> bool:
    """Whether only some nodes show their network location. The others may not have joined yet."""
    return len({has_position(capacity) for capacity in capacities}) > 1


def _with_one_requirement_removed(spec: JobSpec) -> Iterable[tuple[str, JobSpec]]:
    """Yield the job with one requirement less, with the field of that requirement."""
    if spec.required_network_level:
        yield "network.requiredLevel", spec.replace(required_network_level=None)
    yield "nodes", spec.replace(nodes=1, elastic=None)
    if spec.instance_types:
        yield "instanceTypes", spec.replace(instance_types=())
    if spec.requires != Requirements():
        yield "requires", spec.replace(requires=Requirements())
    if spec.pools:
        yield "jobType", spec.replace(pools=())
    if spec.cpu_per_node:
        yield "cpuPerNode", spec.replace(cpu_per_node=1)
    if spec.memory_gib_per_node:
        yield "memoryGibPerNode", spec.replace(memory_gib_per_node=1)
    if spec.accelerators_per_node > 1:
        yield "gpusPerNode", spec.replace(accelerators_per_node=1)


def _decide_on_configured_fleet(
    job: Job, fleet: ConfiguredFleet, setup: TeamSetup, policy: Policy, now: datetime
) -> AdmissionDecision:
    shares = NodeShares(fleet.capacities, policy.burst.pools)
    admission_request = AdmissionRequest.of(job).replace_unchecked(not_before=None)
    rented_pools = {pool.name for pool in policy.burst.pools}
    committed_capacities = tuple(capacity for capacity in fleet.capacities if capacity.pool not in rented_pools)
    decision = _decide_on_empty_fleet(
        with_default_amounts(admission_request, shares), committed_capacities, setup, policy, now
    )
    for pool in policy.burst.pools if decision.action is not AdmissionAction.ADMIT else ():
        capacities = (*committed_capacities, *nodes_to_rent(job, pool, now))
        request = with_default_amounts(admission_request.replace_unchecked(cluster=pool.cluster), shares)
        admission_decision = _decide_on_empty_fleet(request, capacities, setup, policy, now)
        if admission_decision.action is AdmissionAction.ADMIT and job.spec.nodes <= pool.max_nodes:
            return admission_decision
    return decision


def _decide_on_empty_fleet(
    request: AdmissionRequest, capacities: tuple[NodeCapacity, ...], setup: TeamSetup, policy: Policy, now: datetime
) -> AdmissionDecision:
    admission_input = AdmissionInput(capacities=capacities, pending=(request,), setup=setup)
    return decide_with_sizes(admission_input, policy, now)[0]
