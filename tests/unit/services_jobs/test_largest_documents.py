"""The largest accepted documents, on a ledger with DynamoDB's limits for rows and commits."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.decisions import OMITTED, Decision, packed, unpacked
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.spec import MAX_TEXT, JobSpec
from evenkeel.domain.jobs.validation import MAX_SPEC, check_spec
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy import Policy, PolicyChange
from evenkeel.domain.quotas.setup_checks import check_team
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.recovery.holds import Hold, Holds
from evenkeel.domain.replay import CannotReplayError, replay
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import LARGEST_ROW, Invalid, Put, Row, row_bytes
from evenkeel.runtime.api import LARGEST_BODY
from evenkeel.services.recovery import hold_automation
from evenkeel.services.storage import batches
from evenkeel.services.tables import fleet_rows, job_rows, quota_rows, rows, subject_rows
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario, a_spec
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

NOW = datetime(2026, 11, 3, tzinfo=UTC)
WORST = ("x", '"', "\\", "\n", "\u20ac", "\U0001f600")
"""Characters that take one byte, two as JSON, three or four as UTF-8."""
LONG_MODELS = tuple(f"{n:02d}{'m' * 38}" for n in range(19))


def largest_spec(character: str, key: str, **more: Any) -> JobSpec:
    """Return the largest accepted job: one more secret variable or argument would make it too large."""
    text = character * (MAX_TEXT // len(character.encode()) - 40)
    escaped = 2 if character in '"\\\n' else 1
    program = text[: len(text) // escaped]
    spec = a_spec(
        name=key,
        checkpoint_uri=f"s3://checkpoints/{key}/{'/'.join(['p' * 200] * 2)}",
        args=(program,),
        labels={f"{'l' * 200}.example/{n:02d}{'k' * 60}": "v" * 63 for n in range(10)},
        requires={"accelerators": ("h100", *LONG_MODELS), "architectures": ("amd64", "arm64")},
        instance_types=(),
        **more,
    )
    secrets: dict[str, Any] = {}
    while not check_spec(larger := spec.replace(secret_env=secrets)):
        spec = larger
        secrets = {**secrets, f"V{len(secrets):03d}{'A' * 240}": {"secret": "s" * 253, "key": "k" * 253}}
    return spec


def submit_largest_job(scenario: JobScenario, key: str, character: str, **more: Any) -> str:
    spec = largest_spec(character, key, **more)
    return scenario.submit(key, **{name: getattr(spec, name) for name in spec.model_fields_set}).job_id


@pytest.mark.parametrize("character", WORST)
def test_largest_job_is_far_smaller_than_the_row_limit(character: str) -> None:
    spec = largest_spec(character, "a")
    scenario = JobScenario()
    job = scenario.job(submit_largest_job(scenario, "a", character))

    assert check_spec(spec) == ()
    assert len(spec.model_dump_json(by_alias=True).encode()) > MAX_SPEC - 2_000
    assert row_bytes(job_rows.job_row(job, 1)) < LARGEST_ROW // 4


@settings(max_examples=30, deadline=None)
@given(
    args=st.lists(st.text(max_size=400), max_size=60),
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,20}", fullmatch=True), st.text(max_size=2000), max_size=20),
    models=st.lists(st.text(max_size=60), max_size=25),
)
def test_every_accepted_job_fits_its_rows(args: list[str], env: dict[str, str], models: list[str]) -> None:
    spec = a_spec(args=tuple(args), env=env, requires={"accelerators": tuple(models)})
    if check_spec(spec):
        return
    scenario = JobScenario()
    job = scenario.submit(**{name: getattr(spec, name) for name in spec.model_fields_set})

    scenario.run_scheduling_cycle()

    # No node has a model that hypothesis makes up, so a job that names one stays pending.
    assert scenario.job(job.job_id).state is (JobState.PENDING if models else JobState.STARTING)
    assert scenario.world.telemetry.totals["WritesRejected"] == 0


@pytest.mark.parametrize(
    "character",
    # The longest character in UTF-8. The other characters are longer in other encodings.
    ["\U0001f600", *(pytest.param(character, marks=pytest.mark.exhaustive) for character in ("x", '"'))],
)
@pytest.mark.parametrize("has_teams", [False, True])
def test_cycle_plan_and_settlement_handle_the_largest_jobs(character: str, has_teams: bool) -> None:
    scenario = JobScenario(size=14)
    more: dict[str, Any] = {"nodes": 1}
    if has_teams:
        set_up_teams(
            scenario, a_team("red", 8 * 14, members=MEMBERS), FleetQuotas(priority_classes={"low": 1, "high": 10})
        )
        more |= {"team": "red"}
    classes = {"priority_class": "low"} if has_teams else {}
    jobs = [submit_largest_job(scenario, f"key-{n}", character, **more, **classes) for n in range(30)]

    scenario.run_scheduling_cycle()
    running = [name for name in jobs if scenario.job(name).state is JobState.STARTING]
    for name in running:
        scenario.run_attempt(name, 1)
    if has_teams:
        urgent = submit_largest_job(scenario, "urgent", character, **(more | {"nodes": 12}), priority_class="high")
        scenario.run_scheduling_cycle()
        assert sum(scenario.job(name).stop_of(1) is not None for name in running) == 12
        assert scenario.job(urgent).state is JobState.PENDING
    first = running[0]
    scenario.world.cluster.fail_pods(first, 1)
    scenario.settle(first)
    scenario.sweep()
    scenario.run_scheduling_cycle()

    assert len(running) == 14
    assert scenario.attempt(first).state.has_ended
    assert all(scenario.job(name).reason != "The job waits for the next scheduling cycle." for name in jobs)
    assert scenario.world.telemetry.totals["WritesRejected"] == 0


def test_attempt_on_thousand_nodes_fits_its_row() -> None:
    names = tuple(f"{n:04d}{'n' * 59}" for n in range(1024))
    attempt = Attempt(
        job_id=f"job-{'j' * 40}",
        attempt=99_999,
        state=AttemptState.RUNNING,
        cluster="c" * 60,
        namespace="n" * 63,
        pool="p" * 63,
        instance_type="ml.p6e-gb200.36xlarge",
        nodes=tuple(NodeLife(cluster="c" * 60, instance_id=f"i-{n:017x}", launched_at=NOW) for n in range(1024)),
        node_names=names,
        accelerators=8192,
        team="t" * 63,
        admitted_at=NOW,
        exit_codes={str(n): 139 for n in range(1024)},
        reason="r" * 10_000,
        decision_id="dec-1",
    )

    assert row_bytes(job_rows.attempt_row(attempt, 1)) < LARGEST_ROW
    assert row_bytes(Row(quota_rows.charge_key(attempt), Charge.of(attempt).to_json())) < LARGEST_ROW


def a_decision(facts: dict[str, Any], **changes: Any) -> Decision:
    document: dict[str, Any] = {"decision_id": "dec-1", "kind": "ADMISSION", "subject": "job-1", "action": "WAIT"}
    return Decision.model_validate(
        {**document, "reason": "r", "policy_hash": Policy().hash, "decided_at": NOW, "facts": facts, **changes}
    )


@pytest.mark.parametrize("size", [10, 65_000, 66_000, 300_000, 3_000_000])
def test_decision_record_always_fits_its_row(size: int) -> None:
    noise = random.Random(1).randbytes(size // 2).hex()
    why = [{"option": "o" * 9_000, "why_not": "\u20ac" * 9_000} for _ in range(400)]

    row = subject_rows.decision_row(a_decision({"noise": noise}, alternatives=why, reason="\U0001f600" * 9_000))

    assert row_bytes(row) < 700_000
    read = rows.decode(row, Decision)
    if OMITTED not in read.facts:
        assert read.facts == {"noise": noise}
        return
    assert size > 300_000
    with pytest.raises(CannotReplayError, match="has no facts"):
        replay(read, Policy())


@pytest.mark.parametrize("count", [0, 10, 5_000, 60_000])
def test_scheduler_state_fits_its_row_with_many_stopping_jobs(count: int) -> None:
    noise = random.Random(2)
    memory = SchedulerState(
        stopping={f"job-{noise.randbytes(13).hex()}": f"job-{noise.randbytes(13).hex()}" for _ in range(count)}
    )

    row = memory.to_row()

    assert row_bytes(Row(quota_rows.tree_key(), {"memory": row, "setUps": 10**9})) < LARGEST_ROW
    assert SchedulerState.model_validate(row or {}) == (memory if count <= 5_000 else SchedulerState())


def test_packed_facts_unpack_unchanged() -> None:
    facts = {"text": "\u20ac" * 50_000, "list": [1, 2.5, None]}

    assert unpacked(packed(facts)) == facts


def test_long_messages_are_shortened() -> None:
    entry = TimelineEntry(at=NOW, kind="told", text="\U0001f600" * 100_000)

    assert row_bytes(subject_rows.timeline_row("job-1", entry, "x")) < 10_000


def test_policy_of_the_largest_accepted_body_fits_its_rows() -> None:
    changes = {"name": "\U0001f600" * (LARGEST_BODY // 4)}
    change = PolicyChange(number=1, changes=changes, before=changes, by="b" * 200, reason="r" * 300, at=NOW)
    row = Row(subject_rows.decision_key("x"), change.to_json())

    assert batches.size_of([Put(row)] * 3) < batches.BATCH_BYTES
    assert row_bytes(row) < LARGEST_ROW


@pytest.mark.parametrize("character", ["x", "-", "\u20ac"])
def test_largest_accepted_team_fits_its_row(character: str) -> None:
    def team(count: int) -> Team:
        group = {f"f{n}": {"nvidia.com/gpu": 8} for n in range(count)}
        return a_team("red", queue={"groups": [group]}, serviceAccount="a", localQueue="b", images=[f"r/{character}"])

    accepted = [count for count in range(0, 1200, 100) if not check_team(team(count))] if character == "x" else [0]
    assert accepted[-1] < 1100
    assert row_bytes(quota_rows.setup_row(quota_rows.team_key("red"), team(accepted[-1]), 1)) < LARGEST_ROW // 2


def test_cycle_runs_with_the_largest_team_setup() -> None:
    scenario = JobScenario(size=2)
    teams = [a_team(f"{'t' * 59}{n:03d}", members=MEMBERS) for n in range(60)]
    set_up_teams(scenario, *teams)
    jobs = [submit_largest_job(scenario, f"key-{n}", "x", team=team.name, nodes=1) for n, team in enumerate(teams)]

    scenario.run_scheduling_cycle()

    states = [scenario.job(name).state for name in jobs]
    assert states.count(JobState.STARTING) == 2
    assert all(scenario.job(name).reason != "The job waits for the next scheduling cycle." for name in jobs)
    assert scenario.world.telemetry.totals["WritesRejected"] == 0


def test_number_of_holds_is_limited() -> None:
    scenario = JobScenario()
    now = scenario.world.clock.now()
    held = tuple(
        Hold(
            by="b" * 200,
            reason="\U0001f600" * 300,
            since=now,
            until=now + timedelta(hours=1),
            instance_id=f"i-{n:017x}",
        )
        for n in range(hold_automation.MAX_HOLDS)
    )
    row = Row(fleet_rows.hold_key(), Holds(holds=held).to_json())
    scenario.store_row(row)

    request = hold_automation.HoldRequest(
        by="b", reason="r", until=now + timedelta(hours=1), request_id="request-1", fingerprint="1"
    )
    with pytest.raises(Invalid, match="too many holds"):
        hold_automation.set_hold(request, scenario.context(policy=Policy(), now=now))

    assert row_bytes(row) < LARGEST_ROW


def test_long_list_is_shortened_to_fit_its_row() -> None:
    documents = [{"name": f"{n}{'x' * 1_000}"} for n in range(1_000)]

    fit_into_row = rows.fit_into_row(documents)

    assert fit_into_row == documents[: len(fit_into_row)]
    assert 250 < len(fit_into_row) < 300
