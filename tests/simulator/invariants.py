"""The invariants: one table, with a sentence and a check in each row.

`docs/operate/invariants.md` lists the same rows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, delegate_to_kueue, recorded_reason
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import node_capacity
from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.faults import NODE_RUNGS
from evenkeel.domain.health.incidents import Evidence, Incident, IncidentState, NodeBranchResult, NodeFact
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge, resources_in_use_or_charged
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.jobs.spec import DEFAULT_TEAM
from evenkeel.domain.nodes import FleetNode, is_lost, join_nodes
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.recovery.guardrails import pool_limit
from evenkeel.domain.recovery.repair_requests import WAIT_FOR_HYPERPOD
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.domain.replay import CannotReplayError, replay
from evenkeel.domain.values import rfc3339
from evenkeel.events import envelope
from evenkeel.ports import CapacitySpec, ExecutionState, Key, LaunchSpec, PermanentError, Row, Table, TransientError
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.queries.fleet import read_sources, read_status
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage.facts_of_decisions import with_facts
from evenkeel.services.storage.quota_tree import stored_state
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, quota_rows, rows
from tests.fakes.cluster import CLUSTER, GPUS
from tests.fakes.system import A_MOMENT
from tests.simulator.data_centre import FAULT_TYPES, SPOT_POOL
from tests.simulator.privileges import granted_requests
from tests.simulator.renting_scenario import RentingCluster

if TYPE_CHECKING:
    from tests.simulator.asl import Json
    from tests.simulator.simulation import FunctionCall, Simulation

Changes = list[tuple[Key, Row | None, Row | None]]


class CheckTrigger(StrEnum):
    """The event that triggers a check."""

    COMMIT = "at every commit"
    REPAIR = "at every repair call"
    CORDON = "at every cordon"
    RELEASE = "at every uncordon"
    LAUNCH = "at every launch"
    SIZE = "whenever pods learn their world size"
    SAVE = "at every save of a job that Kueue admitted"
    STOP = "at every stop"
    RENT = "whenever nodes are asked for"
    LIMIT = "whenever a pool's limit is set"
    HALF_MINUTE = "every half minute"
    ANSWER = "at every answer to a wait"
    ALERT = "at every page"
    FAILURE = "whenever a function fails"
    RETURN = "whenever a function ends"
    STATUS = "every ten seconds"
    AFTER_FAULTS = "repeatedly, after the faults stop"
    END = "at the end"


@dataclass(frozen=True)
class Invariant:
    """A statement that always holds, and its check."""

    name: str
    sentence: str
    moment: CheckTrigger
    check: Callable[..., Iterator[str]]
    needs_teams: bool
    """Whether the check needs a seed with teams."""
    needs_elastic_jobs: bool
    """Whether the check needs a seed with elastic jobs."""


TABLE: list[Invariant] = []


def invariant_check(
    name: str, sentence: str, moment: CheckTrigger, *, needs_teams: bool = False, needs_elastic_jobs: bool = False
) -> Callable[[Callable[..., Iterator[str]]], Callable[..., Any]]:
    def register(check: Callable[..., Iterator[str]]) -> Callable[..., Any]:
        TABLE.append(Invariant(name, sentence, moment, check, needs_teams, needs_elastic_jobs))
        return check

    return register


_UNCHECKED_PREFIXES = ("LOCK#", "HEARTBEAT#")
"""Rows that no check of a commit reads. They are half of all commits."""


class InvariantChecker:
    """Runs the checks of each trigger."""

    def __init__(self, *without: str) -> None:
        self.by_moment = {
            moment: [invariant for invariant in TABLE if invariant.moment is moment and invariant.name not in without]
            for moment in CheckTrigger
        }

    def _make(self, moment: CheckTrigger, world: "Simulation", *facts: Any) -> None:
        for invariant in self.by_moment[moment]:
            if (invariant.needs_teams and not world.sharing) or (invariant.needs_elastic_jobs and not world.elastic):
                continue
            for text in invariant.check(world, *facts):
                world.record_violation(invariant.name, text)

    def commit(self, world: "Simulation", changes: Changes) -> None:
        if len(changes) == 1 and changes[0][0].pk.startswith(_UNCHECKED_PREFIXES):
            return
        self._make(CheckTrigger.COMMIT, world, changes)

    def repair(self, world: "Simulation", rung: str, instance_id: str) -> None:
        self._make(CheckTrigger.REPAIR, world, rung, instance_id)

    def cordon(self, world: "Simulation", name: str) -> None:
        self._make(CheckTrigger.CORDON, world, name)

    def released(self, world: "Simulation", name: str, result: str) -> None:
        self._make(CheckTrigger.RELEASE, world, name, result)

    def launch(self, world: "Simulation", spec: LaunchSpec) -> None:
        self._make(CheckTrigger.LAUNCH, world, spec)

    def size_published(self, world: "Simulation", attempt: Attempt) -> None:
        self._make(CheckTrigger.SIZE, world, attempt)

    def saved(self, world: "Simulation", spec: LaunchSpec) -> None:
        self._make(CheckTrigger.SAVE, world, spec)

    def stop(self, world: "Simulation", job_id: str, attempt: int) -> None:
        self._make(CheckTrigger.STOP, world, job_id, attempt)

    def rented(self, world: "Simulation", spec: CapacitySpec) -> None:
        self._make(CheckTrigger.RENT, world, spec)

    def limited(self, world: "Simulation", pool: str, limit: tuple[int, int]) -> None:
        self._make(CheckTrigger.LIMIT, world, pool, limit)

    def half_minute_passed(self, world: "Simulation") -> None:
        self._make(CheckTrigger.HALF_MINUTE, world)

    def status_read(self, world: "Simulation") -> None:
        self._make(CheckTrigger.STATUS, world)

    def answered(self, world: "Simulation", token: str, output: "Json") -> None:
        self._make(CheckTrigger.ANSWER, world, token, output)

    def alert_sent(self, world: "Simulation", key: str) -> None:
        self._make(CheckTrigger.ALERT, world, key)

    def raised(self, world: "Simulation", call: "FunctionCall", error: Exception) -> None:
        self._make(CheckTrigger.FAILURE, world, call, error)

    def ended(self, world: "Simulation", call: "FunctionCall") -> None:
        self._make(CheckTrigger.RETURN, world, call)

    def after_faults(self, world: "Simulation") -> None:
        self._make(CheckTrigger.AFTER_FAULTS, world)

    def end(self, world: "Simulation") -> None:
        self._make(CheckTrigger.END, world)

    def is_at_rest(self, world: "Simulation") -> bool:
        """Return whether no work is left."""
        return (
            world.loop.seconds > world.rests_from
            and not any(_unfinished_work(world))
            and not any(_untrue_reasons(world))
            and not any(_leftover_capacity(world))
        )


# ---------------------------------------------------------------- what the checks read


def _is_open(doc: "Json") -> bool:
    return not IncidentState(doc["state"]).is_settled


def _life(doc: "Json") -> str:
    life = doc["life"]
    return f"{life['cluster']}/{life['instanceId']}/{int(datetime.fromisoformat(life['launchedAt']).timestamp())}"


def _incidents(world: "Simulation") -> list["Json"]:
    return [row.doc for row in world.ledger.of("META", "INC#")]


def _jobs(world: "Simulation") -> list[Job]:
    return [rows.decode(row, Job) for row in world.ledger.of("META", "JOB#")]


def is_new_stop(request: StopRequest, earlier: StopRequest | None) -> bool:
    """Whether a request differs from the earlier request. DrainNode may shorten the grace of a request that stays."""
    return earlier is None or (request.by, request.requested_at) != (earlier.by, earlier.requested_at)


def held_charges(world: "Simulation") -> list[Charge]:
    """Return the held charges. A released charge only names the waiting job that had it."""
    charges = (rows.decode(row, Charge) for row in world.ledger.of("CHARGE", f"TREE#{quota_rows.ROOT_TREE}"))
    return [charge for charge in charges if charge.is_live]


def _live_attempts(world: "Simulation") -> list["Json"]:
    return [row.doc for row in world.ledger.of("ATTEMPT", "JOB#") if not AttemptState(row.doc["state"]).has_ended]


def _began(world: "Simulation") -> float:
    """Return the start of the current call, which may not see later changes."""
    return world.calls[-1].began if world.calls else world.loop.seconds


def _is_karpenters(world: "Simulation", pool: str) -> bool:
    return pool == SPOT_POOL or (world.renting is not None and pool in world.renting.by_name)


def _is_incident(key: Key) -> bool:
    return key.table is Table.INCIDENTS and key.sk == "META" and key.pk.startswith("INC#")


# ---------------------------------------------------------------- incidents


@invariant_check(
    "one-open-incident-per-node",
    "A node life has at most one open incident, and at most one open drill.",
    CheckTrigger.COMMIT,
)
def one_incident_per_node_life(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, _, after in changes:
        if after is None or not _is_incident(key):
            continue
        life, incident = _life(after.doc), after.doc["incidentId"]
        life += " in drills" if after.doc["isDrill"] else ""
        open_incidents = world.watched.open_by_life.setdefault(life, set())
        if _is_open(after.doc):
            open_incidents.add(incident)
        else:
            open_incidents.discard(incident)
        if len(open_incidents) > 1:
            yield f"{life} must have one open incident, but also has {', '.join(sorted(open_incidents))}"


@invariant_check(
    "open-pointer-matches-incident",
    "`OPEN#life` points to an incident exactly while that incident is open.",
    CheckTrigger.COMMIT,
)
def pointer_is_true(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, _, after in changes:
        if _is_incident(key) and after:
            kind = "DRILL-" if after.doc["isDrill"] else ""
            pointer = world.ledger.rows.get(Key(Table.INCIDENTS, f"{kind}OPEN#{_life(after.doc)}", "META"))
            points = pointer is not None and pointer.doc["incidentId"] == after.doc["incidentId"]
            if points != _is_open(after.doc):
                yield f"{after.doc['incidentId']} is {after.doc['state']}, but the pointer of its node says {points}"
        elif key.pk.startswith("OPEN#") and after is None:
            life = key.pk.removeprefix("OPEN#")
            still = world.watched.open_by_life.get(life)
            if still and not any(_is_incident(other) for other, _, _ in changes):
                yield f"the pointer of {life} is deleted while {', '.join(sorted(still))} is open"


@invariant_check(
    "drills-are-isolated",
    "No drill joins a real incident or shares its records, and no real fact joins a drill.",
    CheckTrigger.COMMIT,
)
def drills_stay_apart(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, after in changes:
        if after is None or key.table is not Table.INCIDENTS:
            continue
        if key.sk.startswith("EVIDENCE#"):
            subject = world.ledger.rows[Key(key.table, key.pk, "META")].doc
            if subject["isDrill"] != after.doc["fact"]["isDrill"]:
                kind = after.doc["fact"]["faultKey"] or after.doc["fact"]["kind"]
                yield f"{key.pk} ingests {kind}, and only one of them is a drill"
        elif _is_incident(key) and before is not None and before.doc["isDrill"] != after.doc["isDrill"]:
            yield f"isDrill of {key.pk} changes from {before.doc['isDrill']} to {after.doc['isDrill']}"
        elif key.sk == "META" and "incidentId" in after.doc and not _is_incident(key):
            named = world.ledger.rows.get(incident_rows.incident_key(after.doc["incidentId"]))
            is_of_drills = key.pk.startswith(("DRILL-", "FACT#drill/"))
            if named and named.doc["isDrill"] != is_of_drills:
                yield f"{key.pk} names {after.doc['incidentId']}, and only one of them is a drill"


@invariant_check(
    "terminal-states-are-final",
    "An ended incident, attempt or job does not change its state.",
    CheckTrigger.COMMIT,
)
def final_states_are_final(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, after in changes:
        if before is None or "state" not in before.doc or key.sk.startswith("WAIT#"):
            continue
        if _is_incident(key):
            is_over = not _is_open(before.doc)
        elif key.sk.startswith("ATTEMPT#"):
            is_over = AttemptState(before.doc["state"]).has_ended
        elif key.pk.startswith("JOB#") and key.sk == "META":
            is_over = JobState(before.doc["state"]).has_ended
        else:
            continue
        now = after.doc["state"] if after else "gone"
        if is_over and now != before.doc["state"]:
            yield f"{key.pk} {key.sk} changes from its final state {before.doc['state']} to {now}"


@invariant_check("labels-do-not-prove-ownership", "An attempt succeeds only if its own pods did.", CheckTrigger.COMMIT)
def labels_are_no_proof(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, _, after in changes:
        if not key.sk.startswith("ATTEMPT#") or after is None or after.doc["state"] != AttemptState.SUCCEEDED:
            continue
        attempt = rows.decode(after, Attempt)
        if attempt.workload_name not in world.trainers.finished:
            yield f"{attempt.workload_name} is SUCCEEDED, but its own pods have not succeeded"


@invariant_check(
    "only-owner-releases-lease",
    "A lease is released only by its owner, or after its owner is settled.",
    CheckTrigger.COMMIT,
)
def lease_is_its_owners(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, after in changes:
        if not key.pk.startswith("LEASE#") or before is None or not before.doc.get("incidentId"):
            continue
        owner, now = before.doc["incidentId"], after.doc["incidentId"] if after else ""
        held = world.ledger.rows.get(incident_rows.incident_key(owner))
        if owner != now and held and _is_open(held.doc):
            yield f"{key.pk} moves from {owner}, which is still open, to {now or 'no owner'}"


# ---------------------------------------------------------------- repairs


@invariant_check(
    "intent-recorded-before-effect",
    "Before a repair call, its intent and its decision are recorded.",
    CheckTrigger.REPAIR,
)
def intent_before_effect(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    for row in world.ledger.of("META", "LEASE#"):
        asks = row.doc.get("requests", ())
        if (
            asks
            and asks[-1]["life"]["instanceId"] == instance_id
            and asks[-1]["rung"] == rung
            and not asks[-1]["answer"]
        ):
            break
    else:
        yield f"{rung} of {instance_id} is called without a lease that records it"
        return
    decided = [
        row.doc
        for row in world.ledger.of("META", "DEC#")
        if row.doc["kind"] == "REPAIR"
        and row.doc["action"] == rung.upper()
        and row.doc["facts"]["life"]["instanceId"] == instance_id
    ]
    if not decided:
        yield f"{rung} of {instance_id} is called without a recorded decision"


@invariant_check(
    "one-repair-in-flight-per-node",
    "A node has at most one repair in flight, and is replaced at most once.",
    CheckTrigger.REPAIR,
)
def one_repair_per_node_life(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    for at, was, was_heard in world.watched.calls.get(instance_id, ()):
        if rung == "replace" == was and instance_id in world.provider.by_id and was_heard:
            yield f"{instance_id} gets a second accepted Replace call; at most one is allowed"
        # An unrecorded reply counts like a lost reply: the service waits this long for both.
        is_awaited = world.loop.seconds - at < world.policy.repair.reconcile_after_seconds
        if world.provider.running.get(instance_id) == was == rung and was_heard and is_awaited:
            yield f"{was} of {instance_id} is called again while the call accepted at {at:.1f} runs"
        if not was_heard and rung == was and is_awaited and instance_id in world.provider.running:
            yield f"{was} of {instance_id} is called again before the wait for the lost reply of {at:.1f} is over"


@invariant_check(
    "repair-and-cordon-limits",
    "The nodes of a pool in repair, or with Evenkeel's cordon, stay within its limits.",
    CheckTrigger.REPAIR,
)
def limit_of_repairs_holds(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    rails = world.policy.repair.guardrails
    leases = []
    for row in world.ledger.of("META", "LEASE#"):
        owner = world.ledger.rows.get(incident_rows.incident_key(row.doc["incidentId"]))
        called = [
            ask
            for ask in row.doc["requests"]
            if ask["incidentId"] == row.doc["incidentId"] and ask["rung"] in NODE_RUNGS
        ]
        # After its node branch, a node is in service, or a person owns it. In a later run it is in service
        # until its next repair call.
        returned_at = (owner.doc["stages"]["returnedAt"] if owner else "") or ""
        is_called = any(ask["requestedAt"] > returned_at for ask in called)
        if (
            owner
            and _is_karpenters(world, owner.doc["pool"])
            and world.node_of(owner.doc["life"]["instanceId"]) is None
        ):
            continue  # Karpenter returned it and does not replace it
        is_in_repair = owner and _is_open(owner.doc) and is_called and not owner.doc["nodeBranch"]
        if owner and is_in_repair and owner.doc["life"]["instanceId"] != instance_id:
            leases.append((owner.doc["life"]["instanceId"], owner.doc["pool"]))
    node = world.node_of(instance_id)
    pool = node.pool if node else ""
    most = pool_limit(rails.pool_repairs, rails.pool_repair_share, world.pool_sizes.get(pool, world.size))
    in_pool = [name for name, its in leases if its == pool]
    if len(in_pool) >= most or len(leases) >= rails.fleet_repairs:
        yield f"{rung} of {instance_id} exceeds the limit of {most}; in repair: {', '.join(name for name, _ in leases)}"


@invariant_check("repair-and-cordon-limits", "", CheckTrigger.CORDON)
def limit_of_cordons_holds(world: "Simulation", name: str) -> Iterator[str]:
    rails = world.policy.repair.guardrails
    cordoned = [node for node in world.cluster.by_name.values() if node.is_cordoned and node.incident_id]
    node = world.cluster.node(CLUSTER, name)
    if node is None:
        return  # the node was deleted, so it has no cordon
    pool = node.pool
    most = pool_limit(rails.pool_cordons, rails.pool_cordon_share, world.pool_sizes.get(pool, world.size))
    names = [node.name for node in cordoned if node.pool == pool]
    # A node with a deadline is always cordoned at once: its jobs save now or never.
    if any(doc["nodeName"] == name and doc["deadlineAt"] for doc in _incidents(world)):
        return
    if name not in {node.name for node in cordoned} and (len(names) >= most or len(cordoned) >= rails.fleet_cordons):
        yield f"{name} is cordoned beyond the limit of {most}; already cordoned: {', '.join(names)}"


@invariant_check(
    "no-harmful-act-without-permission",
    "Nothing harmful is done in mode observe, or unapproved in mode recommend. "
    "Under a hold, no recovery repairs a node or stops a job.",
    CheckTrigger.REPAIR,
)
def no_harm_while_held(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    if barred := _why_not_allowed(world):
        yield f"{rung} of {instance_id} is requested {barred}"


@invariant_check("no-harmful-act-without-permission", "", CheckTrigger.STOP)
def no_stop_while_held(world: "Simulation", job_id: str, attempt: int) -> Iterator[str]:
    # Stops that were requested earlier or by a person are carried out; a hold delays only stops by a recovery.
    is_recovery = world.calls and world.calls[-1].function in ("drain_node", "repair_node")
    if is_recovery and (barred := _why_not_allowed(world)):
        yield f"{job_id}-a{attempt} is stopped {barred}"


@invariant_check("no-harmful-act-without-permission", "", CheckTrigger.CORDON)
def no_cordon_while_watching(world: "Simulation", name: str) -> Iterator[str]:
    if barred := forbidding_mode(world):
        yield f"{name} is cordoned {barred}"


@invariant_check("no-harmful-act-without-permission", "", CheckTrigger.LAUNCH)
def no_launch_while_watching(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    if world.mode != "act":
        yield f"{spec.attempt.workload_name} is launched in mode {world.mode}"


def forbidding_mode(world: "Simulation") -> str:
    """Return why the mode forbids an act (observe, or recommend without an approval); empty if it is allowed."""
    has_approval = any((doc.get("approval") or {}).get("approves") for doc in _incidents(world))
    return "" if world.mode == "act" or (world.mode == "recommend" and has_approval) else f"in mode {world.mode}"


def _why_not_allowed(world: "Simulation") -> str:
    if barred := forbidding_mode(world):
        return barred
    since, until = world.hold
    return "under a hold" if since < _began(world) and world.loop.seconds < until else ""


@invariant_check(
    "approval-matches-current-plan", "An approval is for the plan that asks at that time.", CheckTrigger.COMMIT
)
def approval_is_of_its_plan(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, after in changes:
        approval = after.doc["approval"] if after and before and _is_incident(key) else None
        if before is None or not approval or approval == before.doc["approval"]:
            continue
        plan = before.doc["plan"] or {}
        if plan.get("outcome") != "ASK" or plan["decisionId"] != approval["decisionId"]:
            yield f"{approval['decisionId']} of {before.doc['incidentId']} is answered, not {plan.get('decisionId')}"


@invariant_check(
    "shared-cause-blocks-repairs",
    "While enough nodes of a zone are unhealthy by one cause, none of them is repaired.",
    CheckTrigger.REPAIR,
)
def shared_cause_bars_repairs(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    rails, decided_at = world.policy.repair.guardrails, _asked_at(world, rung, instance_id)
    nodes = [rows.decode(row, FleetNode) for row in world.ledger.of("META", "NODE#")]
    zone = next((node.zone for node in nodes if node.life.instance_id == instance_id), "")
    in_zone = {node.life.key: node for node in nodes if zone and node.zone == zone}
    # Only nodes that every reader counts: by their own row unhealthy since before the decision.
    faulty = {
        key
        for key, node in in_zone.items()
        if not (node.is_gone or node.is_maintained or node.changed_at >= decided_at)
        and (node.marks or not node.is_ready)
    }
    ended = world.ledger.rows.get(fleet_rows.ended_causes_key())
    last_end = max((end["at"] for end in ended.doc["causes"].values()), default="") if ended else ""
    began = sorted(
        datetime.fromisoformat(doc["openedAt"])
        for doc in _incidents(world)
        if _life(doc) in faulty and _is_open(doc) and not doc["isDrill"] and doc["openedAt"] > last_end
    )
    began = [at for at in began if at < decided_at]
    needed = max(rails.shared_cause_count, math.ceil(rails.shared_cause_share * len(in_zone)))
    window = timedelta(seconds=rails.shared_cause_window_seconds)
    if any(last - first < window for first, last in zip(began, began[needed - 1 :], strict=False)):
        yield f"{rung} of {instance_id} is requested while {len(began)} nodes of {zone} share a cause"


def _asked_at(world: "Simulation", rung: str, instance_id: str) -> datetime:
    """Return the time of the decision for the current repair call; without a record, the start of the call."""
    asks = [
        ask
        for row in world.ledger.of("META", "LEASE#")
        for ask in row.doc.get("requests", ())
        if ask["life"]["instanceId"] == instance_id and ask["rung"] == rung
    ]
    began = A_MOMENT + timedelta(seconds=_began(world))
    return min([began, *(datetime.fromisoformat(ask["requestedAt"]) for ask in asks[-1:])])


@invariant_check(
    "operator-cordon-is-kept", "A node that a person cordoned is neither repaired nor uncordoned.", CheckTrigger.REPAIR
)
def persons_node_is_left(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    node = world.node_of(instance_id)
    if node and world.watched.persons.get(node.name, 1e12) < _began(world):
        yield f"{rung} of {instance_id} is requested, but a person cordoned it"


@invariant_check(
    "no-repair-of-a-marked-node",
    "A node that another controller has marked gets no repair request.",
    CheckTrigger.REPAIR,
)
def marked_node_is_left(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    node = world.node_of(instance_id)
    if node and world.watched.controllers.get(node.name, 1e12) < _began(world):
        yield f"{rung} of {instance_id} is requested, but another controller repairs it"


@invariant_check(
    "hyperpod-repairs-first",
    "With `NodeRecovery` Automatic, a fault that HyperPod detects gets a repair request only after Evenkeel has waited "
    "for HyperPod.",
    CheckTrigger.REPAIR,
)
def hyperpod_repairs_first(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    # A function that read the setting before its change may still call.
    is_automatic = world.automatic_since is not None and world.automatic_since < _began(world)
    if not is_automatic or instance_id not in world.provider.by_id:
        return
    lease, request = _lease_and_request(world, rung, instance_id)
    if request is None:
        return
    incident = rows.decode(world.ledger.rows[incident_rows.incident_key(request["incidentId"])], Incident)
    fault_key = _repair_facts(world, request, rung).get("faultKey", incident.fault_key)
    has_waited = any(
        ask["rung"] == WAIT_FOR_HYPERPOD
        and ask["life"] == request["life"]
        and datetime.fromisoformat(ask["requestedAt"]) >= incident.opened_at
        for ask in lease["requests"]
    )
    if fault_key.startswith(("hp:", "xid:")) and not has_waited:
        yield f"{rung} of {instance_id} is requested for {fault_key} without a wait for HyperPod"


def _lease_and_request(world: "Simulation", rung: str, instance_id: str) -> tuple["Json", "Json | None"]:
    """Return the lease that records the current repair call, and its request; None if there is none."""
    for row in world.ledger.of("META", "LEASE#"):
        asks = row.doc.get("requests", ())
        if asks and (asks[-1]["life"]["instanceId"], asks[-1]["rung"]) == (instance_id, rung):
            return row.doc, asks[-1]
    return {}, None


def _repair_facts(world: "Simulation", request: "Json", rung: str) -> "Json":
    """Return the facts of the latest decision for a repair request; empty if there is none."""
    repair_facts: Json = {}
    for row in world.ledger.of("META", "DEC#"):
        facts = row.doc["facts"]
        is_repair = (row.doc["kind"], row.doc["action"]) == ("REPAIR", rung.upper())
        if is_repair and facts["incidentId"] == request["incidentId"]:
            repair_facts = facts
    return repair_facts


@invariant_check("one-repair-in-flight-per-node", "", CheckTrigger.REPAIR)
def hyperpods_repair_is_left_alone(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    since = world.provider.own_repairs.get(instance_id)
    if since is not None and since < _began(world):
        yield f"{rung} of {instance_id} is requested while HyperPod's own repair runs since {since:.1f}"


@invariant_check(
    "no-needless-reboot", "A node that has rebooted since its latest fault signal is not rebooted.", CheckTrigger.REPAIR
)
def reboot_is_needed(world: "Simulation", rung: str, instance_id: str) -> Iterator[str]:
    node = world.node_of(instance_id)
    if rung != "reboot" or node is None or node.ready_since is None:
        return
    asking = {row.doc["incidentId"] for row in world.ledger.of("META", "LEASE#")}
    for row in world.ledger.of("META", "INC#"):
        incident = rows.decode(row, Incident)
        is_its = incident.incident_id in asking and incident.life.instance_id == instance_id
        has_rebooted = incident.boot_id not in ("", node.boot_id)
        if is_its and has_rebooted and incident.last_fault_at < node.ready_since < _asked_at(world, rung, instance_id):
            yield f"reboot of {instance_id} is requested, but it rebooted after the last signal of its fault"


@invariant_check("operator-cordon-is-kept", "", CheckTrigger.RELEASE)
def persons_cordon_stays(world: "Simulation", name: str, result: str) -> Iterator[str]:
    if result == "RELEASED" and name in world.watched.persons:
        yield f"{name} is uncordoned by Evenkeel, but a person cordoned it"


# ---------------------------------------------------------------- jobs


@invariant_check(
    "live-attempts-are-charged", "A live attempt is charged; an ended attempt is not.", CheckTrigger.COMMIT
)
def charge_with_attempt(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, _, after in changes:
        if key.table is not Table.JOBS or not key.sk.startswith("ATTEMPT#") or after is None:
            continue
        name = f"{after.doc['jobId']}-a{after.doc['attempt']}"
        charge = world.ledger.rows.get(Key(Table.QUOTAS, f"TREE#{quota_rows.ROOT_TREE}", f"CHARGE#{name}"))
        is_held = charge is not None and rows.decode(charge, Charge).is_live
        is_live = not AttemptState(after.doc["state"]).has_ended
        if is_live != is_held:
            yield f"{name} is {after.doc['state']} but its charge is {'held' if is_held else 'not held'}"


@invariant_check("no-node-overcommit", "No node is charged with more accelerators than it has.", CheckTrigger.COMMIT)
def no_overcommit(world: "Simulation", changes: Changes) -> Iterator[str]:
    if not any(key.sk.startswith("CHARGE#") and after for key, _, after in changes):
        return
    used: dict[str, int] = {}
    for charge in held_charges(world):
        for name in charge.node_names:
            used[name] = used.get(name, 0) + charge.accelerators // len(charge.node_names)
    yield from (f"{name} is charged with {count}" for name, count in used.items() if count > GPUS)


@invariant_check(
    "no-job-on-unhealthy-node",
    "A node that an incident left unhealthy takes no job, and its GPUs are not counted as free.",
    CheckTrigger.COMMIT,
)
def unhealthy_node_gets_no_job(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, after in changes:
        is_held = after is not None and key.sk.startswith("CHARGE#") and rows.decode(after, Charge).is_live
        if after is None or not is_held or (before is not None and rows.decode(before, Charge).is_live):
            continue
        left_unhealthy = _left_unhealthy(world, before=_began(world) - _INDEXED_WITHIN)
        for name in rows.decode(after, Charge).node_names:
            node = world.cluster.node(CLUSTER, name)
            if node is not None and node.instance_id in left_unhealthy:
                yield f"{key.sk} is admitted on {name}, but {left_unhealthy[node.instance_id]} left it unhealthy"


@invariant_check("no-job-on-unhealthy-node", "", CheckTrigger.HALF_MINUTE)
def unhealthy_is_not_free(world: "Simulation") -> Iterator[str]:
    left_unhealthy = _left_unhealthy(world, before=world.loop.seconds - _INDEXED_WITHIN)
    if not left_unhealthy:
        return
    world.seen["status with an unhealthy node"] += 1
    with world.outside_function():  # a paused function does not make the reads of this check
        ages = read_sources.read_source_ages(world.observer_context())
        status = read_status.show_status(ages, world.observer_context())
    nodes = [rows.decode(row, FleetNode) for row in world.ledger.of("META", "NODE#")]
    usable = [
        node for node in nodes if node.life.instance_id not in left_unhealthy and not (node.is_gone or node.is_cordoned)
    ]
    most = sum(max(0, node.accelerators - node.accelerators_in_use) for node in usable)
    if (status["gpus"]["free"] or 0) > most:
        unhealthy = ", ".join(sorted(left_unhealthy))
        yield f"{status['gpus']['free']} GPUs are shown as free, but at most {most} are; unhealthy: {unhealthy}"


_INDEXED_WITHIN = 30.0
"""Seconds after which every index shows a new row."""


def _left_unhealthy(world: "Simulation", *, before: float) -> dict[str, str]:
    """Return the incidents that left nodes unhealthy before a time, by instance id."""
    until = A_MOMENT + timedelta(seconds=before)
    nodes = (rows.decode(row, UnhealthyNode) for row in world.ledger.of("META", "UNHEALTHY#"))
    return {node.life.instance_id: node.incident_id for node in nodes if not node.trusted_by and node.since < until}


@invariant_check(
    "one-running-attempt-per-job",
    "An attempt starts when no other attempt of its job can be reached, behind its fence.",
    CheckTrigger.LAUNCH,
)
def attempts_are_alone(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    attempt = spec.attempt
    for (_, job_id, number), other in world.cluster.jobs.get(CLUSTER, {}).items():
        if job_id != attempt.job_id or number == attempt.attempt:
            continue
        for pod in other.pods:
            node = world.cluster.node(CLUSTER, pod.node_name)
            seconds = world.policy.jobs.lost_node_seconds
            if not pod.has_ended and pod.node_name and not is_lost(node, world.loop.now(), seconds):
                yield f"{attempt.workload_name} starts while {pod.name} runs on {pod.node_name}"
    if spec.job_spec.checkpoint_uri:
        fence, _ = world.checkpoints.fence(spec.job_spec.checkpoint_uri)
        if fence is None or fence["attempt"] < attempt.attempt:
            yield f"{attempt.workload_name} starts without its fence"


@invariant_check(
    "stop-has-recorded-reason", "Before an attempt is asked to end, its job states the reason.", CheckTrigger.STOP
)
def stops_have_a_reason(world: "Simulation", job_id: str, attempt: int) -> Iterator[str]:
    row = world.ledger.rows.get(job_rows.attempt_key(job_id, attempt))
    request = rows.decode(world.ledger.rows[job_rows.job_key(job_id)], Job).stop_of(attempt)
    is_over = row is not None and AttemptState(row.doc["state"]).has_ended
    if not is_over and not (request and request.reason):
        yield f"{job_id}-a{attempt} is asked to stop without a recorded reason"


@invariant_check("live-attempts-are-charged", "", CheckTrigger.LAUNCH)
def no_attempt_without_charge(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    row = world.ledger.rows.get(job_rows.attempt_key(spec.attempt.job_id, spec.attempt.attempt))
    is_over = row is not None and AttemptState(row.doc["state"]).has_ended
    charge = world.ledger.rows.get(quota_rows.charge_key(spec.attempt))
    if not is_over and not (charge and rows.decode(charge, Charge).is_live):
        yield f"{spec.attempt.workload_name} is launched without a charge"


@invariant_check(
    "no-resume-from-fenced-checkpoint",
    "No job resumes from a checkpoint that was written after a later attempt raised the fence.",
    CheckTrigger.LAUNCH,
)
def fenced_is_never_read(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    if f"{spec.attempt.job_id} {spec.resume_from}" in world.trainers.late:
        yield f"{spec.attempt.workload_name} resumes from {spec.resume_from}, which was written after its fence"


@invariant_check(
    "gang-pods-request-efa",
    "Pods of a job with several nodes request their share of the node's EFA.",
    CheckTrigger.LAUNCH,
)
def gangs_use_efa(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    node = world.cluster.node(CLUSTER, spec.attempt.node_names[0]) if spec.attempt.node_names else None
    own, interfaces = spec.job_spec.accelerators_per_node, spec.network.interfaces
    share = node.efa * own // node.accelerators if node and spec.attempt.ranks > 1 else 0
    if node and interfaces != share:
        yield f"{spec.attempt.workload_name} requests {interfaces} EFA interfaces; its share is {share}"


@invariant_check(
    "no-resume-from-distrusted-checkpoint",
    "No job resumes from a checkpoint that was written under suspicion.",
    CheckTrigger.LAUNCH,
)
def distrusted_is_never_read(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    attempt, began = spec.attempt, world.trainers.started.get(f"{spec.attempt.job_id} {spec.resume_from}")
    if began is None or attempt.resume_from is None:
        return
    for row in world.ledger.of("META", "DEC#"):
        doc, facts = row.doc, row.doc["facts"]
        if doc["kind"] != "RESUME" or facts["jobId"] != attempt.job_id or facts["trust"] == "trusted":
            continue
        decided = (datetime.fromisoformat(doc["decidedAt"]) - A_MOMENT).total_seconds()
        if decided > world.watched.launches[attempt.workload_name]:
            # its pin may exist already: the sweep rolls the job back (`plan_resume.roll_back_jobs`).
            continue
        first = (datetime.fromisoformat(facts["firstSignalAt"]) - A_MOMENT).total_seconds()
        # The pin of the next attempt respects the distrust; later attempts continue from that pin.
        is_suspect = attempt.resume_from.attempt <= facts["attempt"] == attempt.attempt - 1
        if is_suspect and began > first - world.policy.jobs.distrust_guard_seconds + 1:
            seconds = f"{began - first:.0f} s after the signal"
            yield f"{attempt.workload_name} resumes from {spec.resume_from}, which is distrusted: it began {seconds}"


# ---------------------------------------------------------------- waits, pages, functions


@invariant_check(
    "one-answer-per-wait", "A wait gets one answer, even if an answer is sent several times.", CheckTrigger.ANSWER
)
def one_answer_per_wait(world: "Simulation", token: str, output: "Json") -> Iterator[str]:
    first = world.watched.answers.setdefault((token, world.watched.opened[token]), output)
    if first != output:
        yield f"{token} was answered {first['outcome']} and gets the second answer {output['outcome']}"


@invariant_check("one-answer-per-wait", "", CheckTrigger.COMMIT)
def waits_are_distinct(world: "Simulation", changes: Changes) -> Iterator[str]:
    # A function that runs twice may open a second wait for a task that was answered. Its answer has no effect.
    world.watched.opened.update(
        after.doc["token"] for key, before, after in changes if key.sk.startswith("WAIT#") and after and not before
    )
    yield from ()


@invariant_check("one-page-per-incident", "A person is paged once for one event.", CheckTrigger.ALERT)
def one_page_per_incident(world: "Simulation", key: str) -> Iterator[str]:
    incident = "-".join(key.split("-")[:2]) if key.startswith("inc-") else key  # a shared cause is its own
    injected_failures = world.chaos.injected_failures
    before = world.watched.alerts.get(incident)
    # A call that dies between the alert and its record sends the alert again under the same key.
    if before and (before[0] != key or before[1] == injected_failures):
        yield f"{incident} was paged under {before[0]} and is paged again under {key}"
    world.watched.alerts[incident] = (key, injected_failures)


@invariant_check(
    "no-unexpected-function-failure", "A function fails only if the simulated world made it fail.", CheckTrigger.FAILURE
)
def functions_do_not_break(world: "Simulation", call: "FunctionCall", error: Exception) -> Iterator[str]:
    if type(error) is not TransientError and not isinstance(error, TransientError):
        kind = "refuses" if isinstance(error, PermanentError) else "breaks"
        yield f"{call.function} {kind}: {type(error).__name__}: {error}"


@invariant_check(
    "least-privilege",
    "A function makes no table request that its role in the template denies.",
    CheckTrigger.RETURN,
)
def no_more_than_its_role(world: "Simulation", call: "FunctionCall") -> Iterator[str]:
    for ask in sorted(call.table_requests - granted_requests(call.function)):
        yield f"{call.function} calls {ask} without a permission in its role"


@invariant_check("no-unexpected-function-failure", "", CheckTrigger.END)
def no_silent_failure(world: "Simulation") -> Iterator[str]:
    for line in world.telemetry.lines:
        if line.message == "CallFailed":
            yield f"{line.keys.get('error')}: {line.keys.get('detail')}"


# ---------------------------------------------------------------- the end


@invariant_check(
    "reaches-quiescence",
    "When faults stop, all incidents, workflows, waits and jobs end, even if only the sweep is left.",
    CheckTrigger.END,
)
def all_work_ends(world: "Simulation") -> Iterator[str]:
    yield from _unfinished_work(world)


def _unfinished_work(world: "Simulation") -> Iterator[str]:
    """Yield unfinished recoveries and jobs."""
    yield from _unfinished_recoveries(world)
    yield from _unfinished_jobs(world)


def _unfinished_recoveries(world: "Simulation") -> Iterator[str]:
    """Yield the incidents, workflows and waits that have not ended, except those that wait for a person."""
    blocked = {doc["incidentId"] for doc in _incidents(world) if _cordon_limit_is_used_up(world, doc)}
    for doc in _incidents(world):
        if _is_open(doc) and doc["incidentId"] not in blocked:
            yield f"{doc['incidentId']} is still {doc['state']}; it must be settled"
    for name, execution in world.engine.executions.items():
        if execution.status is ExecutionState.RUNNING and execution.document.get("incidentId") not in blocked:
            yield f"{name[1]} still runs, in {(execution.entered or ['its start'])[-1]}; it must have ended"
    for key in world.ledger.rows:
        if key.sk.startswith("WAIT#") and key.pk.removeprefix("INC#") not in blocked:
            yield f"{key.pk} {key.sk} is still open; it must be answered"


def _unfinished_jobs(world: "Simulation") -> Iterator[str]:
    """Yield the jobs and rentals that have not ended, and the jobs that could start."""
    for job in _jobs(world):
        if not job.state.is_at_rest and job.state is not JobState.PENDING:
            yield f"{job.job_id} is still {job.state}; it must have ended"
    for row in world.ledger.of("RENTAL", "JOB#"):
        if row.doc["state"] != "ENDED":
            yield f"rental {row.doc['number']} of {row.doc['jobId']} is still {row.doc['state']}; it must have ended"
    for decision in cycle_decisions(world):
        if decision.action in (AdmissionAction.ADMIT, AdmissionAction.PREEMPT, AdmissionAction.BACK_OFF):
            yield f"{decision.job_id} is pending but could start: {decision.reason}"


def _leftover_capacity(world: "Simulation") -> Iterator[str]:
    """Yield the nodes, capacity pods and limits that rentals left. `_unfinished_jobs` yields the open rentals."""
    if isinstance(world.cluster, RentingCluster):
        yield from world.cluster.leftovers()


def _cordon_limit_is_used_up(world: "Simulation", doc: "Json") -> bool:
    """Return whether a recovery rightly waits: nodes that need a person use the whole cordon limit of its pool."""
    if not doc.get("block") or doc["block"]["guardrail"] not in ("POOL_CORDONS", "FLEET_CORDONS"):
        return False
    node = world.node_of(doc["life"]["instanceId"])
    faulty = node is not None and (not node.is_ready or FAULT_TYPES in node.labels)
    return faulty and next(limit_of_cordons_holds(world, node.name), "") != ""


def cycle_decisions(world: "Simulation") -> Iterator[Any]:
    """Return the decisions of a scheduling cycle at the present state."""
    pending = [AdmissionRequest.of(job) for job in _jobs(world) if job.state is JobState.PENDING]
    if not pending or world.mode != "act":
        return
    if world.kueue:
        yield from (delegate_to_kueue(request, DEFAULT_TEAM, world.loop.now()) for request in pending)
        return
    nodes = join_nodes(world.cluster.nodes(CLUSTER), world.provider.nodes(), CLUSTER)
    in_use = {(CLUSTER, name): count for name, count in world.cluster.resources_in_use(CLUSTER).items()}
    charges = held_charges(world)
    workloads = [(CLUSTER, workload) for workload in world.cluster.workloads(CLUSTER)]
    now = world.loop.now()
    unhealthy = unhealthy_nodes.unhealthy_among(world.cluster.nodes(CLUSTER), world.observer_context())
    capacities = node_capacity(nodes, resources_in_use_or_charged(in_use, charges, workloads), unhealthy)
    if world.renting:
        # A rented node belongs to its job, and a job with a rental is not blocked by other jobs.
        rented = rental_store.load(world.ledger)
        capacities = rented.reserve_nodes(capacities, _jobs(world), world.renting.pools)
        # Nodes that join a base are not waited for.
        pending = [request for request in pending if request.job_id not in rented.sole_rental_by_holder]
    setup = world.sharing.setup if world.sharing else TeamSetup()
    # No job waits for a spare any more, so each may start at any of its sizes.
    requests = tuple(request.model_copy(update={"shrinks_at": None}) for request in pending)
    admission_input = AdmissionInput(capacities=capacities, pending=requests, setup=setup)
    if setup.has_teams:
        tree = world.ledger.rows[quota_rows.tree_key()]
        holders = {
            charge.job_id: rows.decode(world.ledger.rows[job_rows.job_key(charge.job_id)], Job) for charge in charges
        }
        admission_input = admission_input._replace(
            charges=tuple(charge.replace(priority=holders[charge.job_id].priority) for charge in charges),
            stopping=frozenset(name for name, job in holders.items() if job.stop_of(job.current_attempt)),
            scheduler_state=stored_state(tree).pruned(charges, setup, now),
            spent=_spent(world, setup),
            used=read_usage.run(setup, world.world.context()),
        )
    yield from decide_with_sizes(admission_input, world.policy, now)


def _spent(world: "Simulation", setup: TeamSetup) -> dict[tuple[str, str], Spending]:
    periods = [(team.name, budget.period.key_at(world.loop.now())) for team in setup.teams for budget in team.budgets]
    rows = {
        team_and_period: world.ledger.rows.get(quota_rows.spent_key(*team_and_period)) for team_and_period in periods
    }
    return {team_and_period: Spending.model_validate(row.doc) for team_and_period, row in rows.items() if row}


def _untrue_reasons(world: "Simulation") -> Iterator[str]:
    """Yield the pending jobs whose stored reason differs from the current decision."""
    jobs = {job.job_id: job for job in _jobs(world)}
    for decision in cycle_decisions(world):
        reason = recorded_reason(decision, Mode(world.mode))
        if decision.action is not AdmissionAction.BACK_OFF and jobs[decision.job_id].queue_reason != reason:
            yield f"{decision.job_id} shows the reason {jobs[decision.job_id].reason!r}; the rules give {reason!r}"


@invariant_check(
    "pending-reasons-are-current", "At rest, each pending job shows the reason that the rules give.", CheckTrigger.END
)
def reasons_are_true(world: "Simulation") -> Iterator[str]:
    yield from _untrue_reasons(world)


@invariant_check("no-leftover-records", "At rest, no lease, pointer, charge or workload is left.", CheckTrigger.END)
def no_leftovers(world: "Simulation") -> Iterator[str]:
    for key, row in world.ledger.rows.items():
        if key.pk.removeprefix("DRILL-").startswith("OPEN#"):
            incident = world.ledger.rows.get(incident_rows.incident_key(row.doc["incidentId"]))
            if incident is None or not _cordon_limit_is_used_up(world, incident.doc):
                yield key.pk
        elif key.pk.removeprefix("DRILL-").startswith("LEASE#") and row.doc.get("incidentId"):
            yield f"{key.pk} is still leased by {row.doc['incidentId']}; no lease must remain"
    charged = {f"CHARGE#{held_charge.job_id}-a{held_charge.attempt}" for held_charge in held_charges(world)}
    live = {f"CHARGE#{doc['jobId']}-a{doc['attempt']}" for doc in _live_attempts(world)}
    yield from (f"{name} has no attempt" for name in sorted(charged - live))
    yield from (f"{name} is missing" for name in sorted(live - charged))
    for row in world.ledger.of("USAGE", "TEAM#"):
        team = row.key.pk.removeprefix("TEAM#")
        held = sum(charge.accelerators for charge in held_charges(world) if charge.team == team)
        if row.doc["accelerators"] != held:
            yield f"{row.key.pk} is charged with {row.doc['accelerators']}, but its attempts hold {held}"
    for workload in world.cluster.running():
        attempt = workload.spec.attempt
        name = f"CHARGE#{attempt.workload_name}"
        live_nodes = [pod for pod in workload.pods if not pod.has_ended and not pod.is_terminating]
        if workload.is_there and live_nodes and name not in live:
            yield f"{attempt.workload_name} still has running pods after its end"


@invariant_check(
    "no-lost-faults-or-jobs",
    "Each sign of a faulty node leads to an incident; each job ends or waits for a reason.",
    CheckTrigger.END,
)
def nothing_lost(world: "Simulation") -> Iterator[str]:
    if world.mode == "act":
        yield from _unnoticed_faults(world)
    for body in world.watched.delivered:
        yield from _is_fact_lost(world, body)
    for job in _jobs(world):
        if not job.state.has_ended and not job.reason:
            yield f"{job.job_id} is {job.state} without a reason"


def _unnoticed_faults(world: "Simulation") -> Iterator[str]:
    known = {doc["life"]["instanceId"] for doc in _incidents(world)}
    for node in world.cluster.by_name.values():
        is_sick = not node.is_ready or any("fault-types" in label for label in node.labels)
        if is_sick and node.instance_id not in known:
            yield f"{node.instance_id} is faulty without an incident"


def _is_fact_lost(world: "Simulation", body: str) -> Iterator[str]:
    parsed: Any = envelope.parse(body.encode())
    for fact in getattr(parsed, "facts", (parsed,)):
        if fact.kind != "FAULT" or fact.is_drill:
            continue
        key = fact.fact_key
        kept: tuple[Key, ...] = (incident_rows.fact_key(key), incident_rows.unresolved_key(key))
        is_over = any(
            row.doc["isReplaced"] or (row.doc["returnedAt"] or "") >= rfc3339(fact.observed_at)
            for row in world.ledger.of("META", f"LAST#{CLUSTER}/{fact.instance_id}/")
        )
        if fleet_rows.node_key(CLUSTER, fact.instance_id) not in world.ledger.rows:
            kept = (*kept, incident_rows.notice_before_listing_key(fact.instance_id))  # no sweep ever saw that node
        if not is_over and not any(key in world.ledger.rows for key in kept) and not _is_of_a_series(world, fact):
            yield f"{key} was taken from the queue but is stored nowhere"
        noted = world.ledger.rows.get(kept[0])
        if noted and incident_rows.incident_key(noted.doc["incidentId"]) not in world.ledger.rows:
            yield f"{key} names the incident {noted.doc['incidentId']}, which does not exist"


@invariant_check("no-lost-faults-or-jobs", "", CheckTrigger.COMMIT)
def fault_after_return_is_not_lost(world: "Simulation", changes: Changes) -> Iterator[str]:
    for key, before, after in changes:
        if not _is_incident(key) or not before or not after or not _is_open(before.doc) or _is_open(after.doc):
            continue
        incident, later_faults = rows.decode(after, Incident), set()
        validated_at = incident.stages.validated_at
        if incident.node_branch != NodeBranchResult.RETURNED or not validated_at or incident.replacement_instance_id:
            continue
        for fact in (rows.decode(row, Evidence).fact for row in world.ledger.of("EVIDENCE", key.pk)):
            fault = world.policy.catalogue.look_up(fact.fault_key)
            if fact.kind == "FAULT" and fact.observed_at > validated_at and fault.repairs_node and fault.acts_alone:
                later_faults.add(fact.fault_key)
        pointer = incident_rows.open_key(incident.life, is_drill=incident.is_drill)
        if later_faults and not incident.has_recovered and pointer not in world.ledger.rows:
            faults = ", ".join(sorted(later_faults))
            yield f"{incident.incident_id} is settled, and no incident has {faults}, reported after the node's return"


def _is_of_a_series(world: "Simulation", fact: NodeFact) -> bool:
    """Return whether the incident has recorded this fact too: a watched fault is reported repeatedly."""
    at = rfc3339(fact.observed_at)
    return any(
        entry["faultKey"] == fact.fault_key
        and fact.source in entry["sources"]
        and f"/{fact.instance_id}/" in entry["life"]
        and entry["firstAt"] <= at <= entry["lastAt"]
        for row in world.ledger.of("META", "HISTORY#slot/")
        for entry in row.doc["occurrences"]
    )


_SOURCE_OF = {"cluster": f"kubernetes-list/{CLUSTER}", "provider": "hyperpod"}


@invariant_check(
    "unreachable-is-never-healthy",
    "A control plane silent past its threshold is shown as stale, and the status is not OK.",
    CheckTrigger.STATUS,
)
def unreachable_is_never_ok(world: "Simulation") -> Iterator[str]:
    policy = world.policy
    limits = {"cluster": policy.sources.kubernetes_list_seconds, "provider": policy.sources.hyperpod_seconds}
    late = {port for port, since in world.away_since.items() if world.loop.seconds - since > limits[port] + 1}
    if not late:
        return
    world.seen["status while a source is unreachable"] += 1
    ages = read_sources.read_source_ages(world.observer_context())
    by_name = {age.source.name: age for age in ages}
    for port in sorted(late):
        if by_name[_SOURCE_OF[port]].is_trusted:
            yield f"the {port} does not answer, but its source shows {by_name[_SOURCE_OF[port]].reason!r}"
    status = read_status.show_status(ages, world.observer_context())
    if status["health"] == "OK":
        yield f"status shows OK although {', '.join(sorted(late))} does not answer"


@invariant_check("uncordon-is-never-blocked", "A healthy node that Evenkeel cordoned is uncordoned.", CheckTrigger.END)
def uncordon_is_never_blocked(world: "Simulation") -> Iterator[str]:
    for node in world.cluster.by_name.values():
        row = world.ledger.rows.get(incident_rows.incident_key(node.incident_id)) if node.incident_id else None
        if node.is_cordoned and row and row.doc["state"] == "RECOVERED":
            yield f"{node.name} is still cordoned for {node.incident_id}, which has recovered"


@invariant_check(
    "decisions-replay", "Every recorded decision replays to the same answer from its own facts.", CheckTrigger.END
)
def decisions_replay(world: "Simulation") -> Iterator[str]:
    replaced = world.renting.replaced if world.renting else {}
    stored = (rows.decode(row, Decision) for row in world.ledger.of("META", "DEC#"))
    for record in with_facts(stored, world.ledger):
        try:
            differs = replay(record, replaced.get(record.policy_hash, world.policy)).differs_from(record)
        except CannotReplayError as error:
            differs = str(error)
        if differs:
            yield f"{record.kind} {record.decision_id} does not replay to its answer: {differs}"
