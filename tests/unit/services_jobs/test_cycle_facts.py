"""The records of a cycle's admissions refer to facts that are stored once."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.decisions import OMITTED, Decision, packed
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.replay import CannotReplayError, replay
from evenkeel.domain.scheduling import cycle_facts
from evenkeel.domain.scheduling.cycle_facts import CycleFacts
from evenkeel.ports import Delete, Key, Ledger, Put, Row, Table, Throttled, row_bytes
from evenkeel.services.admin import try_policy
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.queries.records import explain
from evenkeel.services.storage.facts_of_decisions import with_facts
from evenkeel.services.tables import cycle_facts_rows, job_rows, rows, subject_rows
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_refused_writes import RefusingLedger
from tests.unit.services_jobs.test_teams import shared_fleet

CLASSES = ("low", "high")
BYTES = 4_000
"""Maximum bytes of one of many admissions, summed over its rows."""


def queue_jobs(jobs: int, **more: Any) -> tuple[JobScenario, list[str]]:
    """Return a fleet with enough free nodes, and the pending jobs of two teams."""
    scenario = shared_fleet(size=2 * jobs, red=16 * jobs, blue=16 * jobs, **more)
    names = [
        scenario.submit(
            f"key-{n}", team=("red", "blue")[n % 2], nodes=1 + n % 2, priority_class=("low", "high")[n % 3 // 2]
        )
        for n in range(jobs)
    ]
    return scenario, [job.job_id for job in names]


def admission_records(scenario: JobScenario) -> list[Decision]:
    decision_rows = [row for key, row in scenario.world.ledger.rows.items() if key.pk.startswith("DEC#")]
    return [record for row in decision_rows if (record := rows.decode(row, Decision)).action == "ADMIT"]


def stored_record(ledger: Ledger, record: Decision) -> Decision:
    row = ledger.get(subject_rows.decision_key(record.decision_id))
    assert row
    return rows.decode(row, Decision)


def shared_rows(scenario: JobScenario) -> list[Row]:
    return [row for key, row in scenario.world.ledger.rows.items() if key.pk.startswith("FACTS#")]


def test_many_admissions_write_few_small_rows() -> None:
    scenario, jobs = queue_jobs(60)
    before = len(scenario.world.ledger.commits)

    scenario.run_scheduling_cycle()

    commits = [
        commit
        for commit in scenario.world.ledger.commits[before:]
        if any(isinstance(write, Put) and write.row.key.sk.startswith("CHARGE#") for write in commit)
    ]
    puts = [write.row for commit in commits for write in commit if isinstance(write, Put)]
    own = [row for row in puts if row.key.sk != "META" or row.key.pk.startswith(("JOB#", "DEC#"))]
    assert len(admission_records(scenario)) == len(jobs)
    assert len(own) == 4 * len(jobs)
    assert len(shared_rows(scenario)) == 1
    assert sum(map(row_bytes, puts)) <= BYTES * len(jobs)


def test_every_record_of_a_cycle_replays() -> None:
    scenario, jobs = queue_jobs(40)
    scenario.run_scheduling_cycle()

    records = list(with_facts(admission_records(scenario), scenario.world.ledger))

    assert len(records) == len(jobs)
    assert all(record.facts["quota"]["quotas"] for record in records)
    assert [replay(record, scenario.policy).differs_from(record) for record in records] == [""] * len(jobs)


def test_single_admission_keeps_its_own_facts() -> None:
    scenario, _ = queue_jobs(1)

    scenario.run_scheduling_cycle()

    (record,) = admission_records(scenario)
    assert not shared_rows(scenario)
    assert replay(record, scenario.policy).differs_from(record) == ""


def test_shared_facts_expire_after_every_record_that_needs_them() -> None:
    scenario, _ = queue_jobs(3)
    scenario.run_scheduling_cycle()

    (row,) = shared_rows(scenario)

    named = [row for key, row in scenario.world.ledger.rows.items() if key.pk.startswith("DEC#")]
    assert row.expires_at
    assert all(
        row_named.expires_at and row_named.expires_at + timedelta(hours=1) < row.expires_at for row_named in named
    )


UNREADABLE: dict[str, dict[str, Any]] = {
    "not base64": {"packed": "!"},
    "not zlib": {"packed": "bm90IHpsaWI="},
    "of other decisions": {"facts": {}},
}


@pytest.mark.parametrize("fault", ["gone", "changed", *UNREADABLE])
def test_record_of_an_expired_cycle_says_so_without_an_error(fault: str) -> None:
    scenario, jobs = queue_jobs(3)
    scenario.run_scheduling_cycle()
    ledger = scenario.world.ledger
    (row,) = shared_rows(scenario)
    record = admission_records(scenario)[0]
    if fault == "gone":
        ledger.commit(Delete(row.key, row.version))
    elif fault == "changed":
        ledger.commit(Put(Row(row.key, {**row.doc, "more": 1}, row.version)))
    else:
        digest = cycle_facts_rows.facts_digest(UNREADABLE[fault])
        decision = subject_rows.decision_row(record.replace(facts=cycle_facts.pointer_to(digest)))
        ledger.commit(
            Put(Row(cycle_facts_rows.facts_key(digest), UNREADABLE[fault])),
            Put(Row(decision.key, decision.doc, 1, decision.state, decision.expires_at)),
        )

    shown = read_incidents.show_decision(ledger, record.decision_id, Reader())
    why = explain.why_job(record.subject, Reader(), scenario.world.context())
    tried = try_policy.run(
        {},
        ledger=ledger,
        base=scenario.policy,
        current=scenario.policy,
        stack_mode=Mode.ACT,
        since=None,
        now=scenario.world.clock.now(),
    )

    assert shown["reason"] == record.reason
    assert "the row of their cycle" in shown["facts"][OMITTED]
    assert why["decision"]["decisionId"] == record.decision_id
    assert (tried["examined"], tried["cannot"]) == (len(jobs), 1 if fault in UNREADABLE else len(jobs))
    with pytest.raises(CannotReplayError, match="has no facts: the row of their cycle"):
        replay(next(with_facts([stored_record(ledger, record)], ledger)), scenario.policy)


def test_decision_is_shown_without_shared_facts_if_ledger_fails() -> None:
    scenario, _ = queue_jobs(2)
    scenario.run_scheduling_cycle()
    record = admission_records(scenario)[0]

    class LedgerThatThrottlesFacts:
        def get(self, key: Key) -> Row | None:
            if key.pk.startswith("FACTS#"):
                raise Throttled("too many reads")
            return scenario.world.ledger.get(key)

    shown = read_incidents.show_decision(LedgerThatThrottlesFacts(), record.decision_id, Reader())  # type: ignore[arg-type]

    assert shown["reason"] == record.reason
    assert shown["facts"] == {OMITTED: "the row of their cycle cannot be read now: too many reads"}


def test_record_with_shared_facts_does_not_replay_without_them() -> None:
    scenario, _ = queue_jobs(2)
    scenario.run_scheduling_cycle()

    with pytest.raises(CannotReplayError, match="has no facts: they are stored with the cycle"):
        replay(admission_records(scenario)[0], scenario.policy)


def test_refused_admission_keeps_the_facts_of_other_admissions() -> None:
    scenario, jobs = queue_jobs(12)
    scenario.ledger = RefusingLedger(scenario.ledger, jobs[0])  # type: ignore[assignment]

    scenario.run_scheduling_cycle()

    records = list(with_facts(admission_records(scenario), scenario.world.ledger))
    assert scenario.job(jobs[0]).state is JobState.PENDING
    assert len(records) == 11
    assert not any(OMITTED in record.facts for record in records)


def test_facts_too_large_for_one_row_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel.domain.decisions.LARGEST_PACKED", 3_000)
    scenario, jobs = queue_jobs(30)

    scenario.run_scheduling_cycle()

    records = list(with_facts(admission_records(scenario), scenario.world.ledger))
    assert len(shared_rows(scenario)) > 1
    assert [replay(record, scenario.policy).differs_from(record) for record in records] == [""] * len(jobs)


def test_timeline_shows_each_admission_once() -> None:
    scenario, jobs = queue_jobs(2)
    scenario.run_scheduling_cycle()
    ledger = scenario.world.ledger
    (admitted,) = [entry for entry in read_jobs.job_timeline(ledger, jobs[1]) if entry["kind"] == "admitted"]

    ledger.commit(Put(Row(Key(Table.JOBS, f"JOB#{jobs[1]}", f"EVENT#{admitted['at']}#admitted-1"), admitted)))

    again = [entry for entry in read_jobs.job_timeline(ledger, jobs[1]) if entry["kind"] == "admitted"]
    attempt = ledger.get(job_rows.attempt_key(jobs[1], 1))
    assert attempt
    assert again == [admitted]
    assert admitted["text"].startswith(f"Attempt 1 admitted to {attempt.doc['pool']}: {attempt.doc['nodeNames'][0]}")
    assert admitted["decisionId"] == attempt.doc["decisionId"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=40))
def test_packed_node_ranges_name_the_same_indexes(indexes: list[int]) -> None:
    runs = cycle_facts._runs_of_numbers((index, 1) for index in indexes)

    assert [first + n for first, count in runs for n in range(count)] == indexes


def test_fields_of_newer_release_are_kept_beside_packed_fields() -> None:
    kept = CycleFacts.model_validate({**packed({"facts": {"dec-1": {"now": "x"}}}, 0), "newer": 1}, extra="allow")

    assert (kept.facts_of("dec-1"), kept.__pydantic_extra__) == ({"now": "x"}, {"newer": 1})
