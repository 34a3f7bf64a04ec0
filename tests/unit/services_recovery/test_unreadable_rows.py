"""A row with a value of a newer release: the row stays, it is reported, and all other work continues."""

import json
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from evenkeel.domain.capacity.run_times import PastJob
from evenkeel.domain.health.incidents import AffectedJob
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.guardrails import GuardrailAction
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.domain.values import StrictValue, Value
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import ExecutionState, Key, Put, Row, Table, Unreachable, Unreadable, WorkflowName
from evenkeel.services.incidents import unresolved_facts
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.fleet import read_sources, read_status
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.recovery import blocked_incidents, cordon_node, drain_node, plan_recovery, repair_node
from evenkeel.services.recovery.guardrail_inputs import GuardrailInputs
from evenkeel.services.rentals import rental_store
from evenkeel.services.resume import plan_resume
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.storage import heartbeats, pagination, past_jobs
from evenkeel.services.sweep import sweep_fleet, watch_cluster
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, rows
from evenkeel.services.waits import evaluate_waits
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.ledger import InMemoryLedger
from tests.stored_rows import type_of
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, a_fact
from tests.unit.services_recovery.test_rollback_in_recovery import recovery_of_moved_job, report_corrupting_fault

NEW_VALUE = "VALUE_OF_A_NEWER_RELEASE"
FAILS_AS_A_WHOLE = {"Charge", "RentalAllocation"}
"""Types of rows that a scheduling cycle adds up. It admits nothing if it cannot read one of them."""


def busy_test_fleet() -> RecoveryScenario:
    """Return a fleet with a running job, a waiting job, two open incidents and an open wait."""
    scenario = RecoveryScenario(size=5)
    scenario.report_fault(1)
    scenario.open_wait(ConditionKind.REPAIR_POSSIBLE)
    scenario.report_fault(3)
    scenario.scenario.submit("waits", nodes=5)
    scenario.world.clock.advance(300)
    scenario.world.workflows.executions.clear()
    return scenario


def enum_paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value of an enumeration in a document."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from enum_paths(getattr(value, name), (*path, field.alias or name))
    elif isinstance(value, Enum):
        yield path


def enum_cases() -> list[tuple[str, Key, tuple[str, ...]]]:
    cases: dict[str, tuple[str, Key, tuple[str, ...]]] = {}
    for key, row in busy_test_fleet().world.ledger.rows.items():
        row_type = type_of(key)
        value = None if row_type.text else row_type.kind.model_validate(row.doc)
        for path in enum_paths(value):
            name = f"{row_type.kind.__name__}.{'.'.join(path)}"
            cases.setdefault(name, (name, key, path))
    return list(cases.values())


def write_newer_value(scenario: RecoveryScenario, key: Key, path: tuple[str, ...]) -> str:
    """Write a value of a newer release into a row, and return the stored document."""
    ledger = scenario.world.ledger
    row = ledger.get(key)
    assert row is not None
    document = row.doc
    *outer, last = path
    for name in outer:
        document = document[name]
    document[last] = NEW_VALUE
    ledger.commit(Put(row))
    return json.dumps(row.doc, sort_keys=True)


CASES = enum_cases()


def test_tested_rows_include_the_states_of_main_documents() -> None:
    assert {"Job.state", "Attempt.state", "Incident.state", "Wait.state"} <= {name for name, _, _ in CASES}


@pytest.mark.parametrize(("name", "key", "path"), CASES, ids=[name for name, _, _ in CASES])
def test_row_with_an_unknown_value_stops_no_other_row(name: str, key: Key, path: tuple[str, ...]) -> None:
    scenario = busy_test_fleet()
    before = write_newer_value(scenario, key, path)
    calls: list[Callable[[], Any]] = [
        lambda: sweep_fleet.run(scenario.context()),
        lambda: watch_cluster.run(scenario.context()),
        lambda: evaluate_waits.run(scenario.context(), repeat_answered=True),
        lambda: read_jobs.list_jobs(read_jobs.JobFilter(), pagination.PageRequest(), Reader(), scenario.context()),
        lambda: read_incidents.list_incidents((), pagination.PageRequest(), scenario.context()),
        lambda: read_status.show_status(read_sources.read_source_ages(scenario.context()), scenario.context()),
    ]
    for call in calls:
        call()
    assert all(NEW_VALUE in failure for failure in sweep_fleet.run(scenario.context()).failed)
    assert not any("kubernetes-list" in failure for failure in sweep_fleet.run(scenario.context()).failed)
    if name.partition(".")[0] not in FAILS_AS_A_WHOLE:
        schedule_jobs.run(scenario.context())

    row = scenario.world.ledger.get(key)
    assert row is not None
    assert json.dumps(row.doc, sort_keys=True) == before
    assert not [call for call in scenario.world.cluster.calls if call[0] in ("stop", "evict", "force_delete_pods")]


@pytest.mark.parametrize(("name", "key", "path"), CASES, ids=[name for name, _, _ in CASES])
def test_row_with_an_unknown_value_stops_no_other_recovery(name: str, key: Key, path: tuple[str, ...]) -> None:
    scenario = busy_test_fleet()
    own_rows = (scenario.incident_id, scenario.incident.life.key, scenario.incident.slot)
    if any(part in key.pk for part in own_rows) or name.startswith("Wait."):
        return
    write_newer_value(scenario, key, path)
    scenario.job_id = ""

    assert scenario.recover() == "RECOVERED"


def attempt_on_node_becomes_unreadable(fault_key: str, policy: Policy = QUICK) -> RecoveryScenario:
    """Return a recovery whose plan and cordon are done. This release cannot read the attempt on its node."""
    scenario = RecoveryScenario(policy=policy)
    scenario.report_fault(fault_key=fault_key)
    for service in (plan_recovery, cordon_node):
        scenario.run_state("", service)
    write_newer_value(scenario, job_rows.attempt_key(scenario.job_id, 1), ("state",))
    scenario.job_id = ""
    return scenario


@pytest.mark.parametrize("fault_key", ["hp:NvidiaErrorReboot", "xid:79"])
def test_node_with_an_unreadable_attempt_is_left_to_a_person(fault_key: str) -> None:
    scenario = attempt_on_node_becomes_unreadable(fault_key)

    drained = scenario.run_state("DrainNode", drain_node)
    repaired = scenario.run_state("RepairNode", repair_node)

    assert (drained.outcome, drained.unreadable_attempts) == ("JOBS_AFFECTED", ("job-0000000001-a1",))
    assert (repaired.outcome, scenario.provider.accepted_calls("reboot").total()) == ("ASK_PERSON", 0)
    assert scenario.provider.accepted_calls("replace").total() == 0
    entries = scenario.world.ledger.partition(Table.INCIDENTS, f"INC#{scenario.incident_id}", "EVENT#")
    assert [row.doc["kind"] for row in entries if "job-0000000001-a1" in row.doc["text"]] == ["job", "asked"]
    decisions = scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{scenario.incident_id}").rows
    decision = next(row.doc for row in decisions if row.doc["action"] == "ASK_PERSON")
    assert decision["facts"]["unreadableAttempts"] == ["job-0000000001-a1"]


def test_repair_waits_for_unreadable_attempt_until_drain_ends() -> None:
    policy = QUICK.replace(repair=QUICK.repair.replace(drain_scale=1.0))
    scenario = attempt_on_node_becomes_unreadable("hp:NvidiaErrorReboot", policy)

    assert scenario.run_state("RepairNode", repair_node).outcome == "RETRY"


def two_jobs_on_the_node() -> tuple[RecoveryScenario, str]:
    """Return a recovery whose plan and cordon are done, and another job on its node."""
    scenario = RecoveryScenario(size=4)
    other_job_id = scenario.scenario.running(nodes=1, checkpoint_uri="").job_id
    other = scenario.scenario.attempt(other_job_id, 1)
    job_attempt = scenario.scenario.attempt(scenario.job_id, 1)
    shared = other.replace(nodes=job_attempt.nodes[:1], node_names=job_attempt.node_names[:1])
    scenario.scenario.store_row(job_rows.attempt_row(shared, 0))
    scenario.report_fault()
    for service in (plan_recovery, cordon_node):
        scenario.run_state("", service)
    return scenario, other_job_id


def test_unreadable_job_stops_no_other_job_on_the_node() -> None:
    scenario, other_job_id = two_jobs_on_the_node()
    write_newer_value(scenario, job_rows.job_key(scenario.job_id), ("state",))

    drained = scenario.run_state("DrainNode", drain_node)

    assert [job.job_id for job in drained.jobs] == [other_job_id]
    assert scenario.scenario.job(other_job_id).stop_of(1)
    assert drained.unreadable_attempts == (f"{scenario.job_id}-a1",)


def test_job_that_becomes_unreadable_stops_no_other_resume() -> None:
    scenario, other_job_id = two_jobs_on_the_node()
    assert len(scenario.run_state("DrainNode", drain_node).jobs) == 2
    write_newer_value(scenario, job_rows.job_key(scenario.job_id), ("state",))

    drained = scenario.run_state("DrainNode", drain_node)
    planned = scenario.run_state("PlanResume", plan_resume)

    assert drained.unreadable_attempts == (f"{scenario.job_id}-a1",)
    assert [job.job_id for job in planned.jobs] == [other_job_id]


def test_unreadable_row_of_lost_node_does_not_stop_resume() -> None:
    scenario = RecoveryScenario(size=4)
    sweep_fleet.run(scenario.context())
    scenario.report_fault()
    for service in (plan_recovery, cordon_node, drain_node):
        scenario.run_state("", service)
    scenario.world.cluster.remove_node(scenario.incident.node_name)
    write_newer_value(scenario, fleet_rows.node_key(CLUSTER, instance_id(1)), ("isReady",))

    planned = scenario.run_state("PlanResume", plan_resume)

    assert [job.job_id for job in planned.jobs] == [scenario.job_id]


def test_unreadable_job_stops_no_rollback_of_another() -> None:
    recovery = recovery_of_moved_job()
    report_corrupting_fault(recovery)
    other_job_id = recovery.scenario.submit("other", nodes=1).job_id
    write_newer_value(recovery, job_rows.job_key(other_job_id), ("state",))
    jobs = (AffectedJob(job_id=other_job_id, attempt=1), *recovery.incident.affected_jobs)

    assert plan_resume.roll_back_jobs(recovery.incident.replace(affected_jobs=jobs), recovery.context()) == 1
    assert recovery.job.rollbacks == 1


def test_unreadable_attempt_is_left_out_of_estimates() -> None:
    recovery = recovery_of_moved_job()
    write_newer_value(recovery, job_rows.attempt_key(recovery.job_id, 1), ("state",))

    attempts = rental_store.read_attempts(recovery.world.ledger, [recovery.job])

    assert [attempt.attempt for attempt in attempts] == [2]


@pytest.mark.parametrize("unreadable", [{"startedAt": "yesterday"}, {"spec": {}}, {"spec": None}, {"endedAt": 5}])
def test_unreadable_past_job_leaves_run_times_of_others(unreadable: dict[str, Any]) -> None:
    ledger = InMemoryLedger()
    run = {"startedAt": "2026-11-03T10:00:00Z", "endedAt": "2026-11-03T11:00:00Z", "spec": {"team": "red"}}
    for name, document in (("job-1", run), ("job-2", run | unreadable)):
        state = (f"JOB#{JobState.SUCCEEDED}", name)
        ledger.commit(Put(Row(Key(Table.JOBS, f"JOB#{name}", "META"), document, state=state)))

    assert past_jobs.load_past_jobs(ledger) == (PastJob("red", "", "", 3600.0),)


def test_source_with_unreadable_report_is_unknown_until_next_run() -> None:
    scenario = RecoveryScenario()
    sweep_fleet.run(scenario.context())
    ledger, key = scenario.world.ledger, fleet_rows.heartbeat_key("sweep_fleet")
    reports = heartbeats.load_source_reports(ledger)
    row = ledger.get(key)
    assert row is not None
    row.doc["sources"]["sweep/facts"] = {"triedAt": "yesterday"}
    ledger.commit(Put(row))

    assert heartbeats.load_source_reports(ledger) == {
        name: report for name, report in reports.items() if name != "sweep/facts"
    }
    scenario.world.clock.advance(60)
    sweep_fleet.run(scenario.context())
    assert heartbeats.load_source_reports(ledger).keys() == reports.keys()


def test_node_with_an_unreadable_record_takes_no_work() -> None:
    scenario = RecoveryScenario(size=3, with_job=False)
    sweep_fleet.run(scenario.context())
    life = rows.decode(scenario.world.ledger.by_state(Table.FLEET, "NODE").rows[0], FleetNode).life
    record = UnhealthyNode(life=life, incident_id="inc-1", since=scenario.now, reason="It fails.")
    row = incident_rows.unhealthy_row(record, 0)
    scenario.world.ledger.commit(Put(Row(row.key, {**row.doc, "since": NEW_VALUE}, 0, row.state)))
    job = scenario.scenario.submit("small", nodes=2)

    schedule_jobs.run(scenario.context())

    attempt = scenario.scenario.attempt(job.job_id, 1)
    assert {life.instance_id for life in attempt.nodes} == {instance_id(2), instance_id(3)}


def test_unreadable_node_row_stops_no_submission_or_admission() -> None:
    scenario = RecoveryScenario(size=3, with_job=False)
    sweep_fleet.run(scenario.context())
    key = scenario.world.ledger.by_state(Table.FLEET, "NODE").rows[0].key
    write_newer_value(scenario, key, ("isReady",))
    job = scenario.scenario.submit("all", nodes=3)

    schedule_jobs.run(scenario.context())

    assert scenario.scenario.job(job.job_id).state == "STARTING"


@pytest.mark.parametrize("breaks", ["incident", "node"])
def test_unreadable_failure_counts_for_a_shared_cause(breaks: str) -> None:
    scenario = RecoveryScenario(size=5, with_job=False)
    sweep_fleet.run(scenario.context())
    for number in (1, 3):
        scenario.report_fault(number, observed_at=scenario.now)
    first = scenario.incidents()[0]
    if breaks == "incident":
        write_newer_value(scenario, incident_rows.incident_key(first.incident_id), ("severity",))
    else:
        write_newer_value(scenario, fleet_rows.node_key(first.life.cluster, first.life.instance_id), ("isReady",))

    state = GuardrailInputs(scenario.context()).read_facts(GuardrailAction.REPLACE, scenario.incident)

    assert [len(cause.faulted_at) for cause in state.facts.causes] == [2] * len(state.facts.causes)
    assert {cause.kind for cause in state.facts.causes} >= {"zone", "image"}


@pytest.mark.parametrize("fault_key", ["hp:NvidiaErrorReboot", "xid:79"])
def test_node_with_unreadable_own_row_is_left_to_person(fault_key: str) -> None:
    scenario = RecoveryScenario(size=3, with_job=False)
    sweep_fleet.run(scenario.context())
    scenario.report_fault(fault_key=fault_key, observed_at=scenario.now)
    life = scenario.incident.life
    write_newer_value(scenario, fleet_rows.node_key(life.cluster, life.instance_id), ("isReady",))

    assert scenario.recover() == "WAITING_FOR_PERSON"

    assert "cannot read the node's row" in scenario.incident.outcome
    assert not scenario.provider.asked


def test_fact_about_node_with_unreadable_row_opens_incident() -> None:
    scenario = RecoveryScenario(size=3, with_job=False)
    sweep_fleet.run(scenario.context())
    write_newer_value(scenario, fleet_rows.node_key(CLUSTER, instance_id(1)), ("isReady",))

    result = scenario.ingest(a_fact(1, observed_at=scenario.now))

    assert result.outcome == "OPEN"


def test_fact_is_unresolved_while_life_of_node_is_unreadable() -> None:
    scenario = RecoveryScenario(size=3, with_job=False)
    sweep_fleet.run(scenario.context())
    write_newer_value(scenario, fleet_rows.node_key(CLUSTER, instance_id(1)), ("life", "launchedAt"))
    scenario.world.provider.by_id.clear()

    result = scenario.ingest(a_fact(1, observed_at=scenario.now))
    scenario.world.clock.advance(7 * 3600)
    unresolved_facts.retry_unresolved(scenario.context())

    assert result.outcome == "UNRESOLVED"
    assert scenario.world.telemetry.totals["FactsDropped"] == 1


def test_notice_about_node_with_unreadable_row_is_unresolved() -> None:
    scenario = RecoveryScenario(size=3, with_job=False)
    sweep_fleet.run(scenario.context())
    write_newer_value(scenario, fleet_rows.node_key(CLUSTER, instance_id(1)), ("life", "launchedAt"))

    notice = a_fact(1, source="health.event", fault_key="health:instance_retirement", observed_at=scenario.now)

    assert scenario.ingest(notice).outcome == "UNRESOLVED"


def test_unreadable_node_row_keeps_no_other_incident_blocked() -> None:
    scenario = RecoveryScenario(size=5, with_job=False)
    sweep_fleet.run(scenario.context())
    for number in (1, 3):
        scenario.report_fault(number, observed_at=scenario.now)
    first, second = scenario.incidents()
    key = fleet_rows.node_key(second.life.cluster, second.life.instance_id)
    write_newer_value(scenario, key, ("isReady",))
    inputs = GuardrailInputs(scenario.context())

    unblocked = blocked_incidents.unblocked_incidents([first, second], inputs, lambda _: False)

    assert first.incident_id in unblocked


def test_sweep_reports_the_row_and_starts_the_other_recovery() -> None:
    scenario = busy_test_fleet()
    first, second = (incident.incident_id for incident in scenario.incidents())
    write_newer_value(scenario, Key(Table.INCIDENTS, f"INC#{first}", "META"), ("state",))

    swept = sweep_fleet.run(scenario.context())

    assert [name.partition("-r")[0] for name in scenario.execution_names()] == [second]
    assert any(first in failure and NEW_VALUE in failure for failure in swept.failed)
    assert scenario.world.telemetry.totals["RowsUnreadable"] >= 1


def test_unreadable_lemon_does_not_stop_inventory() -> None:
    scenario = busy_test_fleet()
    lease = Row(fleet_rows.lease_key("slot-9"), {"lemon": NEW_VALUE}, 0, ("LEMON", "slot-9"))
    scenario.world.ledger.commit(Put(lease))

    swept = sweep_fleet.run(scenario.context())

    assert [failure.partition(":")[0] for failure in swept.failed] == ["fleet"]
    assert len(scenario.world.ledger.by_state(Table.FLEET, "NODE").rows) == 5


def test_recovery_starts_although_start_of_another_one_fails() -> None:
    scenario = RecoveryScenario(size=5)
    for number in (1, 3):
        scenario.report_fault(number, fault_key="xid:79")
    scenario.world.clock.advance(300)
    scenario.world.workflows.executions.clear()
    scenario.world.workflows.states.clear()
    first, second = (incident.incident_id for incident in scenario.incidents())
    state = scenario.world.workflows.state

    def refuse_first(machine: WorkflowName, name: str) -> ExecutionState:
        if name.startswith(first):
            raise Unreachable("no answer")
        return state(machine, name)

    scenario.world.workflows.state = refuse_first  # type: ignore[method-assign]

    swept = sweep_fleet.run(scenario.context())

    assert [name.partition("-r")[0] for name in scenario.execution_names()] == [second]
    assert [failure.partition(":")[0] for failure in swept.failed] == ["incidents"]


class Inner(StrictValue):
    """A part of a request."""

    size: int = 1


class Outer(Value):
    """A row."""

    inner: Inner = Inner()
    name: str = ""


A_KEY = Key(Table.JOBS, "JOB#job-1", "META")


def test_stored_value_keeps_unknown_fields_at_every_depth() -> None:
    document = {"inner": {"size": 2, "shape": "round"}, "name": "a", "colour": "red"}

    read = rows.decode(Row(A_KEY, document), Outer)

    assert read.replace(name="b").to_json() == {**document, "name": "b"}
    assert read.replace(inner=read.inner.replace(size=3)).to_json()["inner"] == {"size": 3, "shape": "round"}
    rebuilt = Outer(name="c", inner=Inner(size=4)).keeping_unknown(read)
    assert rebuilt.to_json() == {"inner": {"size": 4, "shape": "round"}, "name": "c", "colour": "red"}


def test_request_with_unknown_field_is_refused_despite_tolerant_rows() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Outer.model_validate({"inner": {"shape": "round"}})


def test_value_read_from_a_row_equals_a_new_value() -> None:
    assert rows.decode(Row(A_KEY, {"inner": {"size": 2}}), Outer) == Outer(inner=Inner(size=2))


def test_unreadable_row_names_its_key_and_field() -> None:
    with pytest.raises(Unreadable, match=r"JOBS JOB#job-1 META: this release cannot read inner.size='big'"):
        rows.decode(Row(A_KEY, {"inner": {"size": "big"}}), Outer)
