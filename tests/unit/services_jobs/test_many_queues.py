"""With many queues, a cycle reads only the heads that may have changed. No job starves, and the reads have a bound."""

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scale.fleet import build_long_queue
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.teams import FleetQuotas
from evenkeel.domain.scheduling.queue_heads import HEADS_PER_CYCLE, LONGEST_UNREAD_HEADS, QueueHead, QueueHeads
from evenkeel.ports import Ledger, Page, Put, Row, Table, Throttled, Write
from evenkeel.services.jobs import set_priority, suspend_job
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.storage import open_jobs
from evenkeel.services.tables import job_rows, quota_rows
from tests.fakes import FakeWorld
from tests.fakes.metered import ApiCall, ObjectSizes, metered_ports
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_coalesced_cycles import run_batches
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

NOW = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)
TEAMS = 20
MAX_READS = 60
CLASSES = FleetQuotas(priority_classes={"low": 1, "high": 10})
ANA = Requester(principal="role/ana", identity="111122223333:role/ana", actor="ana")


# ---------------------------------------------------------------- the heads to read


def a_head(read_at: datetime = NOW, mark: int = 1, **changes: Any) -> QueueHead:
    """Return a head whose mark has not changed for long."""
    return QueueHead(("job-1",), None, mark, read_at - timedelta(hours=1), read_at)._replace(**changes)


def heads_of(count: int) -> QueueHeads:
    return QueueHeads(2, {f"team-{number:02d}": a_head(NOW + timedelta(seconds=number)) for number in range(count)})


def test_first_cycle_reads_all_heads() -> None:
    assert QueueHeads(2).to_read(["b", "a"], {"a": 0, "b": 0}) == ("b", "a")


def test_unchanged_heads_are_read_in_turn() -> None:
    heads = heads_of(30)
    marks = dict.fromkeys(heads.by_team, 1)

    assert heads.to_read(tuple(marks), marks) == ("team-00", "team-01", "team-02", "team-03")


@pytest.mark.parametrize(
    "change",
    [
        {"mark": 2},
        {"marked_at": NOW + timedelta(seconds=1)},
    ],
    ids=["another mark", "read within the lag of the index"],
)
def test_head_that_may_have_changed_is_read(change: dict[str, Any]) -> None:
    heads = heads_of(30)
    heads = heads._replace(by_team={**heads.by_team, "team-20": heads.by_team["team-20"]._replace(**change)})
    marks = dict.fromkeys(heads.by_team, 1)

    assert "team-20" in heads.to_read(tuple(marks), marks)


def test_head_of_a_new_team_is_read() -> None:
    heads = heads_of(30)
    marks = {**dict.fromkeys(heads.by_team, 1), "team-99": 0}

    assert "team-99" in heads.to_read(tuple(marks), marks)


@settings(max_examples=30, deadline=None)
@given(teams=st.integers(HEADS_PER_CYCLE + 1, 120), changed=st.sets(st.integers(0, 119)))
def test_each_head_is_read_within_its_turn(teams: int, changed: set[int]) -> None:
    heads = heads_of(teams)
    names = tuple(heads.by_team)
    marks = {name: 2 if number in changed else 1 for number, name in enumerate(names)}
    last_read = dict.fromkeys(names, 0)

    for cycle in range(1, 3 * math.ceil(teams / LONGEST_UNREAD_HEADS)):
        now = NOW + timedelta(minutes=cycle)
        teams_read = heads.to_read(names, marks)
        assert len(teams_read) <= HEADS_PER_CYCLE
        heads = heads.after_read(names, {name: a_head(now, marks[name], marked_at=now) for name in teams_read})
        last_read |= dict.fromkeys(teams_read, cycle)
        assert cycle - min(last_read.values()) <= math.ceil(teams / LONGEST_UNREAD_HEADS)


def test_heads_are_read_again_from_their_document() -> None:
    heads = heads_of(3)

    assert QueueHeads.from_json(heads.to_json(), page_size=2) == heads
    assert QueueHeads.from_json(heads.to_json(), page_size=1) == QueueHeads(1)


# ---------------------------------------------------------------- no job starves


class LaggingIndex:
    """A ledger whose index does not list some jobs yet."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.hidden: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def by_state(self, table: Table, state: str, **options: Any) -> Page:
        page = self._ledger.by_state(table, state, **options)
        return Page(tuple(row for row in page.rows if row.doc.get("jobId") not in self.hidden), page.cursor)


def many_queues(parked: int, teams: int = TEAMS, max_jobs_per_cycle: int = 1) -> tuple[JobScenario, list[str]]:
    """Return teams with a node each, and jobs in each queue that do not fit."""
    terms = SchedulingPolicy(jobs_per_page=2, max_jobs_per_cycle=max_jobs_per_cycle)
    scenario = JobScenario(size=teams, policy=Policy(scheduling=terms))
    names = [f"team-{number:02d}" for number in range(teams)]
    set_up_teams(scenario, CLASSES, *(a_team(name, 8, cohort=name, members=MEMBERS) for name in names))
    for name in names:
        for number in range(parked):
            scenario.submit(f"{name}-{number}", team=name, nodes=2 + number, accelerators_per_node=8)
    return scenario, names


def run_cycles(scenario: JobScenario, count: int) -> None:
    for _ in range(count):
        scenario.world.clock.advance(60)
        scenario.run_scheduling_cycle()


def max_cycles(scenario: JobScenario, parked: int) -> int:
    """Return the cycles within which every job is examined: its turn among the heads, and the pages of its queue."""
    turns = math.ceil((TEAMS + 1) / scenario.policy.scheduling.long_queues_per_cycle)
    return math.ceil(TEAMS / LONGEST_UNREAD_HEADS) + turns * (math.ceil((parked + 2) / 2) + 1)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["submit", "cancel", "suspend", "resume", "raise"]), st.integers(0, TEAMS - 1)),
    max_size=10,
)


@settings(max_examples=4, deadline=None)
@given(parked=st.integers(0, 2), changes=CHANGES)
def test_each_job_of_many_queues_is_examined_in_turn(parked: int, changes: list[tuple[str, int]]) -> None:
    scenario, names = many_queues(parked)
    run_cycles(scenario, 1)
    submitted: list[Job] = []
    for number, (change, team) in enumerate(changes):
        job = submitted[team % len(submitted)] if submitted else None
        apply_change(scenario, change, job, names[team], number, submitted)
        if number % 3 == 2:
            run_cycles(scenario, 1)
    for job in submitted:
        if scenario.job(job.job_id).state is JobState.SUSPENDED:
            suspend_job.resume(suspend_job.JobChangeRequest(job_id=job.job_id, requester=ANA), scenario.context())

    run_cycles(scenario, max_cycles(scenario, parked + len(changes)))

    waiting = [scenario.job(job.job_id) for job in submitted if scenario.job(job.job_id).state is JobState.PENDING]
    started = Counter(
        scenario.job(job.job_id).spec.team for job in submitted if scenario.job(job.job_id).state is JobState.STARTING
    )
    # Each team has one node: one job starts, and the others were examined.
    assert [job.job_id for job in waiting if not started[job.spec.team]] == []
    assert [job.job_id for job in waiting if not job.reason] == []


def apply_change(
    scenario: JobScenario, change: str, job: Job | None, team: str, number: int, submitted: list[Job]
) -> None:
    """Submit a job that fits, or change a waiting job."""
    if change == "submit" or job is None:
        submitted.append(scenario.submit(f"small-{number}", team=team, nodes=1, accelerators_per_node=8))
        return
    current = scenario.job(job.job_id)
    if current.state not in (JobState.PENDING, JobState.SUSPENDED):
        return
    request = suspend_job.JobChangeRequest(job_id=job.job_id, requester=ANA)
    match change:
        case "cancel":
            scenario.cancel(job.job_id)
        case "suspend":
            suspend_job.suspend(request, scenario.context())
        case "resume":
            suspend_job.resume(request, scenario.context())
        case "raise":
            raise_priority(scenario, job)


@pytest.mark.parametrize("hidden_cycles", [1, 4])
def test_job_that_the_index_lists_late_starts(hidden_cycles: int) -> None:
    scenario, names = many_queues(0)
    for name in names:
        for number in range(2):
            scenario.submit(f"{name}-{number}", team=name, nodes=2 + number, accelerators_per_node=8)
    run_cycles(scenario, 2 * TEAMS)
    index: Any = LaggingIndex(scenario.world.ledger)
    scenario.ledger = index
    small = scenario.submit("small", team=names[7], nodes=1, accelerators_per_node=8)
    index.hidden = {small.job_id}
    run_cycles(scenario, hidden_cycles)
    index.hidden = set()

    run_cycles(scenario, max_cycles(scenario, 3))

    assert scenario.job(small.job_id).state is JobState.STARTING


class ThrottledHeads(LaggingIndex):
    """A ledger that throttles each write of the heads."""

    def commit(self, *writes: Write, **options: Any) -> None:
        if any(isinstance(write, Put) and write.row.key == quota_rows.queue_heads_key() for write in writes):
            raise Throttled("too many writes")
        self._ledger.commit(*writes, **options)


def test_throttled_write_of_the_heads_fails_no_cycle() -> None:
    scenario, names = many_queues(1, max_jobs_per_cycle=1000)
    run_cycles(scenario, 1)
    ledger = scenario.ledger
    scenario.ledger = ThrottledHeads(scenario.world.ledger)  # type: ignore[assignment]
    small = [scenario.submit(f"{name}-small", team=name, nodes=1, accelerators_per_node=8) for name in names[:3]]

    run_cycles(scenario, 1)

    assert {scenario.job(job.job_id).state for job in small} == {JobState.STARTING}
    assert [line.level for line in scenario.world.telemetry.lines if line.message == "CycleRowNotStored"] == ["WARNING"]
    scenario.ledger = ledger
    late = scenario.submit("late", team=names[5], nodes=1, accelerators_per_node=8)
    run_cycles(scenario, max_cycles(scenario, 3))
    assert scenario.job(late.job_id).state is JobState.STARTING


def test_submission_is_seen_by_the_next_cycle() -> None:
    scenario, names = many_queues(0)
    for name in names[:-1]:
        scenario.submit(f"{name}-large", team=name, nodes=2, accelerators_per_node=8)
    run_cycles(scenario, 2 * TEAMS)

    small = scenario.submit("small", team=names[-1], nodes=1, accelerators_per_node=8)
    run_cycles(scenario, 1)

    assert scenario.job(small.job_id).state is JobState.STARTING


def test_requests_alone_bring_every_changed_queue_into_a_cycle() -> None:
    scenario, names = many_queues(1, teams=2 * TEAMS, max_jobs_per_cycle=1000)
    run_cycles(scenario, TEAMS)
    jobs = [scenario.submit(f"{name}-small", team=name, nodes=1, accelerators_per_node=8) for name in names]
    scenario.world.clock.advance(1)

    run_batches(scenario, [scenario.world.clock.now()] * len(jobs), cycle_seconds=6)

    assert Counter(scenario.job(job.job_id).state for job in jobs) == {JobState.STARTING: 2 * TEAMS}


@pytest.mark.parametrize("document", [{"pageSize": 1, "heads": {"team-00": []}}, {"packed": "!"}, {"pageSize": 1}])
def test_unreadable_heads_are_read_again(document: dict[str, Any]) -> None:
    scenario, names = many_queues(1)
    ledger = scenario.world.ledger
    ledger.commit(Put(Row(quota_rows.queue_heads_key(), document)))
    small = scenario.submit("small", team=names[0], nodes=1, accelerators_per_node=8)

    run_cycles(scenario, max_cycles(scenario, 2))

    assert scenario.job(small.job_id).state is JobState.STARTING


# ---------------------------------------------------------------- marks


def raise_priority(scenario: JobScenario, job: Job) -> None:
    row = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    request = set_priority.SetPriorityRequest(
        job_id=job.job_id, priority_class="high", expected=row.version, requester=ANA
    )
    set_priority.run(request, scenario.context())


def mark_of(scenario: JobScenario, job: Job) -> int:
    row = scenario.world.ledger.get(open_jobs.queue_mark_key(job.queue))
    return row.version if row else 0


def test_each_change_of_a_queue_changes_its_mark() -> None:
    scenario = JobScenario(size=1)
    set_up_teams(scenario, CLASSES, a_team("red", 8, members=MEMBERS))
    marks = [0]
    job = scenario.submit(team="red", nodes=2)
    marks.append(mark_of(scenario, job))
    request = suspend_job.JobChangeRequest(job_id=job.job_id, requester=ANA)
    suspend_job.suspend(request, scenario.context())
    suspend_job.resume(request, scenario.context())
    marks.append(mark_of(scenario, job))
    raise_priority(scenario, job)
    marks.append(mark_of(scenario, job))
    scenario.cancel(job.job_id)
    marks.append(mark_of(scenario, job))

    assert marks == sorted(set(marks))


# ---------------------------------------------------------------- reads


class CallLog:
    """Counts the calls of metered ports."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def call(self, call: ApiCall) -> None:
        self.calls[call.api] += 1

    def pages(self, calls: Sequence[ApiCall]) -> None:
        for call in calls:
            self.call(call)

    def outside(self) -> Any:
        return contextlib.nullcontext()

    @property
    def reads(self) -> int:
        return sum(count for api, count in self.calls.items() if any(word in api for word in READS))


READS = ("Get", "Query", "LIST", "GET", "List", "Describe")


def run_counted_cycle(world: FakeWorld, **changes: Any) -> CallLog:
    log = CallLog()
    ports = metered_ports(world, log, ObjectSizes(node=18_399, pod=6_328, workload=6_168))
    schedule_jobs.run(
        world.context(**{name: ports[name] for name in ("ledger", "cluster", "provider", "workflows")}, **changes)
    )
    return log


@pytest.mark.parametrize("pending", [pytest.param(800, marks=pytest.mark.exhaustive), 2_400])
def test_cycle_over_long_queues_makes_few_reads(pending: int) -> None:
    world = build_long_queue(nodes=460, pending=pending, teams=40)
    run_counted_cycle(world)

    reads = []
    for _ in range(2):
        world.clock.advance(60)
        reads.append(run_counted_cycle(world).reads)

    assert max(reads) <= MAX_READS
