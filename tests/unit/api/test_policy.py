"""Changes of the site policy: validated, recorded, and applied once even if the request is repeated."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.policy import Policy, PolicyChange, PolicyError, changed
from evenkeel.domain.policy_section import Mode, Section
from evenkeel.domain.recovery.guardrails import Register, RegisterEntry
from evenkeel.domain.recovery.plan import plan_recovery
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.rollback import RollbackFacts, decide_rollback
from evenkeel.ports import Invalid, Put, Row, Table, site_policy_key
from evenkeel.runtime.site_policy import SitePolicy
from evenkeel.services.admin import change_policy
from evenkeel.services.tables import incident_rows, rows
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_decision, a_job, ago, an_attempt, an_incident, make_unreadable
from tests.unit.api.seeds import store as keep
from tests.unit.recovery.facts import plan_facts, repair_facts
from tests.unit.recovery.test_guardrails import guardrail_facts
from tests.unit.scheduling.builders import a_node_capacity, a_request

POLICY_ROUTE = "/v1/clusters/laptop/policy"
SITE_CHANGES = {"faults": {"xid:94": {"ladder": ["replace"], "severity": "critical"}}, "repair": {"maxAttempts": 2}}


@pytest.fixture
def gateway_with_policy(gateway: Gateway) -> Gateway:
    """The API of a site with its policy in the table."""
    world = gateway.world
    world.__dict__["policies"] = SitePolicy(gateway.fakes.policy, Table.INCIDENTS, world)
    return gateway


def put_policy(gateway_with_policy: Gateway, changes: Any = SITE_CHANGES, key: str = "k1", **more: Any) -> ApiResponse:
    return gateway_with_policy.call("POST", POLICY_ROUTE, {"changes": changes, "reason": "Ours.", **more}, key=key)


def problem_code(answer: ApiResponse) -> tuple[int, str]:
    return answer.status, answer.document["code"]


def stored_policy_row(gateway_with_policy: Gateway, table: Table = Table.INCIDENTS) -> PolicyChange | None:
    row = gateway_with_policy.fakes.ledger.get(site_policy_key(table))
    return rows.decode(row, PolicyChange) if row else None


def test_policy_change_applies_and_shows_its_author(gateway_with_policy: Gateway) -> None:
    response = put_policy(gateway_with_policy)
    gateway_with_policy.fakes.clock.advance(31)
    document = gateway_with_policy.get(POLICY_ROUTE).document

    assert response.status == 200
    assert document["policy"]["repair"]["maxAttempts"] == 2
    assert document["change"]["changes"] == SITE_CHANGES
    assert document["change"]["number"] == 1
    assert "ana" in document["change"]["by"].lower()
    assert document["catalogueHash"] != gateway_with_policy.fakes.policy.catalogue.hash


def test_policy_is_stored_in_the_incident_and_job_tables(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy)
    put_policy(gateway_with_policy, {}, key="k2")

    assert stored_policy_row(gateway_with_policy, Table.INCIDENTS) == stored_policy_row(gateway_with_policy, Table.JOBS)
    assert stored_policy_row(gateway_with_policy)


def test_repeated_policy_change_does_not_undo_a_newer_one(gateway_with_policy: Gateway) -> None:
    first = put_policy(gateway_with_policy)
    put_policy(gateway_with_policy, {"repair": {"maxAttempts": 1}}, key="k2")

    repeated_answer = put_policy(gateway_with_policy)

    assert repeated_answer.document == first.document
    change = stored_policy_row(gateway_with_policy)
    assert change
    assert (change.number, change.changes) == (2, {"repair": {"maxAttempts": 1}})
    assert change.before == SITE_CHANGES


def test_idempotency_key_of_another_policy_change_is_refused(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy)

    assert problem_code(put_policy(gateway_with_policy, {"repair": {"maxAttempts": 1}})) == (
        422,
        "IDEMPOTENCY_KEY_REUSED",
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"repair": {"maxAtempts": 2}}, "repair.maxAtempts: is not a known field"),
        ({"faults": {"xid:9999": {}}}, "there is no fault 'xid:9999'"),
    ],
)
def test_invalid_policy_is_refused_by_field(
    gateway_with_policy: Gateway, changes: dict[str, Any], expected: str
) -> None:
    refusal = put_policy(gateway_with_policy, changes)

    assert problem_code(refusal) == (400, "VALIDATION_FAILED")
    assert expected in refusal.text
    assert stored_policy_row(gateway_with_policy) is None


def test_change_for_an_older_policy_is_refused(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy)

    stale = put_policy(gateway_with_policy, {}, key="k2", basedOn=gateway_with_policy.fakes.policy.hash)

    assert problem_code(stale) == (409, "CONFLICT")
    change = stored_policy_row(gateway_with_policy)
    assert change
    assert change.number == 1


def a_rollback(rollbacks: int) -> Decision:
    """Return the record of a rollback decision after this number of earlier rollbacks."""
    job = a_job(1)
    point = ResumePoint(attempt=1, step=40, manifest="attempt=1/step=000000040/manifest.json")
    ran: dict[str, Any] = {"launched_at": ago(minutes=6), "resumed_work_from": ago(minutes=5)}
    descent = (an_attempt(job, 2, resume_from=point, **ran),)
    facts = RollbackFacts(
        interrupted_attempt=1,
        current_attempt=2,
        descent=descent,
        distrust_after=ago(minutes=10),
        requirement=CheckpointRequirement.CONVENTION,
        distrust_after_at_launch=None,
        requirement_at_launch=CheckpointRequirement.CONVENTION,
        rollbacks=rollbacks,
    )
    decided = decide_rollback(facts, Policy().jobs)
    return a_decision(
        rollbacks,
        "inc-0000000001",
        kind="ROLLBACK",
        action=decided.action,
        reason=decided.reason,
        alternatives=decided.alternatives,
        facts=facts.to_json(),
    )


def replay_policy(gateway_with_policy: Gateway, changes: Any, **more: Any) -> ApiResponse:
    return gateway_with_policy.call("POST", f"{POLICY_ROUTE}/test", {"changes": changes, **more})


def test_policy_test_counts_unreadable_incidents(gateway_with_policy: Gateway) -> None:
    ledger = gateway_with_policy.fakes.ledger
    keep(ledger, an_incident(), an_incident(2), a_rollback(1))
    make_unreadable(ledger, incident_rows.incident_key("inc-0000000002"), "severity")

    document = replay_policy(gateway_with_policy, {}).document

    assert (document["examined"], document["unreadableIncidents"], document["isLowerBound"]) == (1, 1, False)


def test_proposed_policy_is_replayed_on_recorded_decisions(gateway_with_policy: Gateway) -> None:
    keep(gateway_with_policy.fakes.ledger, an_incident(), a_rollback(1), a_rollback(2))
    commits = len(gateway_with_policy.fakes.ledger.commits)

    unchanged, with_changes = (
        replay_policy(gateway_with_policy, {}).document,
        replay_policy(gateway_with_policy, {"jobs": {"maxRollbacks": 2}}).document,
    )

    assert (unchanged["examined"], unchanged["changed"]) == (2, [])
    (changed,) = with_changes["changed"]
    assert (changed["decisionId"], changed["before"]["action"], changed["after"]["action"]) == (
        "dec-0000000002",
        "STOP",
        "LIMIT",
    )
    assert len(gateway_with_policy.fakes.ledger.commits) == commits


def test_policy_trial_replays_admission_with_other_spare_nodes(gateway_with_policy: Gateway) -> None:
    request, capacities = a_request(), (a_node_capacity(1), a_node_capacity(2))
    (decided,) = decide_in_queue_order(
        AdmissionInput(capacities=capacities, pending=(request,)), SchedulingPolicy(), ago()
    )
    record = a_decision(
        1,
        "job-0000000001",
        kind="ADMISSION",
        action=decided.action,
        reason=decided.reason,
        alternatives=decided.alternatives,
        facts=decided.facts.to_json(),
        mode="act",
    )
    keep(gateway_with_policy.fakes.ledger, a_job(1), record)

    unchanged = replay_policy(gateway_with_policy, {}).document
    with_spare_nodes = replay_policy(gateway_with_policy, {"scheduling": {"spareNodes": {"workers": 2}}}).document

    assert (unchanged["examined"], unchanged["changed"]) == (1, [])
    (changed,) = with_spare_nodes["changed"]
    assert (changed["kind"], changed["before"]["action"], changed["after"]["action"]) == ("ADMISSION", "ADMIT", "WAIT")
    assert "workers keeps 2 free nodes for recoveries" in changed["after"]["reason"]
    assert "recorded quotas" in with_spare_nodes["asRecorded"]


def a_plan(number: int, subject: str, mode: Mode = Mode.ACT) -> Decision:
    """Return the record of a recovery plan in a mode."""
    facts = plan_facts(mode=mode)
    plan = plan_recovery(facts, Policy().repair)
    document: dict[str, Any] = {"action": plan.intent, "reason": plan.reason, "alternatives": plan.alternatives}
    return a_decision(number, subject, facts=facts.to_json(), mode=mode, **document)


def a_repair(number: int, subject: str, **changes: Any) -> Decision:
    other_entry = RegisterEntry(life_key="another", incident_id="inc-9", pool="others", since=A_MOMENT)
    under_way = Register(entries=(other_entry,))
    facts = repair_facts(guard=guardrail_facts(now=A_MOMENT, evidence_at=A_MOMENT, under_way=under_way, **changes))
    decided = choose_repair(facts, Policy().repair)
    document: dict[str, Any] = {
        "action": decided.action,
        "reason": decided.reason,
        "alternatives": decided.alternatives,
    }
    return a_decision(number, subject, kind="REPAIR", facts=facts.to_json(), mode="act", **document)


@pytest.mark.parametrize(
    ("rule", "after"),
    [
        ({"mode": "observe"}, "OBSERVE"),
        ({"mode": "recommend"}, "ASK"),
        ({"mode": "observe", "pool": "p5-workers"}, "OBSERVE"),
        ({"mode": "observe", "faultClass": "hardware"}, "OBSERVE"),
        ({"mode": "observe", "pool": "others"}, ""),
        ({"mode": "observe", "faultClass": "network"}, ""),
        ({"mode": "act"}, ""),
    ],
)
def test_proposed_modes_are_replayed_on_recorded_decisions(
    gateway_with_policy: Gateway, rule: dict[str, str], after: str
) -> None:
    keep(gateway_with_policy.fakes.ledger, an_incident(), a_plan(1, "inc-0000000001"))

    document = replay_policy(gateway_with_policy, {"modes": [rule]}).document

    changes = [(change["before"], change["after"]["action"], change["after"]["mode"]) for change in document["changed"]]
    assert [(before["action"], before["mode"], action) for before, action, _ in changes] == (
        [("ACT", "act", after)] if after else []
    )
    assert document["cannot"] == 0


def test_policy_replay_without_mode_rules_uses_stack_mode(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy, {"modes": [{"mode": "observe"}]})
    gateway_with_policy.fakes.clock.advance(31)
    keep(gateway_with_policy.fakes.ledger, an_incident(mode="observe"), a_plan(1, "inc-0000000001", Mode.OBSERVE))

    unchanged, without_rules = (
        replay_policy(gateway_with_policy, {"modes": [{"mode": "observe"}]}).document,
        replay_policy(gateway_with_policy, {}).document,
    )

    assert unchanged["changed"] == []
    assert [(change["before"]["action"], change["after"]["action"]) for change in without_rules["changed"]] == [
        ("OBSERVE", "ACT")
    ]


def test_repair_is_replayed_under_other_modes_and_limits(gateway_with_policy: Gateway) -> None:
    keep(gateway_with_policy.fakes.ledger, an_incident(), a_repair(1, "inc-0000000001"))

    unchanged = replay_policy(gateway_with_policy, {}).document
    observed = replay_policy(gateway_with_policy, {"modes": [{"mode": "observe"}]}).document
    limited = replay_policy(gateway_with_policy, {"repair": {"guardrails": {"fleetRepairs": 1}}}).document

    assert (unchanged["examined"], unchanged["changed"], unchanged["cannot"]) == (1, [], 0)
    assert [change["kind"] for change in observed["changed"]] == ["REPAIR"]
    assert "Mode is observe" in observed["changed"][0]["after"]["reason"]
    assert [(change["before"]["action"], change["after"]["action"]) for change in limited["changed"]] == [
        ("REBOOT", "BLOCKED")
    ]


def test_policy_trial_counts_unreplayable_records_and_skips_old_ones(gateway_with_policy: Gateway) -> None:
    keep(gateway_with_policy.fakes.ledger, an_incident(), a_decision(1, "inc-0000000001", engine_version="0"))
    keep(gateway_with_policy.fakes.ledger, a_decision(2, "inc-0000000001", kind="ROLLBACK"))

    document = replay_policy(gateway_with_policy, {}).document

    assert (document["examined"], document["cannot"], document["changed"]) == (2, 2, [])
    assert replay_policy(gateway_with_policy, {}, since="2030-01-01T00:00:00Z").document["examined"] == 0


def test_invalid_policy_is_not_replayed(gateway_with_policy: Gateway) -> None:
    assert problem_code(replay_policy(gateway_with_policy, {"jobs": {"maxRollbaks": 2}})) == (400, "VALIDATION_FAILED")
    assert problem_code(replay_policy(gateway_with_policy, {}, since="2026-11-03T10:15:00")) == (
        400,
        "VALIDATION_FAILED",
    )


@pytest.mark.parametrize(
    "since", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "1793700840", "2026-11-03", 1793700840]
)
def test_start_of_a_policy_trial_must_be_a_time(gateway_with_policy: Gateway, since: Any) -> None:
    refusal = replay_policy(gateway_with_policy, {}, since=since)

    assert problem_code(refusal) == (400, "VALIDATION_FAILED")
    assert [error["field"] for error in refusal.document["errors"]] == ["since"]
    assert replay_policy(gateway_with_policy, {}, since="0001-01-01T00:00:00Z").status == 200


@pytest.mark.parametrize("size", [1, 2, 50])
def test_policy_history_lists_every_change_newest_first(gateway_with_policy: Gateway, size: int) -> None:
    for number in range(1, 6):
        assert put_policy(gateway_with_policy, {"repair": {"maxAttempts": number}}, key=f"k{number}").status == 200
    put_policy(gateway_with_policy, {"repair": {"maxAttempts": 3}}, key="k3")  # the repeated request changes nothing

    changes, token = [], ""
    while True:
        document = gateway_with_policy.get(
            f"{POLICY_ROUTE}?pageSize={size}" + (f"&nextPageToken={token}" if token else "")
        ).document["history"]
        changes += document["items"]
        token = document["nextPageToken"]
        if not token:
            break

    assert [(change["number"], change["changes"]["repair"]["maxAttempts"]) for change in changes] == [
        (number, number) for number in (5, 4, 3, 2, 1)
    ]
    assert {(change["by"], change["reason"]) for change in changes} == {("role/Researcher (ana)", "Ours.")}


def test_unreadable_change_is_left_out_of_history_and_audit(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy, key="k1")
    put_policy(gateway_with_policy, {}, key="k2")
    ledger = gateway_with_policy.fakes.ledger
    (row,) = (row for key, row in ledger.rows.items() if key.sk.endswith("#k1"))
    ledger.commit(Put(replace(row, doc={**row.doc, "change": {**row.doc["change"], "number": "one"}})))

    history = gateway_with_policy.get(POLICY_ROUTE).document["history"]["items"]
    acts = gateway_with_policy.get("/v1/audit").document["items"]

    assert [change["number"] for change in history] == [2]
    assert [act["text"].partition(" by ")[0] for act in acts if act["kind"] == "policy"] == ["Policy change 2"]


def test_history_is_empty_before_the_first_policy_change(gateway_with_policy: Gateway) -> None:
    assert gateway_with_policy.get(POLICY_ROUTE).document["history"] == {"items": [], "nextPageToken": None}


# ---------------------------------------------------------------- numbers


POOL = {
    "name": "spot",
    "cluster": "burst",
    "market": "spot",
    "instanceType": "ml.p5.48xlarge",
    "acceleratorsPerNode": 8,
    "maxNodes": 4,
    "microsPerNodeHour": 24_000_000,
    "launch": {"p50Seconds": 120, "p90Seconds": 600},
    "interruptionsPerNodeHour": 0.1,
    "reservation": {"startsAt": "2026-11-03T00:00:00Z", "endsAt": "2026-11-04T00:00:00Z", "closingSeconds": 1800},
    "place": {},
    "taints": ["spot=yes:NoSchedule"],
}
EVERY_SECTION: dict[str, Any] = {
    "economy": {"usdPerAcceleratorHour": {"ml.p5.48xlarge": 5.0}},
    "burst": {
        "pools": [POOL],
        "teamCapsMicrosPerHour": {"nlp": 1},
        "delayMicrosPerHour": {"high": 1},
        "expectedRunSeconds": {"high": 60},
    },
    "scheduling": {
        "spareNodes": {"workers": 1},
        "serving": [{"cluster": "c", "namespace": "n", "name": "chat", "rentedSeconds": 3600}],
        "reservations": [
            {"cluster": "c", "pool": "p", "startsAt": "2026-11-03T00:00:00Z", "endsAt": "2026-11-04T00:00:00Z"}
        ],
    },
    "jobTypes": {
        "types": {"a": {"nodes": 2, "acceleratorsPerNode": 8, "maxRestarts": 1, "graceSeconds": 30}},
    },
    "faults": {"xid:94": {"drainSeconds": 30, "recurCount": 2, "recurWindowHours": 24, "settleSeconds": 10}},
}
WHOLE_POLICY = changed(Policy(), EVERY_SECTION).to_json()


def paths_of_numbers(part: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every number in a document."""
    if isinstance(part, dict | list):
        for name, item in part.items() if isinstance(part, dict) else enumerate(part):
            yield from paths_of_numbers(item, (*path, name))
    elif isinstance(part, int | float) and not isinstance(part, bool):
        yield path


def policy_with_number(path: tuple[str | int, ...], value: float) -> dict[str, Any]:
    """Return the whole policy with one number replaced."""
    document = copy.deepcopy(WHOLE_POLICY)
    parent: Any = document
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    return document


@pytest.mark.parametrize("way", list(paths_of_numbers(WHOLE_POLICY)), ids=lambda way: ".".join(map(str, way)))
def test_every_number_of_the_policy_has_bounds(way: tuple[str | int, ...]) -> None:
    for value in (-(10**18), 10**18, math.inf, -math.inf, math.nan):
        with pytest.raises(PolicyError):
            changed(Policy(), policy_with_number(way, value))


def test_every_field_of_a_section_has_bounds() -> None:
    schema = Policy.model_json_schema()
    sections = {section.__name__ for section in Section.__subclasses__()}

    def is_open(field_schema: Any) -> bool:
        match field_schema:
            case {"type": "integer" | "number"}:
                lower, upper = field_schema.keys() & {"minimum", "exclusiveMinimum"}, field_schema.keys() & {"maximum"}
                return not (lower and upper)
            case {"anyOf": list(ways)}:
                return any(map(is_open, ways))
            case {"additionalProperties": dict(values)}:
                return is_open(values)
        return False

    fields_without_bounds = [
        f"{name}.{field}"
        for name in sections & schema["$defs"].keys()
        for field, field_schema in schema["$defs"][name]["properties"].items()
        if is_open(field_schema)
    ]
    assert fields_without_bounds == []
    assert {"EconomyPolicy", "WatchPolicy", "SchedulingPolicy", "BurstPolicy", "ServingWorkload"} <= sections


@pytest.mark.parametrize("heads", [0, -1, 100_000])
def test_jobs_per_page_has_bounds(gateway_with_policy: Gateway, heads: int) -> None:
    refusal = put_policy(gateway_with_policy, {"scheduling": {"jobsPerPage": heads}})

    assert problem_code(refusal) == (400, "VALIDATION_FAILED")
    assert "scheduling.jobsPerPage" in refusal.document["detail"]
    assert stored_policy_row(gateway_with_policy) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"economy": {"otherUsdPerAcceleratorHour": math.inf}},
        {"repair": {"guardrails": {"poolRepairShare": math.nan}}},
        {"scheduling": {"elastic": {"resizeSeconds": math.inf}}},
    ],
)
def test_policy_change_with_null_is_refused(gateway_with_policy: Gateway, changes: dict[str, Any]) -> None:
    request = change_policy.ChangePolicyRequest(
        changes=changes, by="role/Admin", reason="x", request_id="r", fingerprint="f"
    )

    with pytest.raises(Invalid):
        change_policy.run(request, ledger=gateway_with_policy.fakes.ledger, base=Policy(), now=ago())
    assert stored_policy_row(gateway_with_policy) is None


def test_policy_waits_longer_than_their_maximum_are_refused() -> None:
    with pytest.raises(PolicyError, match="must be at most 31,536,000 seconds"):
        changed(Policy(), {"repair": {"flapMarginFactor": 10, "lemonReturns": 1000}})
    with pytest.raises(PolicyError, match="p90Seconds may be at most a day"):
        changed(Policy(), {"burst": {"pools": [POOL | {"launch": {"p50Seconds": 1e-9, "p90Seconds": 600}}]}})


def test_unreadable_policy_change_is_shown_beside_the_policy_in_force(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy)
    put_policy(gateway_with_policy, {"repair": {"maxAttempts": 1}}, key="k2")
    change = stored_policy_row(gateway_with_policy)
    assert change
    unreadable_change = change.replace(changes={"repair": {"noLonger": 1}}, number=3, before=change.changes)
    document_before = gateway_with_policy.get(POLICY_ROUTE).document
    key = site_policy_key(Table.INCIDENTS)
    row = gateway_with_policy.fakes.ledger.get(key)
    assert row
    gateway_with_policy.fakes.ledger.commit(Put(Row(key, unreadable_change.to_json(), row.version)))
    gateway_with_policy.fakes.clock.advance(31)

    document_after = gateway_with_policy.get(POLICY_ROUTE).document

    assert (document_before["refused"], document_before["inForce"]) == (None, 2)
    assert document_after["inForce"] == 2
    assert "change 3 by" in document_after["refused"]
    assert "repair.noLonger: is not a known field" in document_after["refused"]
    assert document_after["policy"]["repair"]["maxAttempts"] == 1


def break_policy_row(gateway: Gateway, **fields: Any) -> None:
    """Break the stored policy, and start a container that has read no policy."""
    break_row_of_warm_container(gateway, **fields)
    gateway.world.__dict__["policies"] = SitePolicy(gateway.fakes.policy, Table.INCIDENTS, gateway.world)


def break_row_of_warm_container(gateway: Gateway, **fields: Any) -> None:
    """Change the stored policy as a release could that this one does not know."""
    for table in (Table.INCIDENTS, Table.JOBS):
        row = gateway.fakes.ledger.get(site_policy_key(table))
        assert row
        gateway.fakes.ledger.commit(Put(replace(row, doc={**row.doc, **fields})))


@pytest.mark.parametrize("fields", [{"changes": {"repair": {"noLonger": 1}}}, {"number": "two"}])
def test_pages_work_and_say_that_no_policy_is_in_force(gateway_with_policy: Gateway, fields: dict[str, Any]) -> None:
    put_policy(gateway_with_policy)
    break_policy_row(gateway_with_policy, **fields)

    policy_document = gateway_with_policy.get(POLICY_ROUTE).document
    pages = [gateway_with_policy.get(path) for path in ("/v1/overview", "/v1/status", "/v1/jobs", "/v1/incidents")]
    change = gateway_with_policy.call(
        "PUT", "/v1/teams/nlp/quota", {"team": {"name": "nlp"}, "reason": "x"}, headers={"If-None-Match": "*"}
    )

    assert [policy_document[name] for name in ("inForce", "hash", "policy")] == [None, None, None]
    assert policy_document["refused"]
    assert [page.status for page in pages] == [200] * 4
    for page in pages[:2]:
        assert page.document["health"] == "CRITICAL"
        assert (
            f"no policy is in force, so Evenkeel decides nothing: {policy_document['refused']}"
            in (page.document["reasons"])
        )
        assert page.document["automation"]["modeInForce"] == "observe"
    assert problem_code(change) == (503, "UNAVAILABLE")
    assert "An administrator must apply a valid policy." in change.document["detail"]


@pytest.mark.parametrize("fields", [{"changes": {"repair": {"noLonger": 1}}}, {"number": "two"}])
def test_policy_apply_replaces_an_unusable_change(gateway_with_policy: Gateway, fields: dict[str, Any]) -> None:
    put_policy(gateway_with_policy, {})
    put_policy(gateway_with_policy, key="k2")
    break_policy_row(gateway_with_policy, **fields)

    trial = gateway_with_policy.call("POST", f"{POLICY_ROUTE}/test", {"changes": SITE_CHANGES}, key="k3")
    stale = put_policy(gateway_with_policy, key="k4", basedOn="0123456789ab")
    response = put_policy(gateway_with_policy, key="k5")
    gateway_with_policy.fakes.clock.advance(31)
    document = gateway_with_policy.get(POLICY_ROUTE).document

    assert (trial.status, stale.status, response.status) == (200, 409, 200)
    assert response.document["number"] == 3
    assert (document["inForce"], document["refused"]) == (3, None)
    assert document["policy"]["repair"]["maxAttempts"] == 2
    assert stored_policy_row(gateway_with_policy, Table.JOBS) == stored_policy_row(gateway_with_policy)


UNUSABLE = {"repair": {"noLonger": 1}}


@pytest.mark.parametrize("fields", [{"number": "two"}, {"changes": UNUSABLE, "before": UNUSABLE}])
def test_change_based_on_the_kept_policy_replaces_an_unusable_change(
    gateway_with_policy: Gateway, fields: dict[str, Any]
) -> None:
    put_policy(gateway_with_policy)
    gateway_with_policy.fakes.clock.advance(31)
    known_hash = gateway_with_policy.get(POLICY_ROUTE).document["hash"]
    break_row_of_warm_container(gateway_with_policy, **fields)
    gateway_with_policy.fakes.clock.advance(31)
    document = gateway_with_policy.get(POLICY_ROUTE).document

    stale, first, second = (
        put_policy(gateway_with_policy, {}, key=key, basedOn=based_on)
        for key, based_on in (("k2", "0123456789ab"), ("k3", known_hash), ("k4", known_hash))
    )

    assert (document["hash"], document["inForce"], bool(document["refused"])) == (known_hash, 1, True)
    assert [answer.status for answer in (stale, first, second)] == [409, 200, 409]
    assert first.document["number"] == 2


def test_unusable_change_that_nobody_saw_is_not_replaced(gateway_with_policy: Gateway) -> None:
    shown_hash = gateway_with_policy.get(POLICY_ROUTE).document["hash"]
    for table in (Table.INCIDENTS, Table.JOBS):
        gateway_with_policy.fakes.ledger.commit(Put(Row(site_policy_key(table), {"number": "one"})))

    assert problem_code(put_policy(gateway_with_policy, basedOn=shown_hash)) == (409, "CONFLICT")


def test_change_after_an_unreadable_one_has_the_next_number(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy)
    break_policy_row(gateway_with_policy, number=7, at="never")

    assert put_policy(gateway_with_policy, key="k2").document["number"] == 8


def test_overview_names_a_refused_policy_change(gateway_with_policy: Gateway) -> None:
    put_policy(gateway_with_policy)
    put_policy(gateway_with_policy, {"repair": {"maxAttempts": 1}}, key="k2")
    break_policy_row(gateway_with_policy, changes={"repair": {"noLonger": 1}})

    document = gateway_with_policy.get("/v1/overview").document

    assert document["health"] == "CRITICAL"
    (reason,) = [text for text in document["reasons"] if "policy" in text]
    assert reason.startswith("change 1 of the policy is in force, not the last change: change 2 by ")
    assert reason.endswith("repair.noLonger: is not a known field")


def test_mode_rule_for_an_unknown_fault_class_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no fault class \\*; omit faultClass for all"):
        Policy.model_validate({"modes": [{"faultClass": "*", "mode": "observe"}]})


@pytest.mark.parametrize("text", ["a\u202eb", "a\x1b[31m", "a\nb", "a" * 2000])
@pytest.mark.parametrize(
    "changes",
    [
        lambda text: {"name": text},
        lambda text: {"repair": {"testJobImage": text}},
        lambda text: {"burst": {"teamCapsMicrosPerHour": {text: 1}}},
        lambda text: {"burst": {"delayMicrosPerHour": {text: 1}}},
        lambda text: {"modes": [{"mode": "act", "pool": text}]},
    ],
)
def test_policy_texts_are_single_printable_lines(gateway: Gateway, changes: Any, text: str) -> None:
    answer = gateway.post("/v1/clusters/laptop/policy/test", {"changes": changes(text)})

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")


def test_expected_run_time_for_a_kubernetes_system_class_is_refused(gateway: Gateway) -> None:
    changes = {"burst": {"expectedRunSeconds": {"system-node-critical": 60}}}

    assert gateway.post("/v1/clusters/laptop/policy/test", {"changes": changes}).status == 400
