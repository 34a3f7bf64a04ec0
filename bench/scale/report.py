"""The report of a run: a table, the aims, and the figures as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.scale.functions import limits
from bench.scale.scenarios import CaseFigures

CALLS_AIM: Final = 10
ALONE_AIM: Final = 1.0
COLD_AIM: Final = 3.0
STORM_AIM: Final = 5.0
ROUND_AIM: Final = 5.0
READS_AIM: Final = 60
PROCESSOR_AIM: Final = 1.5
RECOVERY_AIM: Final = 0.001
MEMORY_SHARE: Final = 0.5
TIMEOUT_SHARE: Final = 1 / 3
_MB: Final = 1_000_000


@dataclass(frozen=True)
class Verdict:
    """An aim at a size of the fleet."""

    aim: str
    size: str
    seen: float
    limit: float
    unit: str
    cause: str = ""
    """The calls or the processor time that decide the figure."""

    @property
    def is_met(self) -> bool:
        return self.seen <= self.limit

    @property
    def multiple_of_limit(self) -> float:
        """Return the figure as a multiple of the limit."""
        return math.inf if math.isnan(self.seen) or not self.limit else self.seen / self.limit

    def __str__(self) -> str:
        met = "met   " if self.is_met else "MISSED"
        why = f": {self.cause}" if self.cause and not self.is_met else ""
        return f"{met}  {self.aim}, {self.size}: {self.seen:,.3g} {self.unit}, aim {self.limit:,.3g}{why}"


def judge_results(results: Sequence[CaseFigures]) -> list[Verdict]:
    """Return each aim at each size: missed aims first, the largest excess first."""
    result_verdicts = [verdict for result in results for verdict in _verdicts_of(result)]
    return sorted(result_verdicts, key=lambda verdict: (verdict.is_met, -verdict.multiple_of_limit))


def _verdicts_of(measured: CaseFigures) -> Iterator[Verdict]:
    size, cause = str(measured.size), _cause_text(measured)
    if measured.case == "event to cordon":
        before = measured.notes["callsBeforeCordon"]
        most = ", ".join(f"{count} {api}" for api, count in sorted(before.items(), key=lambda entry: -entry[1])[:5])
        yield Verdict("calls before the cordon", size, sum(before.values()), CALLS_AIM, "calls", most)
        yield Verdict("event to cordon alone, p99, warm", size, measured.notes["warm"]["p99"], ALONE_AIM, "s", cause)
        yield Verdict(
            "event to cordon alone, p99, cold", size, measured.notes["cold"]["p99"], COLD_AIM, "s", "cold starts"
        )
    if measured.case == "queue":
        yield Verdict("reads of a cycle over long queues", size, measured.notes["reads"], READS_AIM, "reads", cause)
        spent = measured.notes["processorSeconds"]
        yield Verdict("processor of a cycle over long queues", size, spent, PROCESSOR_AIM, "s", cause)
    if measured.case == "storm":
        yield Verdict("event to cordon in a storm, p99", size, measured.seconds_p99, STORM_AIM, "s", cause)
        late = sum(measured.notes["pastThirdOfTimeout"].values())
        yield Verdict("invocations past a third of their timeout in a storm", size, late, 0, "invocations", cause)
    if measured.case in ("watch", "cycle"):
        yield Verdict(f"one {measured.case}, p99", size, measured.seconds_p99, ROUND_AIM, "s", cause)
    for name, figures in measured.functions.items():
        limit = limits()[name]
        timeout = limit.timeout_seconds * TIMEOUT_SHARE
        yield Verdict(
            f"{name} within a third of its timeout ({measured.case})", size, figures.seconds_p99, timeout, "s", cause
        )
        if figures.memory_bytes is not None:
            memory = limit.memory_mb * MEMORY_SHARE * 1024**2 / _MB
            yield Verdict(
                f"{name} within half its memory ({measured.case})",
                size,
                figures.memory_bytes / _MB,
                memory,
                "MB",
                cause,
            )


def _cause_text(measured: CaseFigures) -> str:
    """Name the calls and the processor time that a figure consists of."""
    top_calls = ", ".join(f"{count} {api}" for api, count in measured.calls.most_common(3))
    throttled_seconds: Mapping[str, float] = measured.notes.get("throttledSeconds", {})
    throttling = "".join(
        f"; {api} waits {seconds:,.0f} s in all"
        for api, seconds in sorted(throttled_seconds.items(), key=lambda entry: -entry[1])[:1]
        if seconds >= 1
    )
    cpu_text = f"{measured.client_seconds:.2f} s of processor in clients, {measured.service_seconds:.2f} s in services"
    return f"{top_calls}; {measured.received / _MB:,.1f} MB read; {cpu_text}{throttling}"


def report_lines(results: Sequence[CaseFigures]) -> list[str]:
    """Return the figures of all cases as lines."""
    names = ("calls", "MB read", "own CPU s", "client CPU s", "p50 s", "p99 s", "peak MB")
    lines = ["", f"  {'case':<18}{'nodes':>8}{'jobs':>8}" + "".join(f"{name:>13}" for name in names)]
    for result in results:
        peaks = [figures.memory_bytes for figures in result.functions.values() if figures.memory_bytes is not None]
        figures = (
            f"{sum(result.calls.values()):,}",
            f"{result.received / _MB:,.2f}",
            f"{result.service_seconds:,.3f}",
            f"{result.client_seconds:,.3f}",
            f"{result.seconds_p50:,.2f}",
            f"{result.seconds_p99:,.2f}",
            f"{max(peaks) / _MB:,.0f}" if peaks else "-",
        )
        lines.append(
            f"  {result.case:<18}{result.size.nodes:>8,}{result.size.jobs:>8,}" + "".join(f"{x:>13}" for x in figures)
        )
    return lines


def bill_lines(bills: Mapping[str, Any]) -> list[str]:
    """Return the bills as lines, with the aim for a recovery."""
    if not bills:
        return []
    recovery: float = bills["recovery"]["total"]
    parts = ", ".join(f"{name} ${usd:.6f}" for name, usd in bills["recovery"].items() if name != "total")
    met = "met   " if recovery <= RECOVERY_AIM else "MISSED"
    lines = ["", f"  {met}  bill of a recovery: ${recovery:.6f}, aim ${RECOVERY_AIM}: {parts}"]
    for nodes, month in bills["quietMonth"].items():
        largest = sorted((entry for entry in month.items() if entry[0] != "total"), key=lambda entry: -entry[1])[:4]
        parts = ", ".join(f"{name} ${usd:,.2f}" for name, usd in largest)
        lines.append(f"  a quiet month of {int(nodes):,} nodes: ${month['total']:,.2f}: {parts}")
    return lines


def to_json(measured: CaseFigures) -> dict[str, Any]:
    """Return the figures of a case."""
    return {
        "case": measured.case,
        "nodes": measured.size.nodes,
        "jobs": measured.size.jobs,
        "calls": dict(sorted(measured.calls.items())),
        "bytesRead": measured.received,
        "ownProcessorSeconds": round(measured.service_seconds, 4),
        "clientProcessorSeconds": round(measured.client_seconds, 4),
        "p50Seconds": _rounded(measured.seconds_p50),
        "p99Seconds": _rounded(measured.seconds_p99),
        "dynamoUnits": {name: round(value, 1) for name, value in measured.capacity_units.items()},
        "functions": {
            name: {
                "invocations": figures.invocations,
                "p50Seconds": _rounded(figures.seconds_p50),
                "p99Seconds": _rounded(figures.seconds_p99),
                "gigabyteSeconds": round(figures.gigabyte_seconds, 4),
                "peakMemoryMB": None if figures.memory_bytes is None else round(figures.memory_bytes / _MB, 1),
            }
            for name, figures in measured.functions.items()
        },
        **measured.notes,
    }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
