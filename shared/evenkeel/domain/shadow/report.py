"""Sum up judged cases: verdicts, error rates and lead times."""

from collections import Counter
from collections.abc import Iterable, Sequence

from evenkeel.domain.recovery.repair_requests import REBOOT, REPLACE
from evenkeel.domain.shadow.rates import Rate
from evenkeel.domain.shadow.verdicts import RIGHT, JudgedCase, Judgement, ShadowTimes, Verdict
from evenkeel.domain.values import Value


class LeadTimes(Value):
    """Seconds from Evenkeel's decisions to the owners' actions: positive if Evenkeel was earlier."""

    count: int
    p10: float | None = None
    median: float | None = None
    p90: float | None = None


class FaultSummary(Value):
    """The error rates of the cases of one fault."""

    fault_key: str
    cases: int
    false_cordons: Rate
    false_replacements: Rate


class ShadowSummary(Value):
    """Summary of the judged cases. Each case is one node within one observation window."""

    times: ShadowTimes
    cases: int
    incidents: int
    cordons: dict[Verdict, int]
    """Verdicts on the cases in which Evenkeel would have cordoned the node."""
    no_cordons: dict[Verdict, int]
    """Verdicts on the other cases."""
    repairs: dict[Verdict, int]
    """Verdicts on the repairs of all cases."""
    false_cordons: Rate
    false_reboots: Rate
    false_replacements: Rate
    cordon_lead: LeadTimes
    repair_lead: LeadTimes
    faults: tuple[FaultSummary, ...]
    """For each fault of a judged decision, the most wrong cordons first."""


def summarise_cases(judged_cases: Sequence[JudgedCase], times: ShadowTimes) -> ShadowSummary:
    """Return the summary of judged cases."""
    would_cordon = [case for case in judged_cases if case.decision.cordons]
    return ShadowSummary(
        times=times,
        cases=len(judged_cases),
        incidents=sum(len(case.incident_ids) for case in judged_cases),
        cordons=_count_verdicts(case.cordon for case in would_cordon),
        no_cordons=_count_verdicts(case.cordon for case in judged_cases if not case.decision.cordons),
        repairs=_count_verdicts(case.repair for case in judged_cases),
        false_cordons=_false_rate([case.cordon for case in would_cordon]),
        false_reboots=_false_rate(_repair_judgements(judged_cases, REBOOT)),
        false_replacements=_false_rate(_repair_judgements(judged_cases, REPLACE)),
        cordon_lead=_lead_times(case.cordon for case in would_cordon),
        repair_lead=_lead_times(case.repair for case in judged_cases),
        faults=_summarise_by_fault(judged_cases),
    )


def _summarise_by_fault(judged_cases: Iterable[JudgedCase]) -> tuple[FaultSummary, ...]:
    by_fault: dict[str, list[JudgedCase]] = {}
    for case in judged_cases:
        by_fault.setdefault(case.decision.fault_key, []).append(case)
    summaries = [
        FaultSummary(
            fault_key=fault_key,
            cases=len(cases),
            false_cordons=_false_rate([case.cordon for case in cases if case.decision.cordons]),
            false_replacements=_false_rate(_repair_judgements(cases, REPLACE)),
        )
        for fault_key, cases in by_fault.items()
    ]
    return tuple(
        sorted(summaries, key=lambda summary: (-summary.false_cordons.count, -summary.cases, summary.fault_key))
    )


def _repair_judgements(judged_cases: Iterable[JudgedCase], rung: str) -> list[Judgement]:
    return [case.repair for case in judged_cases if case.decision.repair == rung]


def _count_verdicts(judgements: Iterable[Judgement]) -> dict[Verdict, int]:
    counts = Counter(judgement.verdict for judgement in judgements)
    return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def _false_rate(judgements: Sequence[Judgement]) -> Rate:
    """Return the share of wrong decisions among the decisions that are known to be right or wrong."""
    wrong = sum(judgement.verdict is Verdict.WOULD_HAVE_BEEN_WRONG for judgement in judgements)
    right_count = sum(judgement.verdict in RIGHT for judgement in judgements)
    return Rate.of_counts(wrong, wrong + right_count, unknown_count=len(judgements) - wrong - right_count)


def _lead_times(judgements: Iterable[Judgement]) -> LeadTimes:
    seconds = sorted(
        judgement.seconds for judgement in judgements if judgement.verdict in RIGHT and judgement.seconds is not None
    )
    if not seconds:
        return LeadTimes(count=0)
    p10, median, p90 = (seconds[round(share * (len(seconds) - 1))] for share in (0.1, 0.5, 0.9))
    return LeadTimes(count=len(seconds), p10=p10, median=median, p90=p90)
