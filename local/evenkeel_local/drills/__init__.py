"""Drills: something real is broken at a random moment, and everything that must hold afterwards is checked.

    table.py      the drills, a row each, and how one is run
    scenarios.py  what each does, in the order of the table
    storm.py      the one whose subject is the whole fleet
    stage.py      a job in a data centre, and what can be done to it
    checks.py     what must hold afterwards, whatever was broken
    replays.py    every recorded decision, decided again
    looking.py    what is seen of a data centre, and waiting for it

A new drill is a function of `scenarios.py`, a row of the table and a page below `docs/runbooks`.
"""

from evenkeel_local.drills.checks import check_afterwards, resumed_past_a_fence
from evenkeel_local.drills.looking import (
    ENDED,
    JOB_SECONDS,
    SETTLED,
    Counters,
    DrillTimeoutError,
    Result,
    Work,
    await_whole_fleet,
    dead_letters,
    last_step,
    node_of_rank,
    read_object,
    wait_for,
)
from evenkeel_local.drills.table import DRILLS, SHARED, Drill, rehearse, run

__all__ = [
    "DRILLS",
    "ENDED",
    "JOB_SECONDS",
    "SETTLED",
    "SHARED",
    "Counters",
    "Drill",
    "DrillTimeoutError",
    "Result",
    "Work",
    "await_whole_fleet",
    "check_afterwards",
    "dead_letters",
    "last_step",
    "node_of_rank",
    "read_object",
    "rehearse",
    "resumed_past_a_fence",
    "run",
    "wait_for",
]
