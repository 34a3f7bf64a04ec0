"""The storm: every node fails within seconds, and many events report each fault.

The drill does not check that all nodes are repaired. It checks that no fault is lost, no action is done twice, and each
recovery that must wait names its rule.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from evenkeel.adapters.dynamo_ledger import INDEX, document_of
from evenkeel.domain.health.incidents import IncidentState
from evenkeel_local.drills.checks import check_dead_letters, check_decisions
from evenkeel_local.drills.drill_run import DrillRun
from evenkeel_local.drills.harness import SETTLED, DrillTimeoutError, Json, dead_letter_counts, wait_for
from evenkeel_local.drills.scenarios import shared_cause_window, waiting_events

HEALTH_EVENT: Final = "SageMaker HyperPod Cluster Node Health Event"
EVENTS_PER_MACHINE: Final = 5
COPIES: Final = 3
SENDERS: Final = 8
DRAINED_SECONDS: Final = 300.0
"""Time until every event is handled and every recovery waits or has ended."""
INJECTED_SECONDS: Final = 10.0


def storm(drill: DrillRun) -> None:
    """All nodes fail within seconds, five events for each, all events shuffled and delivered three times."""
    with shared_cause_window(drill, 900) as in_force:
        in_force()
        _run_storm(drill)


def _run_storm(drill: DrillRun) -> None:
    policy = drill.client.get(f"/clusters/{drill.client.fleet}/policy")["policy"]
    limits = policy["repair"]["guardrails"]
    machines = [node["instanceId"] for node in drill.cluster.nodes()]
    events = [event for machine in machines for event in _events_of(drill, machine)]
    sent_events = events * COPIES
    drill.rng.shuffle(sent_events)
    began = time.monotonic()
    _send_events(drill, sent_events)
    drill.result.seconds["injected"] = time.monotonic() - began
    drill.say(f"{len(sent_events)} messages of {len(events)} events for {len(machines)} nodes are out")
    peaks = OpenIncidentPeaks()

    def storm_is_over() -> bool:
        time.sleep(2.0)  # polling takes time from the functions
        peaks.record(drill)
        return peaks.all_incidents_wait_or_ended(len(machines)) and not waiting_events(drill)

    figures = drill.result.figures
    figures["sent"] = f"{len(sent_events)} messages of {len(events)} events about {len(machines)} nodes"
    try:
        wait_for("the storm to be over", DRAINED_SECONDS * 2, storm_is_over)
    except DrillTimeoutError as error:
        # Count only the events that were sent.
        states = ", ".join(f"{count} {state}" for state, count in peaks.now.items())
        drill.check(
            "all events are handled and all recoveries have ended",
            False,
            f"{error}: incidents {states}; {waiting_events(drill)} events still wait",
        )
    drill.result.seconds["drained"] = time.monotonic() - began
    _check_pace(drill)
    _check_each_incident(drill, machines)
    _check_limits(drill, peaks, limits, len(machines))
    _check_ledger(drill)
    check_dead_letters(drill.result, drill.centre)
    figures["dead letters"] = str(dead_letter_counts(drill.centre) or "none")
    check_decisions(drill.result, drill.centre)


def _events_of(drill: DrillRun, machine: str) -> Iterator[Json]:
    """Yield the events of one node: the same fault several times, each event with its own id."""
    now = datetime.now(UTC)
    reason = "HyperPod Health Monitoring Agent (HMA) has detected fault type NvidiaErrorTerminate on this node."
    summary = {"HealthStatus": "Unhealthy", "HealthStatusReason": reason}
    for number in range(EVENTS_PER_MACHINE):
        yield {
            "version": "0",
            "id": f"storm-{drill.seed}-{machine}-{number}",
            "detail-type": HEALTH_EVENT,
            "source": "aws.sagemaker",
            "account": drill.cluster.cluster_arn.split(":")[4],
            "time": f"{now - timedelta(seconds=EVENTS_PER_MACHINE - number):%Y-%m-%dT%H:%M:%SZ}",
            "region": drill.centre.deployer.region,
            "resources": [drill.cluster.cluster_arn],
            "detail": {
                "ClusterName": "research-train",
                "ClusterArn": drill.cluster.cluster_arn,
                "InstanceId": machine,
                "Tags": {},
                "HealthSummary": {**summary, "RepairAction": "Replace", "Recommendation": ""},
            },
        }


def _send_events(drill: DrillRun, events: Sequence[Json]) -> None:
    sqs, url = drill.centre.deployer.client("sqs"), drill.centre.outputs["EventsQueueUrl"]

    def send(batch: tuple[Json, ...]) -> None:
        entries: Any = [{"Id": str(number), "MessageBody": json.dumps(message)} for number, message in enumerate(batch)]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed"), answer

    with ThreadPoolExecutor(SENDERS) as senders:
        list(senders.map(send, _batches_of_ten(events)))


def _batches_of_ten(events: Sequence[Json]) -> Iterator[tuple[Json, ...]]:
    for start in range(0, len(events), 10):
        yield tuple(events[start : start + 10])


@dataclass
class OpenIncidentPeaks:
    """The peak number of repairs and cordons, and the current states of incidents."""

    peaks: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)

    def record(self, drill: DrillRun) -> None:
        """Count the current repairs and cordons."""
        repairs = _registered_instances(drill, "repairs")
        cordons = [node for node in drill.cluster.nodes() if node["unschedulable"]]
        for name, count in (("repairs", len(repairs)), ("cordons", len(cordons))):
            self.peaks[name] = max(self.peaks[name], count)
        self.now = _count_states(drill)

    def all_incidents_wait_or_ended(self, machines: int) -> bool:
        """Whether every node has an incident that waits or has ended."""
        finished = sum(count for state, count in self.now.items() if state in (*SETTLED, "BLOCKED"))
        return sum(self.now.values()) == finished >= machines


def list_all(drill: DrillRun, path: str) -> list[Json]:
    """Return everything that the API lists, page by page."""
    items: list[Json] = []
    cursor: Mapping[str, Any] = {}
    while True:
        page = drill.client.get(path, pageSize=100, **cursor)
        items += page["items"]
        if not page.get("nextPageToken"):
            return items
        cursor = {"nextPageToken": page["nextPageToken"]}


def _count_states(drill: DrillRun) -> Counter[str]:
    """Count the stored incidents by state, without the API, which is busy."""
    dynamodb, table = drill.centre.deployer.client("dynamodb"), drill.centre.outputs["IncidentsTableName"]
    pages = dynamodb.get_paginator("query")
    counts: Counter[str] = Counter()
    for state in IncidentState:
        scan: Any = {
            "TableName": table,
            "IndexName": INDEX,
            "KeyConditionExpression": "stateKey = :state",
            "ExpressionAttributeValues": {":state": {"S": f"INC#{state}"}},
            "Select": "COUNT",
        }
        counts[state] += sum(page["Count"] for page in pages.paginate(**scan))
    return +counts


def _registered_instances(drill: DrillRun, name: str) -> list[str]:
    """Return the instance ids in a register."""
    table, key = drill.centre.outputs["FleetTableName"], {"pk": {"S": f"REGISTER#{name}"}, "sk": {"S": "META"}}
    answer = drill.centre.deployer.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)
    item = answer.get("Item")
    entries = document_of(item)["entries"] if item else []
    return [entry["life"].split("/")[1] for entry in entries]


# ---------------------------------------------------------------- what must hold


def _check_pace(drill: DrillRun) -> None:
    seconds, result = drill.result.seconds, drill.result
    result.check("all were sent within 10 s", seconds["injected"] <= INJECTED_SECONDS, f"{seconds['injected']:.1f} s")
    result.check(
        "all events are handled within 5 min", seconds["drained"] <= DRAINED_SECONDS, f"{seconds['drained']:.0f} s"
    )


def _check_each_incident(drill: DrillRun, machines: Sequence[str]) -> None:
    incidents = list_all(drill, "/incidents")
    about = Counter(incident["node"]["instanceId"] for incident in incidents)
    wrong = {machine: about[machine] for machine in machines if about[machine] != 1}
    drill.check("one incident for each node", not wrong, str(wrong or f"{len(incidents)} incidents"))
    decisions_by_incident = {incident["incidentId"]: 0 for incident in incidents}
    for incident in incidents:
        kinds = [decision["kind"] for decision in drill.incident_detail(incident)["decisions"]]
        decisions_by_incident[incident["incidentId"]] = kinds.count("RECOVERY")
    odd = {incident: count for incident, count in decisions_by_incident.items() if count != 1}
    drill.result.figures["incidents"] = f"{len(incidents)}, of {sum(1 for count in about.values() if count)} nodes"
    drill.result.figures["decisions"] = f"{sum(decisions_by_incident.values())} plans"
    drill.check("one decision for each incident", not odd, str(odd or f"{len(decisions_by_incident)} decisions"))
    blocked_incidents = [incident for incident in incidents if incident["state"] == "BLOCKED"]
    rules = Counter((incident["block"] or {}).get("guardrail") or "no rule" for incident in blocked_incidents)
    counts_by_state = Counter(incident["state"] for incident in incidents)
    drill.result.figures["states"] = _counts_text(counts_by_state)
    drill.result.figures["blocked by"] = _counts_text(rules) or "nothing"
    is_named = bool(blocked_incidents) and "no rule" not in rules
    drill.check(
        "each waiting recovery names its rule", is_named, f"{_counts_text(counts_by_state)}; {_counts_text(rules)}"
    )
    failed_incidents = [incident for incident in incidents if incident["state"] in ("FAILED", "JOB_NOT_RESUMED")]
    drill.check("no recovery failed", not failed_incidents, failed_incidents)


def _counts_text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {problem}" for problem, count in counts.most_common())


def _check_limits(drill: DrillRun, peaks: OpenIncidentPeaks, limits: Json, machines: int) -> None:
    repairs = min(limits["fleetRepairs"], limits["poolRepairs"], int(limits["poolRepairShare"] * machines) or 1)
    cordons = min(limits["fleetCordons"], limits["poolCordons"], int(limits["poolCordonShare"] * machines) or 1)
    peak_counts = peaks.peaks
    drill.result.figures["at most at once"] = (
        f"{peak_counts['cordons']} cordons of {cordons}, {peak_counts['repairs']} repairs of {repairs}"
    )
    drill.check(
        "concurrent repairs stay within their limit",
        peak_counts["repairs"] <= repairs,
        f"{peak_counts['repairs']} of {repairs}",
    )
    drill.check(
        "concurrent cordons stay within their limit",
        peak_counts["cordons"] <= cordons,
        f"{peak_counts['cordons']} of {cordons}",
    )


def _check_ledger(drill: DrillRun) -> None:
    """Check that the records and the cluster agree about every node."""

    def differences() -> dict[str, Any]:
        nodes = drill.cluster.nodes()
        cordoned_ids = {node["instanceId"] for node in nodes if node["unschedulable"]}
        shown = list_all(drill, "/nodes")
        pairs = {
            "cordoned": (cordoned_ids, set(_registered_instances(drill, "cordons"))),
            "shown as cordoned": (cordoned_ids, {row["instanceId"] for row in shown if row["isCordoned"]}),
            "machines": ({node["instanceId"] for node in nodes}, {row["instanceId"] for row in shown}),
        }
        return {name: (sorted(a - b), sorted(b - a)) for name, (a, b) in pairs.items() if a != b}

    deadline = time.monotonic() + 30
    while (document := differences()) and time.monotonic() < deadline:
        time.sleep(1)
    drill.result.figures["ledger and cluster"] = f"differ: {document}" if document else "say the same"
    drill.check("the ledger equals the cluster", not document, str(document or "it does"))
    recorded_count = sum(len(incident["repairs"]) for incident in list_all(drill, "/incidents"))
    accepted_count = sum(
        sum(counts.values()) for counts in drill.cluster.control("GET", "counters")["accepted"].values()
    )
    drill.check(
        "each recorded repair was made exactly once",
        recorded_count == accepted_count,
        f"{recorded_count} recorded, {accepted_count} made",
    )
