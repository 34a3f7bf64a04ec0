"""Drills: something real is broken at a random moment, and everything that must hold afterwards is checked.

    catalogue.py        table of the drills, and how to run one
    scenarios.py        what each drill does, in the order of the table
    storm.py            the drill of the whole fleet
    drill_run.py        a job in a data centre, and what can be done to it
    checks.py           what must hold after each drill
    decision_replay.py  decides every recorded decision again
    harness.py          reads the state of a data centre, and waits for it

A new drill is a function of `scenarios.py`, a row of the table and a page below `docs/runbooks`.
"""

from evenkeel_local.drills.catalogue import DRILLS, SHARED, Drill, rehearse, run
from evenkeel_local.drills.checks import check_outcome, resumed_past_a_fence
from evenkeel_local.drills.harness import (
    ENDED,
    JOB_SECONDS,
    SETTLED,
    DrillResult,
    DrillTimeoutError,
    RepairCounters,
    TrainingWork,
    await_all_nodes_ready,
    dead_letters,
    last_step,
    node_of_rank,
    read_object,
    wait_for,
)

__all__ = [
    "DRILLS",
    "ENDED",
    "JOB_SECONDS",
    "SETTLED",
    "SHARED",
    "Drill",
    "DrillResult",
    "DrillTimeoutError",
    "RepairCounters",
    "TrainingWork",
    "await_all_nodes_ready",
    "check_outcome",
    "dead_letters",
    "last_step",
    "node_of_rank",
    "read_object",
    "rehearse",
    "resumed_past_a_fence",
    "run",
    "wait_for",
]
