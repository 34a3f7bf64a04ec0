"""Failures and node-hours of a fleet, from the API's lists of nodes and incidents.

The API keeps nodes that are gone for 30 days, so a window is at most that long. An incident counts as one failure of
its pool. Drills, continued incidents, and faults of the classes `application` and `info` do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, NamedTuple

from evenkeel.domain.economics.fleet_request import MIN_NODE_HOURS
from evenkeel.domain.health.faults import FaultClass, default_catalogue

Json = dict[str, Any]

MAX_DAYS = 30
_NOT_COUNTED = (FaultClass.APPLICATION, FaultClass.INFO)
_MIN_MEASURED = 5


class History(NamedTuple):
    """The records of a fleet in a window."""

    observations: Json
    """A document of `failure_rates.Observations`."""
    groups: dict[str, Json]
    """Each pool with GPUs, as a group of `FleetRequest`."""
    notes: list[str]


def read_history(nodes: Iterable[Json], incidents: Iterable[Json], end: datetime, days: float) -> History:
    """Return failures and node-hours by pool.

    Args:
        nodes: Items of `GET /nodes?gone=true`.
        incidents: Items of `GET /incidents`.
        end: End of the window.
        days: Length of the window.
    """
    begin = end - timedelta(days=days)
    lives = {(node["instanceId"], node["launchedAt"]): node for node in nodes}.values()
    incidents_by_id = {
        incident["incidentId"]: incident for incident in counted_incidents(incidents, end, days)
    }.values()
    spans: dict[tuple[str, str], float] = {}
    for node in lives:
        pool_and_type = (node["pool"], node["instanceType"])
        spans[pool_and_type] = spans.get(pool_and_type, 0.0) + _node_hours(node, begin, end)
    observations = {
        "failures": [
            {
                "faultClass": fault_class(document),
                "pool": document["node"]["pool"],
                "instanceType": document["node"]["instanceType"],
            }
            for document in incidents_by_id
        ],
        "nodeHours": [
            {"pool": pool, "instanceType": instance_type, "nodeHours": hours}
            for (pool, instance_type), hours in spans.items()
        ],
    }
    notes = [
        f"Observed from {begin:%Y-%m-%dT%H:%M}Z to {end:%Y-%m-%dT%H:%M}Z. Each incident is one failure of its node.",
        "Drills, continued incidents, and faults of the classes application and info do not count.",
    ]
    return History(observations, _groups_by_pool(list(lives), observations), notes)


def counted_incidents(incidents: Iterable[Json], end: datetime, days: float) -> list[Json]:
    """Return the incidents of a window that count as failures."""
    begin = end - timedelta(days=days)
    return [incident for incident in incidents if _counts_as_failure(incident, begin, end)]


def _counts_as_failure(incident: Json, begin: datetime, end: datetime) -> bool:
    if incident["isDrill"] or incident["resumes"] or fault_class(incident) in _NOT_COUNTED:
        return False
    return begin <= parse_instant(incident["firstSignalAt"]) < end


def fault_class(incident: Json) -> str:
    """Return the class of an incident's fault in the shipped catalogue."""
    return str(default_catalogue().look_up(incident["fault"]["key"]).fault_class)


def _node_hours(node: Json, begin: datetime, end: datetime) -> float:
    last_at = parse_instant(node["changedAt"]) if node["state"] == "GONE" else end
    span = min(last_at, end) - max(parse_instant(node["launchedAt"]), begin)
    return max(0.0, span.total_seconds() / 3600)


def parse_instant(text: str) -> datetime:
    """Return an instant of the API."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _groups_by_pool(lives: Sequence[Json], observations: Json) -> dict[str, Json]:
    """Return each pool that has nodes with GPUs now. The count of a pool with less than a node-hour is unknown."""
    groups: dict[str, Json] = {}
    for pool in sorted({life["pool"] for life in lives if life["state"] != "GONE" and life["gpus"]}):
        present = [life for life in lives if life["pool"] == pool and life["state"] != "GONE"]
        hours = sum(
            observation["nodeHours"] for observation in observations["nodeHours"] if observation["pool"] == pool
        )
        groups[pool] = {
            "name": pool,
            "instanceType": present[0]["instanceType"],
            "nodes": len(present),
            "gpusPerNode": max(document["gpus"] for document in present),
        }
        if hours >= MIN_NODE_HOURS:
            failures = sum(failure["pool"] == pool for failure in observations["failures"])
            groups[pool] |= {"failures": failures, "nodeHours": hours}
    return groups


def with_fleet_counts(request: Mapping[str, Any], history: History) -> Json:
    """Add the counts of the fleet to the request. Values in the file have priority."""
    group_documents = request.get("groups", [])
    if not isinstance(group_documents, list) or not all(isinstance(group, dict) for group in group_documents):
        return dict(request)  # reading it names the field
    stated_groups = {str(group.get("name")): group for group in group_documents}
    groups = []
    for name in [*stated_groups, *(pool for pool in history.groups if pool not in stated_groups)]:
        stated_values, observed_values = stated_groups.get(name, {}), dict(history.groups.get(name, {}))
        if "failuresPerNodeHour" in stated_values or "failures" in stated_values:
            observed_values = {
                field: value for field, value in observed_values.items() if field not in ("failures", "nodeHours")
            }
        groups.append(observed_values | stated_values)
    return {**request, "groups": groups}


def measured_downtime(incidents: Iterable[Json]) -> tuple[float, int] | None:
    """Return the median seconds from the first signal until the jobs ran again, and the number of cases.

    None if there are fewer than five: too few for a figure.

    Args:
        incidents: Answers of `GET /incidents/{id}`.
    """
    seconds = []
    for document in incidents:
        at = {stage["stage"]: parse_instant(stage["at"]) for stage in document["took"]}
        if "jobs resumed" in at:
            seconds.append((at["jobs resumed"] - parse_instant(document["firstSignalAt"])).total_seconds())
    return (median(seconds), len(seconds)) if len(seconds) >= _MIN_MEASURED else None
