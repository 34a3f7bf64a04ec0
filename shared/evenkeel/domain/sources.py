"""The sources of facts, the time of their last answer, and whether that answer is recent enough to trust.

After each run, a scheduled function reports which sources answered and which failed. `judge` computes the age of each
source from these reports. A source that was never read is UNKNOWN, which is neither CURRENT nor STALE.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import StringConstraints

from evenkeel.domain.health.health_policy import SourcePolicy
from evenkeel.domain.values import Instant, Value

CLOCK_SKEW = timedelta(seconds=60)
"""A report from further in the future than this comes from a wrong clock, so it says nothing about the source."""
FAILURE_COUNTS_FOR = timedelta(seconds=120)
"""How long an answer to one function does not end the failure of another function. Each runs once a minute."""
_LONGEST_ERROR = 300
SWEEP_STEPS = (
    "fleet",
    "kueue",
    "settings",
    "plans",
    "early",
    "facts",
    "unresolved",
    "events",
    "unhealthy",
    "incidents",
    "rollbacks",
    "stale_pointers",
    "registers",
    "attempts",
    "workloads",
    "rentals",
    "restarts",
    "waits",
    "new_nodes",
    "metrics",
    "overview",
    "request_cycle",
    "days",
)
"""The steps of the sweep, each a source of its own."""
STEP_INTERVAL_SECONDS = {"days": 3600, "plans": 600}
"""Seconds between two runs of a step that does not run each minute. The threshold of the step is longer by this
time."""

ErrorText = Annotated[str, StringConstraints(max_length=_LONGEST_ERROR)]


class SourceKind(StrEnum):
    """The kinds of sources. Each has its own threshold in the policy."""

    KUBERNETES_LIST = "kubernetes-list"
    """A complete list of the nodes, pods and Jobs of one cluster."""
    KUBERNETES_WATCH = "kubernetes-watch"
    """The open watch on the nodes, pods and Jobs of one cluster."""
    KUEUE = "kueue"
    """The namespaces of one cluster in which Kueue admits jobs."""
    HYPERPOD = "hyperpod"
    """HyperPod's list of its nodes."""
    EVENT_QUEUE = "event-queue"
    """The queue of events from AWS: Evenkeel handles its events."""
    SCHEDULING_CYCLE = "scheduling-cycle"
    """A scheduling cycle that ran to its end."""
    WAITS = "waits"
    """An evaluation of all open waits of workflows."""
    SWEEP = "sweep"
    """A step of the sweep."""


class Source(Value):
    """A source of facts: its kind, and its cluster or sweep step if the kind has several sources."""

    kind: SourceKind
    target: str = ""
    """Cluster name or sweep step; empty if the kind has only one source."""

    @property
    def name(self) -> str:
        """`kubernetes-list/research-eks`, or `hyperpod`."""
        return f"{self.kind}/{self.target}" if self.target else str(self.kind)

    @property
    def words(self) -> str:
        """Name of the source in a sentence."""
        match self.kind:
            case SourceKind.KUBERNETES_LIST:
                return f"cluster {self.target}"
            case SourceKind.KUBERNETES_WATCH:
                return f"the watch on cluster {self.target}"
            case SourceKind.KUEUE:
                return f"Kueue on cluster {self.target}"
            case SourceKind.HYPERPOD:
                return "HyperPod"
            case SourceKind.EVENT_QUEUE:
                return "the event queue"
            case SourceKind.SCHEDULING_CYCLE:
                return "the scheduling cycle"
            case SourceKind.WAITS:
                return "the evaluation of waits"
            case SourceKind.SWEEP:
                return f"sweep step {self.target}"

    @property
    def verb(self) -> str:
        """Verb for a source that is stale and fails, for use in a sentence."""
        match self.kind:
            case SourceKind.EVENT_QUEUE:
                return "is not emptied"
            case SourceKind.SCHEDULING_CYCLE | SourceKind.WAITS | SourceKind.SWEEP:
                return "fails"
            case _:
                return "does not answer"


class SourceReport(Value):
    """The last attempt of one function to read one source."""

    tried_at: Instant
    seen_at: Instant | None = None
    """Time of the last answer; None if the source never answered."""
    failing_since: Instant | None = None
    """Time of the first failure after the last answer; None if the last attempt succeeded."""
    error: ErrorText = ""
    """The last error; empty if the last attempt succeeded."""

    @classmethod
    def after(cls, earlier_report: Self | None, error: str, now: datetime) -> Self:
        """Return the report after an attempt that failed with `error`, or succeeded if `error` is empty."""
        if not error:
            return cls(tried_at=now, seen_at=now)
        usable_report = (
            earlier_report if earlier_report is not None and earlier_report.tried_at <= now + CLOCK_SKEW else None
        )
        return cls(
            tried_at=now,
            seen_at=usable_report.seen_at if usable_report else None,
            failing_since=(usable_report.failing_since if usable_report else None) or now,
            error=error[:_LONGEST_ERROR],
        )

    @classmethod
    def joined(cls, reports: Sequence[Self]) -> Self:
        """Return the joint report of functions that read one source: the newest answer, and the failures that count.

        The answer of one function does not hide a recent failure of another function: the two may have other
        permissions, or read other parts. A function records no later try if it has nothing to read, so an older
        failure ends with the next answer.
        """
        tried_at = max(report.tried_at for report in reports)
        seen_at = max((report.seen_at for report in reports if report.seen_at), default=None)
        failed_reports = [
            report
            for report in reports
            if report.error and (seen_at is None or report.tried_at > seen_at - FAILURE_COUNTS_FOR)
        ]
        last_failure = max(failed_reports, key=lambda report: report.tried_at, default=None)
        return cls(
            tried_at=tried_at,
            seen_at=seen_at,
            failing_since=min((report.failing_since or report.tried_at for report in failed_reports), default=None),
            error=last_failure.error if last_failure else "",
        )


class SourceState(StrEnum):
    """Whether a source can be trusted now."""

    CURRENT = "CURRENT"
    """The source answered recently."""
    FAILING = "FAILING"
    """The source answered recently enough, but the last attempt failed."""
    STALE = "STALE"
    """The last answer is older than the threshold, so its facts may be wrong."""
    UNKNOWN = "UNKNOWN"
    """The source was never read, or the clock of the report is wrong."""
    OFF = "OFF"
    """The schedules are off, so no function reads the source."""


class SourceAge(Value):
    """The state and age of one source now."""

    source: Source
    state: SourceState
    seen_at: Instant | None = None
    age_seconds: int | None = None
    """Seconds since the last answer; None if it never answered."""
    threshold_seconds: int
    failing_since: Instant | None = None
    error: str = ""
    reason: str
    """A sentence: the problem, or the time of the last answer."""

    @property
    def is_trusted(self) -> bool:
        """Whether facts from this source may be shown as current."""
        return self.state in (SourceState.CURRENT, SourceState.FAILING)


def expected_sources(clusters: Sequence[str], *, has_hyperpod: bool) -> tuple[Source, ...]:
    """Return every source of a fleet with these clusters. Sources of removed clusters are no longer expected."""
    return (
        *(Source(kind=SourceKind.KUBERNETES_LIST, target=cluster) for cluster in clusters),
        *(Source(kind=SourceKind.KUBERNETES_WATCH, target=cluster) for cluster in clusters[:1]),
        *(Source(kind=SourceKind.KUEUE, target=cluster) for cluster in clusters),
        *([Source(kind=SourceKind.HYPERPOD)] if has_hyperpod else []),
        Source(kind=SourceKind.EVENT_QUEUE),
        Source(kind=SourceKind.SCHEDULING_CYCLE),
        Source(kind=SourceKind.WAITS),
        *(Source(kind=SourceKind.SWEEP, target=step) for step in SWEEP_STEPS),
    )


FACTS = (SourceKind.KUBERNETES_LIST, SourceKind.HYPERPOD)
"""Kinds of sources that give facts about nodes and jobs."""


def judge_sources(
    expected_sources: Iterable[Source],
    reports: Mapping[str, SourceReport],
    policy: SourcePolicy,
    now: datetime,
    *,
    is_running: bool = True,
) -> tuple[SourceAge, ...]:
    """Return the state and age of every expected source.

    A scheduling cycle without waiting jobs reads no cluster. So a completed cycle does not show that a cluster answers.

    Args:
        expected_sources: The sources of the fleet.
        reports: The joint report of each source, by its name.
        policy: The thresholds.
        now: The current time.
        is_running: Whether the schedules are on.
    """
    ages = tuple(
        _judge_one(source, reports.get(source.name), policy, now, is_running=is_running) for source in expected_sources
    )
    stale = [age.source.target for age in ages if age.source.kind is SourceKind.KUBERNETES_LIST and _is_stale(age)]
    return tuple(_with_stale_clusters(age, stale) for age in ages) if stale else ages


def _is_stale(age: SourceAge) -> bool:
    return age.state is SourceState.STALE


def _with_stale_clusters(age: SourceAge, clusters: Sequence[str]) -> SourceAge:
    """Return the age of a scheduling cycle as UNKNOWN, because clusters are stale; any other age unchanged."""
    if age.source.kind is not SourceKind.SCHEDULING_CYCLE or age.state is not SourceState.CURRENT:
        return age
    ran = span(age.age_seconds or 0)
    reason = f"Whether the scheduling cycle can start jobs on {', '.join(clusters)} is unknown (last run {ran} ago)."
    return age.replace(state=SourceState.UNKNOWN, reason=reason)


def source_problems(ages: Iterable[SourceAge]) -> tuple[list[str], list[str]]:
    """Return the problems of stale sources, and of unknown or failing ones, each as clauses for one line of reasons."""
    ages = tuple(ages)
    if ages and all(age.state is SourceState.UNKNOWN and age.seen_at is None and not age.error for age in ages):
        return [], ["nothing has been observed yet"]
    stale = [age for age in ages if age.state is SourceState.STALE]
    silent = [age.source for age in stale if not age.error]
    # A scheduling cycle is also UNKNOWN while a cluster is stale. That cluster is already in the list.
    unknown_sources = [age.source for age in ages if age.state is SourceState.UNKNOWN and not (stale and _has_run(age))]
    reasons = [age.reason.removesuffix(".") for age in _name_clusters_once(age for age in stale if age.error)]
    if silent:
        reasons.append(f"nothing has read {_comma_list(silent)} for too long")
    problems = [f"nothing is known yet about {_comma_list(unknown_sources)}"] if unknown_sources else []
    failing_ages = _name_clusters_once(age for age in ages if age.state is SourceState.FAILING)
    if failing_ages:
        problems.append(f"the last attempt to read {_comma_list([age.source for age in failing_ages])} failed")
    return reasons, problems


def _name_clusters_once(failing_ages: Iterable[SourceAge]) -> list[SourceAge]:
    """Leave out the watch and the Kueue of a cluster that does not answer: they fail with it."""
    failing_ages = list(failing_ages)
    clusters = {age.source.target for age in failing_ages if age.source.kind is SourceKind.KUBERNETES_LIST}
    return [
        age
        for age in failing_ages
        if age.source.kind not in (SourceKind.KUBERNETES_WATCH, SourceKind.KUEUE) or age.source.target not in clusters
    ]


def _has_run(age: SourceAge) -> bool:
    return age.source.kind is SourceKind.SCHEDULING_CYCLE and age.seen_at is not None


def _comma_list(sources: Sequence[Source]) -> str:
    """Return the names of the sources, separated by commas. Several steps of the sweep become one entry."""
    steps = [source for source in sources if source.kind is SourceKind.SWEEP]
    words = [source.words for source in sources if source.kind is not SourceKind.SWEEP]
    if steps:
        words.append(steps[0].words if len(steps) == 1 else f"{len(steps)} sweep steps")
    return ", ".join(words)


def _judge_one(
    source: Source, report: SourceReport | None, policy: SourcePolicy, now: datetime, *, is_running: bool
) -> SourceAge:
    interval = STEP_INTERVAL_SECONDS.get(source.target, 0) if source.kind is SourceKind.SWEEP else 0
    threshold = policy.threshold_seconds(source.kind) + interval
    seen_at = report.seen_at if report else None
    age = None if seen_at is None else max(0, round((now - seen_at).total_seconds()))
    state, reason = _state_and_reason(source, report, threshold, now, is_running=is_running)
    return SourceAge(
        source=source,
        state=state,
        seen_at=seen_at,
        age_seconds=age,
        threshold_seconds=threshold,
        failing_since=report.failing_since if report else None,
        error=report.error if report else "",
        reason=reason,
    )


def _state_and_reason(
    source: Source, report: SourceReport | None, threshold: int, now: datetime, *, is_running: bool
) -> tuple[SourceState, str]:
    source_text = source.words
    if not is_running:
        return SourceState.OFF, f"Nothing reads {source_text}: the schedules are off."
    if report is None:
        return SourceState.UNKNOWN, f"Nothing has read {source_text} yet."
    if report.tried_at > now + CLOCK_SKEW:
        ahead = span((report.tried_at - now).total_seconds())
        return SourceState.UNKNOWN, f"The last report on {source_text} is {ahead} in the future: a clock is wrong."
    limit = timedelta(seconds=threshold)
    failure = f" since {_clock_text(report.failing_since)}: {report.error}" if report.failing_since else ""
    if report.seen_at is None:
        since = report.failing_since or report.tried_at
        state = SourceState.STALE if now - since > limit else SourceState.UNKNOWN
        return state, f"{_capitalized(source_text)} has never answered{failure}."
    ago = f"last answer {span((now - report.seen_at).total_seconds())} ago"
    if now - report.seen_at > limit:
        if failure:
            return SourceState.STALE, f"{_capitalized(source_text)} {source.verb}{failure} ({ago})."
        return SourceState.STALE, f"Nothing has read {source_text} lately ({ago})."
    if report.error:
        return SourceState.FAILING, f"The last attempt to read {source_text} failed ({ago}): {report.error}"
    return SourceState.CURRENT, f"{_capitalized(source_text)} answered ({ago})."


def span(seconds: float) -> str:
    """Format a duration: `40 s`, `12 min`, `5 h`, `3 days`."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    if seconds < 129_600:
        return f"{round(seconds / 3600)} h"
    return f"{round(seconds / 86_400)} days"


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]


def _clock_text(instant: datetime | None) -> str:
    return instant.strftime("%Y-%m-%d %H:%M:%SZ") if instant else ""
