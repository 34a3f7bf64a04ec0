"""Quota time equals the usage report of each instant, times its duration; unknown time stays unknown."""

import random
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.quota_time import HeldQuota, QuotaTime, quota_times
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.flavor_matching import amounts_by_queue
from evenkeel.domain.quotas.setup_history import SetupChange, SetupPeriod, setup_periods
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.domain.quotas.usage_report import usage_rows
from evenkeel.domain.timeline import TimelineEntry
from tests.fakes.system import A_MOMENT

H100, A100, GPU = "ml.p5.48xlarge", "ml.p4d.24xlarge", "nvidia.com/gpu"
HOUR = timedelta(hours=1)
DAY = Span(A_MOMENT, A_MOMENT + 24 * HOUR)
GPU_HOUR = 3_600_000_000


def a_team_with(name: str, gpus: int, cohort: str = "research", **quotas: Any) -> Team:
    quota = {GPU: {"nominal": gpus, **quotas} if quotas else gpus}
    return Team.model_validate({"name": name, "queue": {"cohort": cohort, "groups": [{H100: quota, A100: {GPU: 4}}]}})


def a_setup(*teams: Team) -> TeamSetup:
    return TeamSetup(teams=tuple(sorted(teams, key=lambda team: team.name)))


def held(team: str, gpus: int, start: float, end: float, *, flavor: str = H100, **changes: Any) -> HeldQuota:
    """Return accelerators that an attempt of a team held between two hours of the day."""
    use = {flavor: {GPU: gpus, "cpu": 96_000}} if flavor else {}
    facts: dict[str, Any] = {"job_id": f"{team}-{start}", "attempt": 1, "team": team, "cluster": "c", "node_names": ()}
    charge = Charge(**facts, accelerators=gpus, use=use, queue=team if use else "")
    return HeldQuota(charge, changes.get("is_use_known", True), Span(A_MOMENT + start * HOUR, A_MOMENT + end * HOUR))


def gpu_hours(quota: QuotaTime) -> dict[str, float]:
    """Return the figures that are not zero, in GPU-hours."""
    return {name: amount / GPU_HOUR for name, amount in dict(quota).items() if amount}


def a_period(setup: TeamSetup, start: float = 0, end: float = 24) -> SetupPeriod:
    return SetupPeriod(A_MOMENT + start * HOUR, A_MOMENT + end * HOUR, setup)


def test_team_borrows_only_while_it_exceeds_its_quota() -> None:
    setup = a_setup(a_team_with("nlp", 8), a_team_with("vision", 16))

    times = quota_times([held("nlp", 8, 0, 4), held("nlp", 8, 2, 6)], [a_period(setup)], DAY)

    assert gpu_hours(times.teams["nlp"]) == {"within_quota": 48, "borrowed": 16}
    assert gpu_hours(times.teams["vision"]) == {"lent": 16}
    assert times.known_microseconds == 24 * GPU_HOUR


def test_each_hour_counts_against_the_quota_of_its_time() -> None:
    before, after = a_setup(a_team_with("nlp", 8), a_team_with("vision", 8)), a_setup(a_team_with("nlp", 16))
    periods = [a_period(before, 0, 6), a_period(after, 6, 24)]

    times = quota_times([held("nlp", 16, 0, 10)], periods, DAY)

    assert gpu_hours(times.teams["nlp"]) == {"within_quota": 8 * 6 + 16 * 4, "borrowed": 8 * 6}
    assert gpu_hours(times.teams["vision"]) == {"lent": 48}


def test_time_without_a_recorded_setup_is_unknown() -> None:
    setup = a_setup(a_team_with("nlp", 8), a_team_with("vision", 8))

    times = quota_times([held("nlp", 16, 0, 10)], [a_period(setup, 6, 24)], DAY)

    assert gpu_hours(times.teams["nlp"]) == {"within_quota": 32, "borrowed": 32, "unknown": 96}
    assert gpu_hours(times.teams["vision"]) == {"lent": 32}
    assert times.known_microseconds == 18 * GPU_HOUR


def test_unrecorded_use_makes_its_time_unknown_for_all_teams() -> None:
    setup = a_setup(a_team_with("nlp", 8), a_team_with("vision", 8))
    attempts = [held("nlp", 16, 0, 10), held("vision", 8, 2, 3, is_use_known=False)]

    times = quota_times(attempts, [a_period(setup)], DAY)

    assert gpu_hours(times.teams["nlp"]) == {"within_quota": 72, "borrowed": 72, "unknown": 16}
    assert gpu_hours(times.teams["vision"]) == {"unknown": 8, "lent": 72}


@pytest.mark.parametrize("team", ["nlp", "other"])
def test_gpus_outside_every_flavor_are_without_quota(team: str) -> None:
    setup = a_setup(a_team_with("nlp", 8))

    times = quota_times([held(team, 8, 0, 2, flavor="")], [a_period(setup)], DAY)

    assert gpu_hours(times.teams[team]) == {"without_quota": 16}


def random_day(seed: int) -> tuple[list[HeldQuota], list[SetupPeriod]]:
    draw = random.Random(seed)
    names = ("a", "b", "c", "d")
    cuts = sorted(draw.sample(range(1, 24), draw.randint(0, 3)))
    periods = []
    for start, end in zip([0, *cuts], [*cuts, 24], strict=True):
        teams = [
            a_team_with(name, draw.randint(0, 16), draw.choice(("x", "y", "")), lendingLimit=0)
            if draw.random() < 0.3
            else a_team_with(name, draw.randint(0, 16), draw.choice(("x", "y")))
            for name in names
            if draw.random() < 0.9
        ]
        cohorts = (
            {"name": "x", "parent": "root", "groups": [{H100: {GPU: draw.randint(0, 4)}}]},
            {"name": "y", "parent": "root"},
        )
        fleet = FleetQuotas.model_validate({"cohorts": cohorts})
        if draw.random() < 0.9:
            periods.append(a_period(TeamSetup(fleet=fleet, teams=tuple(teams)), start, end))
    attempts = []
    for _ in range(draw.randint(0, 12)):
        begun = draw.uniform(-3, 24)
        flavor = draw.choice((H100, H100, A100, ""))
        attempts.append(
            held(
                *(draw.choice(names), draw.randint(1, 16), begun, begun + draw.expovariate(0.2)),
                flavor=flavor,
                is_use_known=draw.random() < 0.9,
            )
        )
    return attempts, periods


def figures_by_instant(attempts: list[HeldQuota], periods: list[SetupPeriod], day: Span) -> dict[str, Counter[str]]:
    """Return the quota time from the usage report of each time between two changes: the slow way."""
    borders = {*day, *(at for period in periods for at in period[:2]), *(at for entry in attempts for at in entry.span)}
    cuts = sorted(at for at in borders if day.start <= at <= day.end)
    sums: dict[str, Counter[str]] = {}
    for start, end in pairwise(cuts):
        duration = (end - start) // timedelta(microseconds=1)
        present = [entry for entry in attempts if entry.span.start <= start < entry.span.end]
        period = next((period for period in periods if period.since <= start < period.until), None)
        is_known = period is not None and all(entry.is_use_known for entry in present)
        for entry in present:
            figure = "without_quota" if is_known else "unknown"
            sums.setdefault(entry.charge.team, Counter())[figure] += entry.charge.accelerators * duration
        if period is None or not is_known:
            continue
        declared = period.setup.scheduler_declarations
        use: dict[str, Counter[tuple[str, str]]] = {}
        for queue, amounts in amounts_by_queue([entry.charge for entry in present], declared):
            if queue:
                use.setdefault(queue, Counter()).update(amounts)
        for name, rows in usage_rows(declared.queues, declared.cohorts, use).items():
            for row in rows:
                if row.key[1] == GPU:
                    team = sums.setdefault(name, Counter())
                    team["within_quota"] += (row.used - row.borrowed) * duration
                    team["borrowed"] += row.borrowed * duration
                    team["without_quota"] -= row.used * duration
                    team["lent"] += row.lent * duration
    return sums


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1_000_000))
def test_quota_time_equals_the_usage_report_of_each_instant(seed: int) -> None:
    attempts, periods = random_day(seed)

    times = quota_times(attempts, periods, DAY)

    expected = figures_by_instant(attempts, periods, DAY)
    assert {name: dict(quota) for name, quota in times.teams.items()} == {
        name: {figure: team[figure] for figure in QuotaTime.model_fields}
        for name, team in expected.items()
        if any(team.values())
    }


@settings(max_examples=75, deadline=None)
@given(st.integers(0, 1_000_000), st.floats(0.1, 23.9))
def test_parts_of_a_day_add_up(seed: int, cut: float) -> None:
    attempts, periods = random_day(seed)
    border = DAY.start + cut * HOUR

    whole = quota_times(attempts, periods, DAY)
    parts = [quota_times(attempts, periods, Span(*part)) for part in ((DAY.start, border), (border, DAY.end))]

    assert whole.known_microseconds == sum(part.known_microseconds for part in parts)
    for name, quota in whole.teams.items():
        of_team = [part.teams.get(name, QuotaTime()) for part in parts]
        assert all(amount == sum(getattr(part, figure) for part in of_team) for figure, amount in quota)


# ---------------------------------------------------------------- past setups


def a_change(part: str, setup: TeamSetup, at: datetime) -> SetupChange:
    return SetupChange.of(TimelineEntry(at=at, kind="setup", text="Set."), part, setup)


def random_setups(seed: int) -> tuple[list[tuple[datetime, TeamSetup]], dict[int, SetupChange]]:
    """Return each setup with the time since which it holds, and the changes by version."""
    draw = random.Random(seed)
    setups = [(A_MOMENT - 1000 * HOUR, TeamSetup())]
    changes: dict[int, SetupChange] = {}
    for version in range(1, draw.randint(1, 12)):
        setup, at = setups[-1][1], A_MOMENT + version * HOUR
        kind = draw.choice(("set", "set", "remove", "fleet"))
        name = draw.choice("abc")
        if kind == "fleet":
            part, after = "", setup.replace(fleet=FleetQuotas.model_validate({"cohorts": [{"name": f"x{version}"}]}))
        elif kind == "remove":
            part, after = name, setup.replace(teams=tuple(team for team in setup.teams if team.name != name))
        else:
            flavors = draw.sample([H100, A100], 2)
            team = {"name": name, "queue": {"groups": [{flavor: {GPU: version} for flavor in flavors}]}}
            part, after = name, setup.with_team(Team.model_validate(team))
        stored = a_change(part, setup, at).to_compact_json()
        changes[version] = SetupChange.model_validate(stored)
        setups.append((at, after))
    return setups, changes


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1_000_000), st.integers(0, 12))
def test_past_setups_follow_from_the_present_one(seed: int, since: int) -> None:
    setups, changes = random_setups(seed)
    start, end = A_MOMENT + since * HOUR + HOUR / 2, A_MOMENT + 20 * HOUR
    recent = {version: change for version, change in changes.items() if change.at >= start}

    periods = setup_periods(setups[-1][1], len(changes), recent, start, end)

    assert (periods[0].since, periods[-1].until) == (start, end)
    for period in periods:
        expected = [setup for at, setup in setups if at <= period.since][-1]
        assert period.setup.scheduler_declarations == expected.scheduler_declarations


def test_setup_before_a_change_without_its_quota_is_unknown() -> None:
    setup = a_setup(a_team_with("nlp", 8))
    old = SetupChange(at=A_MOMENT + HOUR, kind="setup", text="Set by an earlier release.")
    changes = {4: old, 5: a_change("nlp", setup, A_MOMENT + 2 * HOUR)}

    periods = setup_periods(setup, 5, changes, A_MOMENT, DAY.end)

    assert [(period.since, period.until) for period in periods] == [
        (A_MOMENT + HOUR, A_MOMENT + 2 * HOUR),
        (A_MOMENT + 2 * HOUR, DAY.end),
    ]


def test_setup_before_a_missing_change_is_unknown() -> None:
    setup = a_setup(a_team_with("nlp", 8))
    changes = {number: a_change("nlp", setup, A_MOMENT + number * HOUR) for number in (3, 5)}

    periods = setup_periods(setup, 5, changes, A_MOMENT, DAY.end)

    assert [period.since for period in periods] == [A_MOMENT + 5 * HOUR]


def test_change_after_the_setup_was_read_is_ignored() -> None:
    setup = a_setup(a_team_with("nlp", 8))

    periods = setup_periods(setup, 5, {6: a_change("nlp", setup, A_MOMENT + HOUR)}, A_MOMENT, DAY.end)

    assert [(period.since, period.until) for period in periods] == [(A_MOMENT, DAY.end)]
