"""Changes of the site policy: validated, recorded, and applied once even if the request is repeated."""

import copy
import math
from collections.abc import Iterator
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
from evenkeel.services.storage import rows
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_decision, a_job, ago, an_attempt, an_incident
from tests.unit.api.seeds import stored as keep
from tests.unit.recovery.facts import plan_facts, repair_facts
from tests.unit.recovery.test_guardrails import guardrail_facts
from tests.unit.scheduling.builders import a_node_capacity, a_request

PATH = "/v1/clusters/laptop/policy"
OURS = {"faults": {"xid:94": {"ladder": ["replace"], "severity": "critical"}}, "repair": {"maxAttempts": 2}}


@pytest.fixture
def site(gateway: Gateway) -> Gateway:
    """The API of a site with its policy in the table."""
    world = gateway.world
    world.__dict__["policies"] = SitePolicy(gateway.fakes.policy, Table.INCIDENTS, world)
    return gateway


def put_policy(site: Gateway, changes: Any = OURS, key: str = "k1", **more: Any) -> ApiResponse:
    return site.call("POST", PATH, {"changes": changes, "reason": "Ours.", **more}, key=key)


def problem_code(answer: ApiResponse) -> tuple[int, str]:
    return answer.status, answer.document["code"]


def stored_policy_row(site: Gateway, table: Table = Table.INCIDENTS) -> PolicyChange | None:
    row = site.fakes.ledger.get(site_policy_key(table))
    return rows.decode(row, PolicyChange) if row else None


def test_policy_change_applies_and_shows_its_author(site: Gateway) -> None:
    response = put_policy(site)
    site.fakes.clock.advance(31)
    shown = site.get(PATH).document

    assert response.status == 200
    assert shown["policy"]["repair"]["maxAttempts"] == 2
    assert shown["change"]["changes"] == OURS
    assert shown["change"]["number"] == 1
    assert "ana" in shown["change"]["by"].lower()
    assert shown["catalogueHash"] != site.fakes.policy.catalogue.hash


def test_policy_is_stored_in_both_tables(site: Gateway) -> None:
    put_policy(site)
    put_policy(site, {}, key="k2")

    assert stored_policy_row(site, Table.INCIDENTS) == stored_policy_row(site, Table.JOBS)
    assert stored_policy_row(site)


def test_late_repeat_does_not_undo_a_newer_change(site: Gateway) -> None:
    first = put_policy(site)
    put_policy(site, {"repair": {"maxAttempts": 1}}, key="k2")

    again = put_policy(site)

    assert again.document == first.document
    change = stored_policy_row(site)
    assert change
    assert (change.number, change.changes) == (2, {"repair": {"maxAttempts": 1}})
    assert change.before == OURS


def test_idempotency_key_belongs_to_one_request(site: Gateway) -> None:
    put_policy(site)

    assert problem_code(put_policy(site, {"repair": {"maxAttempts": 1}})) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"repair": {"maxAtempts": 2}}, "repair.maxAtempts: there is no such field"),
        ({"faults": {"xid:9999": {}}}, "there is no fault 'xid:9999'"),
    ],
)
def test_invalid_policy_is_refused_by_field(site: Gateway, changes: dict[str, Any], expected: str) -> None:
    refused = put_policy(site, changes)

    assert problem_code(refused) == (400, "VALIDATION_FAILED")
    assert expected in refused.text
    assert stored_policy_row(site) is None


def test_change_for_an_older_policy_is_refused(site: Gateway) -> None:
    put_policy(site)

    stale = put_policy(site, {}, key="k2", basedOn=site.fakes.policy.hash)

    assert problem_code(stale) == (409, "CONFLICT")
    change = stored_policy_row(site)
    assert change
    assert change.number == 1


def a_rollback(taken_back: int) -> Decision:
    """Return the record of a rollback, for the fourth time at most."""
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
        distrusted_before=None,
        required_before=CheckpointRequirement.CONVENTION,
        rollbacks=taken_back,
    )
    decided = decide_rollback(facts, Policy().jobs)
    return a_decision(
        taken_back,
        "inc-0000000001",
        kind="ROLLBACK",
        action=decided.action,
        reason=decided.reason,
        alternatives=decided.alternatives,
        facts=facts.to_json(),
    )


def replay_policy(site: Gateway, changes: Any, **more: Any) -> ApiResponse:
    return site.call("POST", f"{PATH}/test", {"changes": changes, **more})


def test_proposed_policy_is_replayed_on_recorded_decisions(site: Gateway) -> None:
    keep(site.fakes.ledger, an_incident(), a_rollback(1), a_rollback(2))
    commits = len(site.fakes.ledger.commits)

    same, other = replay_policy(site, {}).document, replay_policy(site, {"jobs": {"maxRollbacks": 2}}).document

    assert (same["examined"], same["changed"]) == (2, [])
    (changed,) = other["changed"]
    assert (changed["decisionId"], changed["before"]["action"], changed["after"]["action"]) == (
        "dec-0000000002",
        "STOP",
        "LIMIT",
    )
    assert len(site.fakes.ledger.commits) == commits


def test_admission_is_replayed_under_another_number_of_spare_nodes(site: Gateway) -> None:
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
    keep(site.fakes.ledger, a_job(1), record)

    same = replay_policy(site, {}).document
    other = replay_policy(site, {"scheduling": {"spareNodes": {"workers": 2}}}).document

    assert (same["examined"], same["changed"]) == (1, [])
    (changed,) = other["changed"]
    assert (changed["kind"], changed["before"]["action"], changed["after"]["action"]) == ("ADMISSION", "ADMIT", "WAIT")
    assert "workers keeps 2 free nodes for recoveries" in changed["after"]["reason"]
    assert "recorded quotas" in other["asRecorded"]


def a_plan(number: int, subject: str, mode: Mode = Mode.ACT) -> Decision:
    """Return the record of a recovery plan in a mode."""
    facts = plan_facts(mode=mode)
    plan = plan_recovery(facts, Policy().repair)
    document: dict[str, Any] = {"action": plan.intent, "reason": plan.reason, "alternatives": plan.alternatives}
    return a_decision(number, subject, facts=facts.to_json(), mode=mode, **document)


def a_repair(number: int, subject: str, **changes: Any) -> Decision:
    other = RegisterEntry(life="another", incident_id="inc-9", pool="others", since=A_MOMENT)
    under_way = Register(entries=(other,))
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
def test_proposed_modes_are_replayed_on_recorded_decisions(site: Gateway, rule: dict[str, str], after: str) -> None:
    keep(site.fakes.ledger, an_incident(), a_plan(1, "inc-0000000001"))

    document = replay_policy(site, {"modes": [rule]}).document

    changes = [(change["before"], change["after"]["action"], change["after"]["mode"]) for change in document["changed"]]
    assert [(before["action"], before["mode"], action) for before, action, _ in changes] == (
        [("ACT", "act", after)] if after else []
    )
    assert document["cannot"] == 0


def test_removal_of_mode_rules_is_replayed_on_decisions(site: Gateway) -> None:
    put_policy(site, {"modes": [{"mode": "observe"}]})
    site.fakes.clock.advance(31)
    keep(site.fakes.ledger, an_incident(mode="observe"), a_plan(1, "inc-0000000001", Mode.OBSERVE))

    same, freed = replay_policy(site, {"modes": [{"mode": "observe"}]}).document, replay_policy(site, {}).document

    assert same["changed"] == []
    assert [(change["before"]["action"], change["after"]["action"]) for change in freed["changed"]] == [
        ("OBSERVE", "ACT")
    ]


def test_repair_is_replayed_under_other_modes_and_limits(site: Gateway) -> None:
    keep(site.fakes.ledger, an_incident(), a_repair(1, "inc-0000000001"))

    same = replay_policy(site, {}).document
    observed = replay_policy(site, {"modes": [{"mode": "observe"}]}).document
    limited = replay_policy(site, {"repair": {"guardrails": {"fleetRepairs": 1}}}).document

    assert (same["examined"], same["changed"], same["cannot"]) == (1, [], 0)
    assert [change["kind"] for change in observed["changed"]] == ["REPAIR"]
    assert "Mode is observe" in observed["changed"][0]["after"]["reason"]
    assert [(change["before"]["action"], change["after"]["action"]) for change in limited["changed"]] == [
        ("REBOOT", "BLOCKED")
    ]


def test_records_that_cannot_replay_are_counted_and_old_ones_skipped(site: Gateway) -> None:
    keep(site.fakes.ledger, an_incident(), a_decision(1, "inc-0000000001", engine_version="0"))
    keep(site.fakes.ledger, a_decision(2, "inc-0000000001", kind="ROLLBACK"))

    document = replay_policy(site, {}).document

    assert (document["examined"], document["cannot"], document["changed"]) == (2, 2, [])
    assert replay_policy(site, {}, since="2030-01-01T00:00:00Z").document["examined"] == 0


def test_invalid_policy_is_not_replayed(site: Gateway) -> None:
    assert problem_code(replay_policy(site, {"jobs": {"maxRollbaks": 2}})) == (400, "VALIDATION_FAILED")
    assert problem_code(replay_policy(site, {}, since="2026-11-03T10:15:00")) == (400, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    "since", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "1793700840", "2026-11-03", 1793700840]
)
def test_trial_start_must_be_a_valid_time(site: Gateway, since: Any) -> None:
    refused = replay_policy(site, {}, since=since)

    assert problem_code(refused) == (400, "VALIDATION_FAILED")
    assert [error["field"] for error in refused.document["errors"]] == ["since"]
    assert replay_policy(site, {}, since="0001-01-01T00:00:00Z").status == 200


@pytest.mark.parametrize("size", [1, 2, 50])
def test_history_lists_every_change_newest_first(site: Gateway, size: int) -> None:
    for number in range(1, 6):
        assert put_policy(site, {"repair": {"maxAttempts": number}}, key=f"k{number}").status == 200
    put_policy(site, {"repair": {"maxAttempts": 3}}, key="k3")  # a late repeat changes nothing

    changes, token = [], ""
    while True:
        document = site.get(f"{PATH}?pageSize={size}" + (f"&nextPageToken={token}" if token else "")).document[
            "history"
        ]
        changes += document["items"]
        token = document["nextPageToken"]
        if not token:
            break

    assert [(change["number"], change["changes"]["repair"]["maxAttempts"]) for change in changes] == [
        (number, number) for number in (5, 4, 3, 2, 1)
    ]
    assert {(change["by"], change["reason"]) for change in changes} == {("role/Researcher (ana)", "Ours.")}


def test_history_is_empty_before_the_first_policy_change(site: Gateway) -> None:
    assert site.get(PATH).document["history"] == {"items": [], "nextPageToken": None}


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
FULL: dict[str, Any] = {
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
WHOLE = changed(Policy(), FULL).to_json()


def paths_of_numbers(part: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every number in a document."""
    if isinstance(part, dict | list):
        for name, item in part.items() if isinstance(part, dict) else enumerate(part):
            yield from paths_of_numbers(item, (*way, name))
    elif isinstance(part, int | float) and not isinstance(part, bool):
        yield way


def policy_with_number(way: tuple[str | int, ...], value: float) -> dict[str, Any]:
    """Return the whole policy with one number replaced."""
    document = copy.deepcopy(WHOLE)
    part: Any = document
    for name in way[:-1]:
        part = part[name]
    part[way[-1]] = value
    return document


@pytest.mark.parametrize("way", list(paths_of_numbers(WHOLE)), ids=lambda way: ".".join(map(str, way)))
def test_every_number_of_the_policy_has_bounds(way: tuple[str | int, ...]) -> None:
    for value in (-(10**18), 10**18, math.inf, -math.inf, math.nan):
        with pytest.raises(PolicyError):
            changed(Policy(), policy_with_number(way, value))


def test_every_field_of_a_section_has_bounds() -> None:
    schema = Policy.model_json_schema()
    sections = {section.__name__ for section in Section.__subclasses__()}

    def is_open(part: Any) -> bool:
        match part:
            case {"type": "integer" | "number"}:
                lower, upper = part.keys() & {"minimum", "exclusiveMinimum"}, part.keys() & {"maximum"}
                return not (lower and upper)
            case {"anyOf": list(ways)}:
                return any(map(is_open, ways))
            case {"additionalProperties": dict(values)}:
                return is_open(values)
        return False

    fields_without_bounds = [
        f"{name}.{field}"
        for name in sections & schema["$defs"].keys()
        for field, part in schema["$defs"][name]["properties"].items()
        if is_open(part)
    ]
    assert fields_without_bounds == []
    assert {"EconomyPolicy", "WatchPolicy", "SchedulingPolicy", "BurstPolicy", "ServingWorkload"} <= sections


@pytest.mark.parametrize("heads", [0, -1, 100_000])
def test_jobs_per_page_has_bounds(site: Gateway, heads: int) -> None:
    refused = put_policy(site, {"scheduling": {"jobsPerPage": heads}})

    assert problem_code(refused) == (400, "VALIDATION_FAILED")
    assert "scheduling.jobsPerPage" in refused.document["detail"]
    assert stored_policy_row(site) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"economy": {"otherUsdPerAcceleratorHour": math.inf}},
        {"repair": {"guardrails": {"poolRepairShare": math.nan}}},
        {"scheduling": {"elastic": {"resizeSeconds": math.inf}}},
    ],
)
def test_null_value_is_no_policy_change(site: Gateway, changes: dict[str, Any]) -> None:
    request = change_policy.ChangePolicyRequest(
        changes=changes, by="role/Admin", reason="x", request_id="r", fingerprint="f"
    )

    with pytest.raises(Invalid):
        change_policy.run(request, ledger=site.fakes.ledger, base=Policy(), now=ago())
    assert stored_policy_row(site) is None


def test_margins_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(PolicyError, match="must not exceed a year"):
        changed(Policy(), {"repair": {"flapMarginFactor": 10, "lemonReturns": 1000}})
    with pytest.raises(PolicyError, match="p90Seconds may be at most a day"):
        changed(Policy(), {"burst": {"pools": [POOL | {"launch": {"p50Seconds": 1e-9, "p90Seconds": 600}}]}})


def test_unusable_change_is_shown_with_the_policy_in_force(site: Gateway) -> None:
    put_policy(site)
    put_policy(site, {"repair": {"maxAttempts": 1}}, key="k2")
    change = stored_policy_row(site)
    assert change
    nonsense = change.replace(changes={"repair": {"noLonger": 1}}, number=3, before=change.changes)
    document = site.get(PATH).document
    key = site_policy_key(Table.INCIDENTS)
    row = site.fakes.ledger.get(key)
    assert row
    site.fakes.ledger.commit(Put(Row(key, nonsense.to_json(), row.version)))
    site.fakes.clock.advance(31)

    shown = site.get(PATH).document

    assert (document["refused"], document["inForce"]) == (None, 2)
    assert shown["inForce"] == 2
    assert "change 3 by" in shown["refused"]
    assert "repair.noLonger: there is no such field" in shown["refused"]
    assert shown["policy"]["repair"]["maxAttempts"] == 1


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


def test_run_time_of_a_kubernetes_priority_class_is_refused(gateway: Gateway) -> None:
    changes = {"burst": {"expectedRunSeconds": {"system-node-critical": 60}}}

    assert gateway.post("/v1/clusters/laptop/policy/test", {"changes": changes}).status == 400
