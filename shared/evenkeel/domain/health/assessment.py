"""What the signals of one incident come to: one fault, a severity, the rung to begin on, the trust in checkpoints.

Judged from the set of signals and not from their order: the same evidence comes to the same, however it arrived.

signals ─▶ bursts ─▶ those that another signal says more exactly are set aside ─▶ the worst names the fault
                                                              all of them ─▶ severity, gentlest rung, strictest trust
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.health.faults import CheckpointTrust, Fault, FaultCatalogue, Rung, Severity
from evenkeel.domain.health.incidents import ClearedFault, Incident, Recurrence, Signal
from evenkeel.domain.health.recurrence import BURST_GAP
from evenkeel.domain.values import Instant, Value

CORROBORATION = timedelta(minutes=10)
"""So long a signal that may not act alone waits for a second witness, though its incident be settled meanwhile."""
_MAX_SIGNALS = 60


class Assessment(Value):
    """What a set of signals comes to."""

    fault_key: str
    severity: Severity
    min_rung: str = ""
    """As in `Incident`."""
    min_rung_reason: str = ""
    sources: tuple[str, ...]
    independent_sources: tuple[str, ...]
    """As in `Incident`."""
    first_signal_at: Instant


# ---------------------------------------------------------------- signals and bursts


def merge_signal(signals: Iterable[Signal], more: Signal) -> tuple[Signal, ...]:
    """Return signals with one more: what one source says again of one place within a burst is one signal.

    The order in which they are merged does not matter.
    """
    same = [each for each in signals if _is_same(each, more) and _is_same_burst(each, more)]
    others = [each for each in signals if each not in same]
    one = more.but(
        first_at=min(each.first_at for each in (more, *same)), last_at=max(each.last_at for each in (more, *same))
    )
    together = sorted((*others, one), key=_sort_key)
    nth = {
        id(each): sum(other.fault_key == each.fault_key for other in together[:at]) for at, each in enumerate(together)
    }
    # Too many to keep: the first of each fault says most.
    kept = {id(each) for each in sorted(together, key=lambda each: nth[id(each)])[:_MAX_SIGNALS]}
    return tuple(each for each in together if id(each) in kept)


def signals_of(incident: Incident) -> tuple[Signal, ...]:
    """Return what an incident rests on; of a record without signals, what can be told of them."""
    if incident.signals:
        return incident.signals
    last_at = incident.last_signal_at or incident.first_signal_at
    return tuple(
        Signal(fault_key=incident.fault_key, source=source, first_at=incident.first_signal_at, last_at=last_at)
        for source in incident.sources or ("unknown",)
    )


def _is_same(one: Signal, other: Signal) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("fault_key", "source", "gpu", "link"))


def _is_same_burst(one: Signal, other: Signal) -> bool:
    return one.first_at - BURST_GAP <= other.last_at and other.first_at <= one.last_at + BURST_GAP


def _sort_key(signal: Signal) -> tuple[datetime, str, str, str, str]:
    return (signal.first_at, signal.fault_key, signal.source, signal.gpu, signal.link)


def bursts(signals: Iterable[Signal]) -> tuple[tuple[Signal, ...], ...]:
    """Return the signals in bursts, oldest first: between two of them there was silence."""
    found: list[list[Signal]] = []
    ended_at: datetime | None = None
    for signal in sorted(signals, key=_sort_key):
        if ended_at is None or signal.first_at > ended_at + BURST_GAP:
            found.append([])
        found[-1].append(signal)
        ended_at = max(ended_at or signal.last_at, signal.last_at)
    return tuple(map(tuple, found))


# ---------------------------------------------------------------- who says so


def source_family(source: str) -> str:
    """Return who stands behind a source: one agent that speaks by several ways is one witness.

    `hyperpod.node-health` and `hyperpod.node-labels` are one. A site's detectors, `site:<caller>`, are each its own. So
    are operators, `person:<caller> (<session>)`, whatever their session.
    """
    if source.startswith(("site:", "person:")):
        return source.partition(" (")[0]
    return source.partition(".")[0]


def independent_sources_of(signals: Iterable[Signal], catalogue: FaultCatalogue) -> tuple[str, ...]:
    """Return the independent witnesses of a sickness. What calls for nothing bears no witness."""
    return tuple(
        sorted({source_family(each.source) for each in signals if _counts_as_source(catalogue.look_up(each.fault_key))})
    )


def is_evidence(fault: Fault) -> bool:
    """Whether a fault says something of the machine by itself, and is no mere trace of another, or of planned work."""
    return fault.ladder[0] not in (Rung.IGNORE, Rung.FOLLOW_PRIMARY)


def _counts_as_source(fault: Fault) -> bool:
    return is_evidence(fault) and fault.severity is not Severity.INFO


# ---------------------------------------------------------------- what it comes to


def assess(signals: Sequence[Signal], recurrences: Sequence[Recurrence], catalogue: FaultCatalogue) -> Assessment:
    """Judge a set of signals, at least one.

    The worst row that counts names the fault. No rung gentler than the strongest first rung among them is taken,
    whatever the worst row begins with: so the driver's own verdict (Xid 154) and HyperPod's count, and neither ever
    lowers a rung. A row that may not act alone counts once there is a second, independent witness, or where there is
    no other row.
    """
    rows = {each.fault_key: catalogue.look_up(each.fault_key) for each in signals}
    seen_by = independent_sources_of(signals, catalogue)
    counting = [row for row in rows.values() if row.acts_alone or len(seen_by) > 1]
    fault = max(_most_specific(counting or tuple(rows.values())), key=_severity_key)
    asks = [
        (row.ladder[0].strength, row.ladder[0], f"{row.name} requires at least {row.ladder[0]}.") for row in counting
    ]
    asks += [
        (_PERSON_STRENGTH if each.rung is Rung.PAGE_HUMAN else each.rung.strength, each.rung, each.reason)
        for each in recurrences
        if each.rung is not Rung.PAGE_HUMAN or each.fault_key == fault.key
    ]
    strength, rung, because = max(asks, default=(0, fault.ladder[0], ""))
    asks_more = strength > fault.ladder[0].strength
    # What is watched until it has come often enough has proved itself by that; a doubtful repair has not.
    repeated = {each.fault_key for each in recurrences if catalogue.look_up(each.fault_key).ladder[0] is Rung.WATCH}
    return Assessment(
        fault_key=_key_of(fault, rows),
        severity=max((row.severity for row in rows.values()), key=lambda each: each.rank),
        min_rung=rung if asks_more else "",
        min_rung_reason=because if asks_more else "",
        sources=tuple(dict.fromkeys(each.source for each in sorted(signals, key=_sort_key))),
        independent_sources=(*seen_by, *(["repetition"] if repeated else [])),
        first_signal_at=min(each.first_at for each in signals),
    )


_PERSON_STRENGTH = max(rung.strength for rung in Rung) + 1
"""A person comes after every rung; but a repetition of what is not the worst calls for nobody."""


def _key_of(fault: Fault, rows: dict[str, Fault]) -> str:
    """Return the key as it was said: a code without a row of its own keeps its name."""
    return min(key for key, row in rows.items() if row.key == fault.key)


def _severity_key(fault: Fault) -> tuple[int, int, int, bool, str]:
    return (
        fault.severity.rank,
        fault.ladder[0].strength,
        fault.checkpoint_trust.strictness,
        fault.acts_alone,
        fault.key,
    )


def _most_specific(rows: Sequence[Fault]) -> tuple[Fault, ...]:
    """Leave out what another row says more exactly. Severity and rung of what is left out count all the same."""
    return tuple(row for row in rows if not any(_refines(other, row) for other in rows)) or tuple(rows)


def _refines(exact: Fault, vague: Fault) -> bool:
    """Whether one row says more exactly what the other says.

    Source: HyperPod's event gives only a fault type, which the Xid behind it refines; 171 and 172 tell where the memory
    of a 48 failed; an SXid names the link of a 74; the driver's verdict and a node that went NotReady have a cause; a
    GPU that fell off the bus is the one that a count misses.
    """
    if exact.key == vague.key or not any(
        vague.key.startswith(before) and _has_prefix(exact.key, after) for before, after in _REFINEMENTS
    ):
        return False
    return exact.severity.rank >= vague.severity.rank or exact.repairs_node


def _has_prefix(key: str, prefixes: tuple[str, ...]) -> bool:
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
    """Return how far checkpoints are trusted, and since when they are not.

    The strictest row decides, and the first signal of the first burst in which a row distrusts any.
    """
    exact = {row.key for row in _most_specific(tuple(catalogue.look_up(each.fault_key) for each in signals))}
    strictest, since = CheckpointTrust.TRUSTED, min(each.first_at for each in signals)
    for burst in reversed(bursts(signals)):
        rows = [row for row in (catalogue.look_up(each.fault_key) for each in burst) if row.key in exact]
        worst = max((row.checkpoint_trust for row in rows), key=lambda each: each.strictness, default=strictest)
        if worst is not CheckpointTrust.TRUSTED:
            since = min(each.first_at for each in burst)
        strictest = max(strictest, worst, key=lambda each: each.strictness)
    return strictest, since


# ---------------------------------------------------------------- cleared faults


def add_cleared_fault(cleared_faults: Iterable[ClearedFault], more: ClearedFault) -> tuple[ClearedFault, ...]:
    """Return the cleared faults with one more; of two reports of one fault by one source, the later counts."""
    same = [each for each in cleared_faults if (each.fault_key, each.source) == (more.fault_key, more.source)]
    others = (each for each in cleared_faults if each not in same)
    last = max((more, *same), key=lambda each: each.at)
    return tuple(sorted((*others, last), key=lambda each: (each.fault_key, each.source)))


def cleared_at(signals: Sequence[Signal], cleared_faults: Sequence[ClearedFault]) -> datetime | None:
    """Return when the last of the faults was said to be gone; None while one is not.

    A fault is gone when its own end was told, or its witness calls the machine healthy. Whether a node is Ready shows
    at every look at it, so that waits for nobody's word.
    """
    ends = []
    for signal in signals:
        cleared = [each.at for each in cleared_faults if each.at > signal.last_at and _clears(each, signal)]
        if not cleared:
            return None
        ends.append(max(cleared))
    return max(ends, default=None)


def _clears(cure: ClearedFault, signal: Signal) -> bool:
    if cure.fault_key:
        return cure.fault_key == signal.fault_key
    return source_family(cure.source) == source_family(signal.source) or signal.fault_key == "node:not_ready"
