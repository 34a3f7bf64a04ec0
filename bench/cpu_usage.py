"""Measures the processor share of other programs during a benchmark. Linux only, like the local data centre."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_IDLE_FIELDS: Final = (3, 4)  # of the line `cpu` in /proc/stat: idle, iowait
_COUNTED_FIELDS: Final = 8  # the other values, for guests, are part of the first


@dataclass(frozen=True)
class Usage:
    """Processor ticks since the machine was started."""

    all_ticks: int
    busy_ticks: int
    own_ticks: int
    """Ticks of this process and all its descendants."""

    @classmethod
    def now(cls) -> Usage:
        words = (_PROC / "stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1 : 1 + _COUNTED_FIELDS]
        ticks = [int(word) for word in words]
        idle = sum(ticks[index] for index in _IDLE_FIELDS)
        return cls(sum(ticks), sum(ticks) - idle, _ticks_of_tree(os.getpid()))

    def others_since(self, before: Usage) -> float:
        """Return the share of all processors that other programs used since then, 0 to 1."""
        busy, own_ticks = self.busy_ticks - before.busy_ticks, self.own_ticks - before.own_ticks
        # The ticks of a process that died unreaped are lost, so the difference can be negative.
        return max(0.0, (busy - own_ticks) / max(1, self.all_ticks - before.all_ticks))


def _ticks_of_tree(root: int) -> int:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        fields = _stat_fields(entry) if entry.name.isdigit() else None
        if fields is not None:
            pid = int(entry.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(int(field) for field in fields[11:15])  # own and reaped children's, user and system
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total


def _stat_fields(process: Path) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on; the name before them may contain any characters."""
    try:
        return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None
