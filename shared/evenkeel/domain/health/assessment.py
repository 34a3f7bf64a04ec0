"""Assess the signals of one incident: its fault, severity, first rung and trust in checkpoints.

The result depends on the set of signals, not on the order in which they arrive.

signals ─▶ most specific signals ─▶ the most severe one names the fault
   └────▶ all signals ─▶ highest severity, gentlest allowed rung, strictest checkpoint trust
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.health.faults import CheckpointTrust, Fault, FaultCatalogue, Rung, Severity
from evenkeel.domain.health.incidents import ClearedFault, Incident, Recurrence, Signal
from evenkeel.domain.health.recurrence import SERIES_GAP
from evenkeel.domain.values import Instant, Value

CORROBORATION = timedelta(minutes=10)
"""A signal that may not act alone still counts this long after its incident was settled, if a second source agrees."""
_MAX_SIGNALS = 60


class Assessment(Value):
    """The fault, severity, first rung and sources that a set of signals implies."""

    fault_key: str
    severity: Severity
    min_rung: str = ""
    """See `Incident.min_rung`."""
    min_rung_reason: str = ""
    sources: tuple[str, ...]
    independent_sources: tuple[str, ...]
    """See `Incident.independent_sources`."""
    first_signal_at: Instant


# ---------------------------------------------------------------- signals and series


def merge_signal(signals: Iterable[Signal], new_signal: Signal) -> tuple[Signal, ...]:
    """Return the signals with a new one added.

    Signals of one fault, source, device and link within one series are merged into one. The order of merging does not
    matter. At most 60 signals are kept.
    """
    same_series = [
        signal for signal in signals if has_same_subject(signal, new_signal) and _is_same_series(signal, new_signal)
    ]
    other_signals = [signal for signal in signals if signal not in same_series]
    merged_signal = new_signal.replace(
        first_at=min(signal.first_at for signal in (new_signal, *same_series)),
        last_at=max(signal.last_at for signal in (new_signal, *same_series)),
    )
    sorted_signals = sorted((*other_signals, merged_signal), key=_sort_key)
    occurrence = {
        id(signal): sum(other.fault_key == signal.fault_key for other in sorted_signals[:at])
        for at, signal in enumerate(sorted_signals)
    }
    # If there are too many, prefer the first signals of each fault: they carry the most information.
    kept_ids = {
        id(signal) for signal in sorted(sorted_signals, key=lambda signal: occurrence[id(signal)])[:_MAX_SIGNALS]
    }
    return tuple(signal for signal in sorted_signals if id(signal) in kept_ids)


def signals_of(incident: Incident) -> tuple[Signal, ...]:
    """Return the signals of an incident. For a record without signals, rebuild them from its other fields."""
    if incident.signals:
        return incident.signals
    last_at = incident.last_fault_at
    return tuple(
        Signal(fault_key=incident.fault_key, source=source, first_at=incident.first_signal_at, last_at=last_at)
        for source in incident.sources or ("unknown",)
    )


def has_same_subject(signal: Signal, other_signal: Signal) -> bool:
    """Return whether two signals report the same fault of the same device or link, from the same source."""
    return all(getattr(signal, name) == getattr(other_signal, name) for name in ("fault_key", "source", "gpu", "link"))


def _is_same_series(signal: Signal, other_signal: Signal) -> bool:
    return signal.first_at - SERIES_GAP <= other_signal.last_at and other_signal.first_at <= signal.last_at + SERIES_GAP


def _sort_key(signal: Signal) -> tuple[datetime, str, str, str, str]:
    return (signal.first_at, signal.fault_key, signal.source, signal.gpu, signal.link)


def series_of(signals: Iterable[Signal]) -> tuple[tuple[Signal, ...], ...]:
    """Group the signals into series, oldest first. Two series are more than `SERIES_GAP` apart."""
    series: list[list[Signal]] = []
    ended_at: datetime | None = None
    for signal in sorted(signals, key=_sort_key):
        if ended_at is None or signal.first_at > ended_at + SERIES_GAP:
            series.append([])
        series[-1].append(signal)
        ended_at = max(ended_at or signal.last_at, signal.last_at)
    return tuple(map(tuple, series))


# ---------------------------------------------------------------- sources


def source_family(source: str) -> str:
    """Return the family of a source. Two sources of one family are not independent of each other.

    `hyperpod.node-health` and `hyperpod.node-labels` are one family. Each detector of the site, `site:<caller>`, is a
    family. Each operator, `person:<caller> (<session>)`, is one family in all sessions.
    """
    if source.startswith(("site:", "person:")):
        return source.partition(" (")[0]
    return source.partition(".")[0]


def independent_sources_of(signals: Iterable[Signal], faults: Mapping[str, Fault]) -> tuple[str, ...]:
    """Return the independent source families of the signals, sorted. Signals that call for no action do not count.

    `faults` contains the fault of each signal, by its fault key.
    """
    counted_keys = {key for key, fault in faults.items() if fault.is_evidence and fault.severity is not Severity.INFO}
    return tuple(sorted({source_family(signal.source) for signal in signals if signal.fault_key in counted_keys}))


# ---------------------------------------------------------------- the assessment


def assess(signals: Sequence[Signal], recurrences: Sequence[Recurrence], catalogue: FaultCatalogue) -> Assessment:
    """Return the fault, severity, first rung and sources that a set of signals implies.

    The most severe fault that counts names the incident. A fault that may not act alone counts if a second independent
    source agrees, or if no other fault counts.

    The first rung is at least the strongest first rung of all faults that count. So a driver verdict (Xid 154) or a
    HyperPod action can raise the rung, but never lower it.

    Args:
        signals: The signals of the incident; at least one.
        recurrences: Faults of the incident that recurred.
        catalogue: The faults that the site knows.
    """
    fault_by_key = _look_up_faults((*signals, *recurrences), catalogue)
    faults = {signal.fault_key: fault_by_key[signal.fault_key] for signal in signals}
    independent_sources = independent_sources_of(signals, faults)
    deciding_faults = [row for row in faults.values() if row.acts_alone or len(independent_sources) > 1]
    fault = max(_most_specific(deciding_faults or tuple(faults.values())), key=_severity_key)
    required_rungs = [
        (row.ladder[0].strength, row.ladder[0], f"{row.name} requires at least {row.ladder[0]}.")
        for row in deciding_faults
    ]
    required_rungs += [
        (
            _ASK_PERSON_STRENGTH if recurrence.rung is Rung.ASK_PERSON else recurrence.rung.strength,
            recurrence.rung,
            recurrence.reason,
        )
        for recurrence in recurrences
        if recurrence.rung is not Rung.ASK_PERSON or recurrence.fault_key == fault.key
    ]
    strength, rung, reason = max(required_rungs, default=(0, fault.ladder[0], ""))
    is_stronger = strength > fault.ladder[0].strength
    # A fault that is only watched at first is confirmed by its repetition, so repetition counts as a source.
    repeated_keys = {
        recurrence.fault_key for recurrence in recurrences if fault_by_key[recurrence.fault_key].ladder[0] is Rung.WATCH
    }
    return Assessment(
        fault_key=_reported_key(fault, faults),
        severity=max((row.severity for row in faults.values()), key=lambda severity: severity.rank),
        min_rung=rung if is_stronger else "",
        min_rung_reason=reason if is_stronger else "",
        sources=tuple(dict.fromkeys(signal.source for signal in sorted(signals, key=_sort_key))),
        independent_sources=(*independent_sources, *(["repetition"] if repeated_keys else [])),
        first_signal_at=min(signal.first_at for signal in signals),
    )


def _look_up_faults(reports: Iterable[Signal | Recurrence], catalogue: FaultCatalogue) -> dict[str, Fault]:
    """Return each fault that a signal or recurrence names, by the reported key."""
    return {key: catalogue.look_up(key) for key in dict.fromkeys(report.fault_key for report in reports)}


_ASK_PERSON_STRENGTH = max(rung.strength for rung in Rung) + 1
"""Strength of `ask_person`, above every other rung. Only a recurrence of the incident's own fault can require it."""


def _reported_key(fault: Fault, faults: dict[str, Fault]) -> str:
    """Return the key under which the fault was reported. It differs from `fault.key` if the code has no row."""
    return min(key for key, row in faults.items() if row.key == fault.key)


def _severity_key(fault: Fault) -> tuple[int, int, int, bool, str]:
    return (
        fault.severity.rank,
        fault.ladder[0].strength,
        fault.checkpoint_trust.strictness,
        fault.acts_alone,
        fault.key,
    )


def _most_specific(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Leave out each fault that another fault describes more exactly.

    The severity and the rung of the omitted faults still count.
    """
    return tuple(row for row in faults if not any(_refines(other, row) for other in faults)) or tuple(faults)


def _refines(exact: Fault, vague: Fault) -> bool:
    """Whether `exact` describes the same fault more precisely than `vague`.

    Source: a HyperPod event gives only a fault type; the Xid gives the fault itself. Xid 171 and 172 locate the memory
    error of Xid 48. An SXid names the link of Xid 74. Xid 154 and a NotReady node have another fault as their cause.
    A GPU that fell off the bus (Xid 79) explains a wrong GPU count.
    """
    if exact.key == vague.key or not any(
        vague.key.startswith(prefix) and _is_specific_key(exact.key, specific_suffixes)
        for prefix, specific_suffixes in _REFINEMENTS
    ):
        return False
    return exact.severity.rank >= vague.severity.rank or exact.repairs_node


def _is_specific_key(key: str, prefixes: tuple[str, ...]) -> bool:
    return key.startswith(prefixes) and not key.endswith(":*") and not key.startswith("xid:154")


_REFINEMENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("hp:", ("xid:", "sxid:")),
    ("xid:48", ("xid:171", "xid:172")),
    ("xid:74", ("sxid:",)),
    ("xid:154", ("xid:",)),
    (
        "node:not_ready",
        ("hp:", "xid:", "sxid:", "gpu:", "mem:", "fabric:", "efa:", "disk:", "neuron:", "eks:", "health:"),
    ),
    ("gpu:count_mismatch", ("xid:79",)),
)


# ---------------------------------------------------------------- trust


def checkpoint_trust(signals: Sequence[Signal], catalogue: FaultCatalogue) -> tuple[CheckpointTrust, datetime]:
    """Return which checkpoints stay trusted, and the time since which checkpoints are not.

    The strictest fault decides the trust. The time is the first signal of the first series with a fault that distrusts
    checkpoints.
    """
    fault_by_key = _look_up_faults(signals, catalogue)
    exact_keys = {row.key for row in _most_specific(tuple(fault_by_key[signal.fault_key] for signal in signals))}
    strictest_trust, since = CheckpointTrust.TRUSTED, min(signal.first_at for signal in signals)
    for series in reversed(series_of(signals)):
        faults = [row for row in (fault_by_key[signal.fault_key] for signal in series) if row.key in exact_keys]
        series_trust = max(
            (row.checkpoint_trust for row in faults), key=lambda trust: trust.strictness, default=strictest_trust
        )
        if series_trust is not CheckpointTrust.TRUSTED:
            since = min(signal.first_at for signal in series)
        strictest_trust = max(strictest_trust, series_trust, key=lambda trust: trust.strictness)
    return strictest_trust, since


def checkpoint_trust_of(incident: Incident, catalogue: FaultCatalogue) -> tuple[CheckpointTrust, datetime]:
    """Return which checkpoints stay trusted after an incident, and the time since which checkpoints are not."""
    return checkpoint_trust(signals_of(incident), catalogue)


# ---------------------------------------------------------------- cleared faults


def add_cleared_fault(cleared_faults: Iterable[ClearedFault], new_fault: ClearedFault) -> tuple[ClearedFault, ...]:
    """Return the cleared faults with a new one added. Keep the later of two reports of one fault by one source."""
    same_source = [
        fault for fault in cleared_faults if (fault.fault_key, fault.source) == (new_fault.fault_key, new_fault.source)
    ]
    other_faults = (fault for fault in cleared_faults if fault not in same_source)
    last_cleared = max((new_fault, *same_source), key=lambda fault: fault.at)
    return tuple(sorted((*other_faults, last_cleared), key=lambda other: (other.fault_key, other.source)))


def signals_to_clear(signals: Sequence[Signal], catalogue: FaultCatalogue) -> tuple[Signal, ...]:
    """Return the signals that must be cleared before the node counts as healthy.

    These are the signals of faults that a repair of the node may clear, or all signals if there is no such fault. A
    signal that Evenkeel only counts does not keep a node out of service: its source may never report an end.
    """
    fault_by_key = _look_up_faults(signals, catalogue)
    repairable_signals = tuple(signal for signal in signals if fault_by_key[signal.fault_key].repairs_node)
    return repairable_signals or tuple(signals)


def cleared_at(signals: Sequence[Signal], cleared_faults: Sequence[ClearedFault]) -> datetime | None:
    """Return when the last fault was reported as gone; None while any fault is still present.

    A fault is gone when a source reports its end, or when its own source reports the node as healthy. `node:not_ready`
    is gone when any source reports the node as healthy, because every source sees that state.
    """
    ends = []
    for signal in signals:
        clear_times = [
            fault.at for fault in cleared_faults if fault.at > signal.last_at and _clears_signal(fault, signal)
        ]
        if not clear_times:
            return None
        ends.append(max(clear_times))
    return max(ends, default=None)


def _clears_signal(cleared_fault: ClearedFault, signal: Signal) -> bool:
    if cleared_fault.fault_key:
        return cleared_fault.fault_key == signal.fault_key
    return source_family(cleared_fault.source) == source_family(signal.source) or signal.fault_key == "node:not_ready"
