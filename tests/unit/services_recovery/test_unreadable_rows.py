"""A row with a value of a newer release: the row stays, it is reported, and all other work continues."""

import json
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from evenkeel.domain.values import StrictValue, Value
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import ExecutionState, Key, Put, Row, Table, Unreachable, Unreadable, WorkflowName
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.fleet import read_sources, read_status
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.storage import pagination
from evenkeel.services.sweep import sweep_fleet, watch_cluster
from evenkeel.services.tables import fleet_rows, rows
from evenkeel.services.waits import evaluate_waits
from tests.stored_rows import type_of
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

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
