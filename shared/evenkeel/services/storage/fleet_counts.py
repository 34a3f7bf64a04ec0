"""The counts that the sweep stores once a minute: nodes, jobs, teams and budgets, in one row."""

from typing import Any

from evenkeel.ports import Ledger
from evenkeel.services.tables import fleet_rows

Json = dict[str, Any]


def load_counts(ledger: Ledger) -> Json | None:
    """Return the counts of the last sweep; None if no sweep has stored any."""
    row = ledger.get(fleet_rows.overview_key())
    return row.doc if row else None


def job_states(ledger: Ledger) -> Json | None:
    """Return the number of jobs by state, with the time of the count; None if it is unknown."""
    counts = load_counts(ledger)
    if counts is None:
        return None
    jobs = counts["jobs"]
    return {"at": counts["at"], "byState": jobs["counts"], "isLowerBound": jobs["isLowerBound"]}


def node_counts(ledger: Ledger) -> Json | None:
    """Return the number of nodes by state, with the time of the count; None if it is unknown."""
    counts = load_counts(ledger)
    if counts is None:
        return None
    nodes = counts["nodes"]
    return {
        "at": counts["at"],
        "byState": node_states(counts),
        "isLowerBound": nodes["isLowerBound"] or nodes["isCut"],
    }


def node_states(counts: Json) -> dict[str, int]:
    """Return the number of nodes by state of the stored counts."""
    by_state: dict[str, int] = {}
    for pool in counts["nodes"]["pools"]:
        for state, number in pool["states"].items():
            by_state[state] = by_state.get(state, 0) + number
    return by_state
