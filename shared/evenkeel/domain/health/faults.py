"""The fault catalogue, one row per code: facts (`f_…`) beside our own defaults (`p_…`). A new fault is a new row."""

import csv
import functools
import importlib.resources
from enum import StrEnum

from evenkeel.domain.values import Value


class CheckpointTrust(StrEnum):
    """Which checkpoints survive suspicion."""

    TRUSTED = "trusted"
    SUSPECT_SINCE_FIRST_SIGNAL = "suspect_since_first_signal"
    NONE = "none"


class Severity(StrEnum):
    """How bad, worst last."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info, 3 for critical."""
        return list(Severity).index(self)


class Fault(Value):
    """What one fault code means and calls for."""

    key: str
    """`xid:79`, `hp:NvidiaErrorReboot`, `node:not_ready`, …"""
    name: str
    fault_class: str
    severity: Severity
    checkpoint_trust: CheckpointTrust
    drain_seconds: int
    """Grace given to the pods on the node; -1 = no drain."""
    ladder: tuple[str, ...]
    """Rungs in order: `restart_job`, `reboot`, `replace`, `watch`, `ignore`, … After the last comes a person."""
    acts_alone: bool
    """Whether this signal alone may start the first rung."""
    settle_seconds: int
    """Wait for more evidence before the first rung."""
    validate_with: str
    """none, basic or deep."""
    recur_count: int = 0
    """The N-th occurrence inside the window starts on the next rung; 0 = not counted."""
    recur_window_hours: int = 0

    @property
    def repairs_node(self) -> bool:
        """Whether any rung touches the machine."""
        return any(rung in NODE_RUNGS for rung in self.ladder)

    @property
    def node_rungs(self) -> tuple[str, ...]:
        """The rungs that touch the machine, in order."""
        return tuple(rung for rung in self.ladder if rung in NODE_RUNGS)


NODE_RUNGS = ("reboot", "replace")

UNKNOWN_FAULT = "hp:unknown_fault_type"


def _read(row: dict[str, str]) -> Fault:
    return Fault(
        key=row["key"],
        name=row["name"],
        fault_class=row["p_class"],
        severity=Severity(row["p_severity"]),
        checkpoint_trust=CheckpointTrust(row["p_checkpoint_trust"]),
        drain_seconds=int(row["p_drain_s"]),
        ladder=tuple(row["p_ladder"].split(">")),
        acts_alone=row["p_acts_alone"] == "yes",
        settle_seconds=int(row["p_settle_s"]),
        validate_with=row["p_validate"],
        recur_count=int(row["p_recur_count"]),
        recur_window_hours=int(row["p_recur_window_h"]),
    )


@functools.cache
def catalogue() -> dict[str, Fault]:
    """Return all rows of `faults.csv` by key.

    Raises:
        ValueError: a row does not parse; the catalogue is tested, so this is a broken build.
    """
    text = importlib.resources.files(__package__).joinpath("faults.csv").read_text(encoding="utf-8")
    return {row["key"]: _read(row) for row in csv.DictReader(text.splitlines())}


def look_up(key: str) -> Fault:
    """Return the fault of this key; the family's fallback row, else the unknown fault, where the code is not listed."""
    rows = catalogue()
    family = key.partition(":")[0]
    return rows.get(key) or rows.get(f"{family}:*") or rows[UNKNOWN_FAULT]
