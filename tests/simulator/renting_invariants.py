"""Invariants of rented nodes: more rows of the same table. Sums are computed again from rows and nodes."""

import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.values import rfc3339
from evenkeel.ports import CapacitySpec, LaunchSpec
from evenkeel.services.tables import incident_rows, job_rows, rows
from tests.fakes.cluster import CLUSTER, GPUS
from tests.fakes.system import A_MOMENT
from tests.simulator.asl import Json
from tests.simulator.invariants import Changes, CheckTrigger, forbidding_mode, held_charges, invariant_check
from tests.simulator.renting_scenario import CapacityRequest, RentingCluster, SimulatedRentedNode
from tests.simulator.simulation import Simulation

_DELAY_AFTER_FAULTS = 65
_LATE_READY_SECONDS, _FIRST_LATE_READY_SECONDS = 130.0, 100.0
"""Longest time until a wait is evaluated after the last fault. After the faults, sweeps are rare. Just after the
faults, the second sweep sends a lost answer again, and the next sweep ends a wait that was opened too late.
"""
_LATE_DUE_SECONDS, _FIRST_LATE_DUE_SECONDS = 500.0, 200.0
"""Limit for ends that a cycle decides: if all events are lost, the cycle, the stop and the end each wait for a sweep.
"""
_FIRST_PART_SECONDS = 600.0
"""Length of the part just after the faults, in seconds."""


def _rentals(world: Simulation) -> list[Json]:
    return [row.doc for row in world.ledger.of("RENTAL", "JOB#")]


def _changed(changes: Changes) -> Iterator[tuple[Json | None, Json]]:
    """Yield each rental that a commit changed, before and after."""
    for key, before, after in changes:
        if after and key.pk.startswith("JOB#") and key.sk.startswith("RENTAL#"):
            yield before.doc if before else None, after.doc


def _name(doc: Json) -> str:
    return f"{doc['jobId']}-b{doc['number']}"


def _serves(doc: Json) -> bool:
    return doc["state"] in ("OPENING", "READY")


def _seconds(text: str) -> float:
    return (datetime.fromisoformat(text) - A_MOMENT).total_seconds()


def _began(world: Simulation) -> float:
    return world.calls[-1].began if world.calls else world.loop.seconds


def _machine(cluster: RentingCluster, node_name: str) -> SimulatedRentedNode | None:
    """Return the rented node that a node is, or was."""
    return next((machine for machine in cluster.initial_nodes.values() if machine.node_name == node_name), None)


def _was_usable(rented_node: SimulatedRentedNode, since: float) -> bool:
    """Return whether a node was schedulable at some time since then, so that a reader may have seen it so."""
    lost = [at for at in (rented_node.gone_at, rented_node.usable_until) if at is not None]
    return rented_node.joined_at is not None and all(at >= since for at in lost)


# ---------------------------------------------------------------- money


@invariant_check(
    "spending-caps",
    "Rentals never cost more per hour than the cap of their team or of the fleet.",
    CheckTrigger.COMMIT,
)
def caps_hold(world: Simulation, changes: Changes) -> Iterator[str]:
    if world.renting is None or not any(_changed(changes)):
        return
    if not any(before is None or len(before["offers"]) < len(doc["offers"]) for before, doc in _changed(changes)):
        return  # No more nodes are rented. A lowered cap ends no rental that is ready.
    spends: Counter[str] = Counter()
    for doc in _rentals(world):
        if doc["state"] != "ENDED":
            spends[doc["team"]] += doc["nodes"] * doc["offers"][-1]["microsPerNodeHour"]
    policies = world.renting.policies
    # A function that began under the previous policy has read that policy.
    burst_policies = [
        burst
        for number, (_, burst) in enumerate(policies, 1)
        if number == len(policies) or policies[number][0] >= _began(world)
    ]
    fleet = max(burst.fleet_cap_micros_per_hour for burst in burst_policies)
    if spends.total() > fleet:
        yield f"the fleet rents for {spends.total()}, more than its cap of {fleet}"
    for team, spent in spends.items():
        most = max(burst.team_cap_of(team) for burst in burst_policies)
        if spent > most:
            yield f"team {team} rents for {spent}, more than its cap of {most}"


@invariant_check("spending-caps", "", CheckTrigger.HALF_MINUTE)
def machines_are_within_caps(world: Simulation) -> Iterator[str]:
    if world.renting is None or not isinstance(world.cluster, RentingCluster):
        return
    costs = sum(world.renting.by_name[node.pool].micros_per_node_hour for node in world.cluster.live_nodes())
    most = world.renting.policies[0][1].fleet_cap_micros_per_hour  # the cap is only ever lowered
    if costs > most:
        yield f"rented nodes cost {costs}, more than the cap of {most}"


@invariant_check(
    "pool-limit-matches-rentals",
    "A pool's limit equals what its rentals request, and never exceeds the policy's limit.",
    CheckTrigger.LIMIT,
)
def pools_are_bounded(world: Simulation, pool: str, limit: tuple[int, int]) -> Iterator[str]:
    assert world.renting is not None
    nodes, accelerators = limit
    began, now = _began(world), world.loop.seconds
    requests = [request for request in world.renting.requests_by_offer.values() if request.pool == pool]
    # A rental that began or ended during this count may be included or not: the last one is counted again.
    least = sum(request.nodes for request in requests if request.since <= began and request.until > now)
    most = sum(request.nodes for request in requests if request.until >= began)
    if not least <= nodes <= most:
        yield f"{pool} has a limit of {nodes} nodes; its rentals need {least} to {most}"
    if nodes > world.renting.by_name[pool].max_nodes or accelerators != GPUS * nodes:
        yield f"{pool} has limits of {nodes} nodes and {accelerators} accelerators, which do not match"


@invariant_check("pool-limit-matches-rentals", "", CheckTrigger.COMMIT)
def requests_are_bounded(world: Simulation, changes: Changes) -> Iterator[str]:
    if world.renting is None:
        return
    requests, now = world.renting.requests_by_offer, world.loop.seconds
    for _, doc in _changed(changes):
        for index, offer in enumerate(doc["offers"], 1):
            request = requests.setdefault((_name(doc), index), CapacityRequest(offer["pool"], doc["nodes"], now))
            is_over = offer["refused"] or index < len(doc["offers"]) or not _serves(doc)
            request.until = min(request.until, now) if is_over else math.inf
        pool = world.renting.by_name[doc["offers"][-1]["pool"]]
        held = sum(
            request.nodes for request in requests.values() if request.pool == pool.name and request.until == math.inf
        )
        if held > pool.max_nodes:
            yield f"{held} nodes of {pool.name} are requested, more than its {pool.max_nodes}"


@invariant_check(
    "rental-bill-is-exact",
    "A rental ends when all its nodes are gone; its bill is each node's price per second until then.",
    CheckTrigger.COMMIT,
)
def rentals_end(world: Simulation, changes: Changes) -> Iterator[str]:
    if not isinstance(world.cluster, RentingCluster):
        return
    for before, doc in _changed(changes):
        if before is None or before["state"] == "ENDED" or doc["state"] != "ENDED":
            continue
        parts = 0
        for index, offer in enumerate(doc["offers"], 1):
            name = _name(doc) if index == 1 else f"{_name(doc)}-{index}"
            if name in world.cluster.capacity:
                yield f"{_name(doc)} has ended, but its capacity pods exist"
            closed = _seconds(offer["closedAt"])
            parts += len(offer["joinedNodeNames"]) * offer["microsPerNodeHour"] * _held_seconds(offer)
            for node_name in offer["joinedNodeNames"]:
                rented_node = _machine(world.cluster, node_name)
                if rented_node is None or rented_node.gone_at is None or rented_node.gone_at > closed:
                    yield f"{node_name} is on the bill of {_name(doc)}, which ended before the node"
        if parts != doc["costParts"]:
            yield f"{_name(doc)} cost {parts}, but its bill says {doc['costParts']}"
        missing = {name for name in doc["nodeNames"] if name not in doc["offers"][-1]["joinedNodeNames"]}
        if missing:
            yield f"{_name(doc)} had nodes that are not on its bill: {', '.join(sorted(missing))}"


def _held_seconds(offer: Json) -> int:
    seconds = _seconds(offer["closedAt"]) - _seconds(offer["openedAt"])
    return max(int(offer["minBilledSeconds"]), math.ceil(round(seconds, 6)))


@invariant_check(
    "failed-offers-are-returned",
    "An offer that is refused or incomplete in time ends, and its nodes are returned.",
    CheckTrigger.HALF_MINUTE,
)
def offers_end(world: Simulation) -> Iterator[str]:
    if world.renting is None or not world.faults_ended or not isinstance(world.cluster, RentingCluster):
        return
    faults_ended_at, now = world.rests_from - _DELAY_AFTER_FAULTS, world.loop.seconds
    most = _FIRST_LATE_READY_SECONDS if now < faults_ended_at + _FIRST_PART_SECONDS else _LATE_READY_SECONDS
    for doc in _rentals(world):
        offer = doc["offers"][-1]
        if doc["state"] != "OPENING" or offer["refused"]:
            continue
        late = now - max(_seconds(doc["readyBy"]), faults_ended_at)
        if late > most:
            yield f"{_name(doc)} waits {late:.0f} s beyond its deadline for nodes of {offer['pool']}"
        told_at, _ = world.cluster.refusals.get(offer["pool"], (A_MOMENT, ""))
        if rfc3339(told_at) >= offer["openedAt"]:
            deaf = now - world.renting.refused_since.setdefault((_name(doc), len(doc["offers"])), now)
            if deaf > most:
                yield f"{_name(doc)} waits for nodes of {offer['pool']}, which was refused {deaf:.0f} s ago"


# ---------------------------------------------------------------- nodes


@invariant_check(
    "no-orphaned-capacity",
    "At rest, no node, capacity pod, limit or hold is left of a rental.",
    CheckTrigger.END,
)
def no_orphan_nodes(world: Simulation) -> Iterator[str]:
    if not isinstance(world.cluster, RentingCluster):
        return
    yield from world.cluster.leftovers()
    open_rentals = {_name(doc) for doc in _rentals(world) if doc["state"] != "ENDED"}
    for key in world.ledger.rows:
        is_hold = key.pk.startswith("TREE#") and key.sk.startswith("RENTAL#")
        if is_hold and key.sk.removeprefix("RENTAL#") not in open_rentals:
            yield f"{key.sk} is held, but its rental has ended"


@invariant_check(
    "one-rental-per-job",
    "A job has one rental at a time. It starts while the job waits or runs on its base, and requests a pool once.",
    CheckTrigger.COMMIT,
)
def rented_once(world: Simulation, changes: Changes) -> Iterator[str]:
    for before, doc in _changed(changes):
        documents = [
            rental
            for rental in _rentals(world)
            if rental["jobId"] == doc["jobId"] and rental["number"] != doc["number"]
        ]
        if _serves(doc) and any(map(_serves, documents)):
            yield f"{_name(doc)} is {doc['state']} beside another open rental of its job; one is allowed"
        if before is not None:
            continue
        job: Job = rows.decode(world.ledger.rows[job_rows.job_key(doc["jobId"])], Job)
        if doc["joinsBase"]:
            world.seen["renting nodes that join a base"] += 1
            yield from _why_may_not_join(world, doc, job)
        elif job.state is not JobState.PENDING or doc["nodes"] != job.spec.nodes:
            yield f"{_name(doc)} of {doc['nodes']} nodes begins, but its job of {job.spec.nodes} nodes is {job.state}"
        if doc["number"] != 1 + len(documents):
            yield f"{_name(doc)} is rental {1 + len(documents)} of its job, more than allowed"


def _why_may_not_join(world: Simulation, doc: Json, job: Job) -> Iterator[str]:
    """Yield a violation if nodes are rented to join a job that does not run on its committed nodes alone."""
    elastic, pool = job.spec.elastic, doc["offers"][-1]["pool"]
    charge = next((charge for charge in held_charges(world) if charge.job_id == job.job_id), None)
    if elastic is None or pool not in elastic.mixed_pools:
        yield f"{_name(doc)} rents from {pool}, which its job does not name"
    if job.state is not JobState.RUNNING or charge is None or charge.is_rented or charge.rented_part:
        yield f"{_name(doc)} is to join its job, which is {job.state} and does not run on committed nodes alone"


@invariant_check(
    "mixed-base-is-committed",
    "A mixed attempt has committed nodes, and all nodes of one rental that is ready, at a size that its job allows.",
    CheckTrigger.COMMIT,
)
def both_parts_are_whole(world: Simulation, changes: Changes) -> Iterator[str]:
    if world.renting is None or not isinstance(world.cluster, RentingCluster):
        return
    for key, was, row in changes:
        if was or not row or not key.sk.startswith("CHARGE#") or not row.doc.get("rentedPart"):
            continue
        world.seen["renting a mixed attempt"] += 1
        doc, part = row.doc, row.doc["rentedPart"]
        job: Job = rows.decode(world.ledger.rows[job_rows.job_key(doc["jobId"])], Job)
        base = [name for name in doc["nodeNames"] if name not in part["nodeNames"]]
        if not base or any(_machine(world.cluster, name) for name in base):
            yield f"{doc['jobId']} has the base {base}, which is empty or not committed"
        if job.spec.sizes is None or len(doc["nodeNames"]) not in job.spec.sizes.legal:
            yield f"{doc['jobId']} runs on {len(doc['nodeNames'])} nodes, which its submission does not allow"


@invariant_check("pool-limit-matches-rentals", "", CheckTrigger.RENT)
def no_pool_without_limit_is_opened(world: Simulation, spec: CapacitySpec) -> Iterator[str]:
    if world.cluster.limits.get((CLUSTER, spec.pool)) is None:
        yield f"{spec.name} requests nodes of {spec.pool}, which has no limit or does not exist"


@invariant_check("one-rental-per-job", "", CheckTrigger.RENT)
def asked_for_once(world: Simulation, spec: CapacitySpec) -> Iterator[str]:
    began = _began(world)
    for doc in _rentals(world):
        offer, name = doc["offers"][-1], _name(doc)
        name = name if len(doc["offers"]) == 1 else f"{name}-{len(doc['offers'])}"
        is_meant = (spec.name, spec.pool, spec.nodes) == (name, offer["pool"], doc["nodes"])
        if is_meant and doc["state"] == "OPENING" and not offer["refused"]:
            return
    # It may have ended between the read and this write.
    assert world.renting is not None
    for (name, index), request in world.renting.requests_by_offer.items():
        if spec.name == (name if index == 1 else f"{name}-{index}") and request.until >= began:
            return
    yield f"{spec.nodes} nodes of {spec.pool} are requested by {spec.name} without a rental"


@invariant_check("no-harmful-act-without-permission", "", CheckTrigger.RENT)
def no_rental_in_observe_mode(world: Simulation, spec: CapacitySpec) -> Iterator[str]:
    if barred := forbidding_mode(world):
        yield f"{spec.name} requests nodes {barred}"


@invariant_check(
    "all-nodes-or-none",
    "Rented nodes are handed over together, when ready, to one job that starts on all of them, alone.",
    CheckTrigger.COMMIT,
)
def gang_gets_all_nodes_at_once(world: Simulation, changes: Changes) -> Iterator[str]:
    if not isinstance(world.cluster, RentingCluster):
        return
    for before, doc in _changed(changes):
        if before is None or before["state"] != "OPENING" or doc["state"] != "READY":
            continue
        if len({*doc["nodeNames"]}) != doc["nodes"]:
            yield f"{_name(doc)} is handed over with {len(doc['nodeNames'])} of {doc['nodes']} nodes"
        documents = [rental for rental in _rentals(world) if _name(rental) != _name(doc) and _serves(rental)]
        for name in doc["nodeNames"]:
            rented_node = _machine(world.cluster, name)
            if rented_node is None or rented_node.pool != doc["offers"][-1]["pool"]:
                yield f"{_name(doc)} is handed over with {name}, which is not a node of {doc['offers'][-1]['pool']}"
            elif not _was_usable(rented_node, _began(world)):
                yield f"{_name(doc)} is handed over with {name}, which was never ready"
            yield from (
                f"{name} is handed over to {_name(doc)} and {_name(document)}"
                for document in documents
                if name in document["nodeNames"]
            )
    for key, was, row in changes:
        if key.sk.startswith("CHARGE#") and row and not was:
            part = row.doc.get("rentedPart")
            names = part["nodeNames"] if part else row.doc["nodeNames"]
            yield from _nodes_of_other_jobs(world, world.cluster, row.doc["jobId"], names)


@invariant_check("all-nodes-or-none", "", CheckTrigger.LAUNCH)
def gang_starts_on_all_nodes(world: Simulation, spec: LaunchSpec) -> Iterator[str]:
    attempt = spec.attempt
    row = world.ledger.rows.get(job_rows.attempt_key(attempt.job_id, attempt.attempt))
    is_over = row is not None and AttemptState(row.doc["state"]).has_ended
    if isinstance(world.cluster, RentingCluster) and not is_over:
        names = attempt.rented_part.node_names if attempt.rented_part else attempt.node_names
        yield from _nodes_of_other_jobs(world, world.cluster, attempt.job_id, names)


def _nodes_of_other_jobs(
    world: Simulation, cluster: RentingCluster, job_id: str, names: tuple[str, ...]
) -> Iterator[str]:
    """Yield a violation if a job runs on rented nodes of another job, or not on all of its own."""
    if not any(_machine(cluster, name) for name in names):
        return
    documents = [doc for doc in _rentals(world) if doc["jobId"] == job_id and doc["state"] == "READY"]
    if not documents or {*documents[0]["nodeNames"]} != {*names}:
        yield f"{job_id} is placed on {', '.join(names)}, but rented {[doc['nodeNames'] for doc in documents]}"


# ---------------------------------------------------------------- loans


@invariant_check(
    "temporary-capacity-is-returned",
    "Temporary capacity is returned when its time is over, or when free committed nodes replace it.",
    CheckTrigger.HALF_MINUTE,
)
def temporary_capacity_ends_in_time(world: Simulation) -> Iterator[str]:
    if world.renting is None or not world.faults_ended:
        return
    faults_ended_at, now = world.rests_from - _DELAY_AFTER_FAULTS, world.loop.seconds
    most = _FIRST_LATE_DUE_SECONDS if now < faults_ended_at + _FIRST_PART_SECONDS else _LATE_DUE_SECONDS
    jobs = {key.pk: row.doc for key, row in world.ledger.rows.items() if key.pk.startswith("JOB#") and key.sk == "META"}
    is_waited_for = any(doc["state"] == JobState.PENDING for doc in jobs.values())
    for doc in _rentals(world):
        if not doc["dueAt"] or doc["state"] != "READY":
            continue
        job = jobs[f"JOB#{doc['jobId']}"]
        if job["state"] != JobState.RUNNING or job.get("stopRequest"):
            continue
        late = now - max(_seconds(doc["dueAt"]), faults_ended_at)
        if late > most:
            yield f"{_name(doc)} is temporary capacity {late:.0f} s beyond its deadline"
        is_home_free = not is_waited_for and job["spec"]["checkpointUri"] and _has_free_nodes(world, doc, job)
        since = world.renting.home_free_since.setdefault(_name(doc), now) if is_home_free else now
        if not is_home_free:
            world.renting.home_free_since.pop(_name(doc), None)
        if now - max(since, faults_ended_at) > most:
            yield f"{_name(doc)} is temporary capacity, but its job fits on committed nodes since {now - since:.0f} s"


@invariant_check("temporary-capacity-is-returned", "", CheckTrigger.COMMIT)
def temporary_capacity_has_its_incident(world: Simulation, changes: Changes) -> Iterator[str]:
    for before, doc in _changed(changes):
        if before is None and bool(doc["dueAt"]) != bool(doc["incidentId"]):
            yield f"{_name(doc)} is due at {doc['dueAt']}, which does not match {doc['incidentId']}"
        if before is None and doc["dueAt"]:
            world.seen["renting on loan"] += 1
            seconds = round(_seconds(doc["dueAt"]) - _seconds(doc["begunAt"]))
            if seconds != world.policy.burst.temporary_seconds:
                yield f"{_name(doc)} is temporary capacity for {seconds} s, more than allowed"
            if incident_rows.incident_key(doc["incidentId"]) not in world.ledger.rows:
                yield f"{_name(doc)} replaces nodes of {doc['incidentId']}, which does not exist"


def _has_free_nodes(world: Simulation, doc: Json, job: Json) -> bool:
    """Return whether a committed pool certainly has whole free nodes for a gang."""
    assert world.renting is not None
    if world.sharing is not None:
        return False  # with teams, quota decides, so free nodes alone prove nothing
    used = world.cluster.accelerators_in_use(CLUSTER)
    charged = {name for charge in held_charges(world) for name in charge.node_names}
    avoided = " ".join((job.get("resumePlan") or {}).get("avoid", ()))
    free = Counter(
        node.pool
        for node in world.cluster.by_name.values()
        if node.is_schedulable
        and node.pool not in world.renting.by_name
        and node.accelerators == GPUS
        and not used.get(node.name)
        and node.name not in charged
        and str(node.instance_id) not in avoided
    )
    return max(free.values(), default=0) >= int(doc["nodes"])
