"""Drills: each breaks a real part at a random time, and checks the recovery.

    catalogue.py        the table of the drills, and how to run one
    scenarios.py        the steps of each drill, in the order of the table
    storm.py            the drill of the whole fleet
    drill_run.py        the job of a drill, its nodes and its incidents
    checks.py           the checks after each drill
    decision_replay.py  computes every recorded decision again
    harness.py          reads the state of a data centre, and waits for it

A new drill is a function in `scenarios.py`, a row of the table and a page below `docs/runbooks`.
"""

from evenkeel_local.drills.catalogue import DRILLS, SHARED, Drill, run, run_alone
from evenkeel_local.drills.checks import check_outcome, resumed_past_a_fence
from evenkeel_local.drills.harness import (
    ENDED,
    JOB_SECONDS,
    RENTED_TYPE,
    SETTLED,
    DrillResult,
    DrillTimeoutError,
    RepairCounters,
    TrainingWork,
    await_all_nodes_ready,
    dead_letter_counts,
    last_step,
    node_of_rank,
    node_pool,
    read_object,
    rented_pool,
    wait_for,
)

__all__ = [
    "DRILLS",
    "ENDED",
    "JOB_SECONDS",
    "RENTED_TYPE",
    "SETTLED",
    "SHARED",
    "Drill",
    "DrillResult",
    "DrillTimeoutError",
    "RepairCounters",
    "TrainingWork",
    "await_all_nodes_ready",
    "check_outcome",
    "dead_letter_counts",
    "last_step",
    "node_of_rank",
    "node_pool",
    "read_object",
    "rented_pool",
    "resumed_past_a_fence",
    "run",
    "run_alone",
    "wait_for",
]
