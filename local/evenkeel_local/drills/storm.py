"""The storm: every machine sickens within seconds, and is told of far more often than once.

What is looked for is not that all are repaired: it is that nothing is lost, nothing is done twice, and what may not be
done at once waits and says by which rule.
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
from evenkeel_local.drills.looking import SETTLED, DrillTimeoutError, Json, dead_letters, wait_for
from evenkeel_local.drills.scenarios import waiting_events, waves_of
from evenkeel_local.drills.stage import Stage

HEALTH_EVENT: Final = "SageMaker HyperPod Cluster Node Health Event"
TOLD_EACH: Final = 5
COPIES: Final = 3
SENDERS: Final = 8
DRAINED_SECONDS: Final = 300.0
"""So long everything may take until nothing is left to be handled and every recovery waits or has ended."""
INJECTED_SECONDS: Final = 10.0


def storm(stage: Stage) -> None:
    """Break every machine, tell it all, wait until it is calm, and count."""
    with waves_of(stage, 900) as in_force:
        in_force()
        _storm(stage)


def _storm(stage: Stage) -> None:
    policy = stage.client.get(f"/clusters/{stage.client.fleet}/policy")["policy"]
    limits = policy["repair"]["guardrails"]
    machines = [node["instanceId"] for node in stage.cluster.nodes()]
    events = [event for machine in machines for event in _told(stage, machine)]
    sent = events * COPIES
    stage.dice.shuffle(sent)
    began = time.monotonic()
    _send(stage, sent)
    stage.result.seconds["injected"] = time.monotonic() - began
    stage.say(f"{len(sent)} messages of {len(events)} events for {len(machines)} machines are out")
    seen = Seen()

    def is_calm() -> bool:
        time.sleep(2.0)  # whoever looks takes from those that work
        seen.look(stage)
        return seen.is_calm(len(machines)) and not waiting_events(stage)

    figures = stage.result.figures
    figures["sent"] = f"{len(sent)} messages of {len(events)} events about {len(machines)} machines"
    try:
        wait_for("the storm to be over", DRAINED_SECONDS * 2, is_calm)
    except DrillTimeoutError as late:
        # What did happen is counted all the same.
        stage.result.check("the storm is over", False, f"{late}: {dict(seen.now)}, {waiting_events(stage)} waiting")
    stage.result.seconds["drained"] = time.monotonic() - began
    _check_pace(stage)
    _check_each(stage, machines)
    _check_limits(stage, seen, limits, len(machines))
    _check_ledger(stage)
    check_dead_letters(stage.result, stage.centre)
    figures["dead letters"] = str(dead_letters(stage.centre) or "none")
    check_decisions(stage.result, stage.centre)


def _told(stage: Stage, machine: str) -> Iterator[Json]:
    """Yield the events about one machine: the same fault, seen again and again, each under an id of its own."""
    now = datetime.now(UTC)
    for number in range(TOLD_EACH):
        said = "HyperPod Health Monitoring Agent (HMA) has detected fault type NvidiaErrorTerminate on this node."
        yield {
            "version": "0",
            "id": f"storm-{stage.seed}-{machine}-{number}",
            "detail-type": HEALTH_EVENT,
            "source": "aws.sagemaker",
            "account": stage.cluster.cluster_arn.split(":")[4],
            "time": f"{now - timedelta(seconds=TOLD_EACH - number):%Y-%m-%dT%H:%M:%SZ}",
            "region": stage.centre.deployer.region,
            "resources": [stage.cluster.cluster_arn],
            "detail": {
                "ClusterName": "research-train",
                "ClusterArn": stage.cluster.cluster_arn,
                "InstanceId": machine,
                "Tags": {},
                "HealthSummary": {
                    "HealthStatus": "Unhealthy",
                    "HealthStatusReason": said,
                    "RepairAction": "Replace",
                    "Recommendation": "",
                },
            },
        }


def _send(stage: Stage, events: Sequence[Json]) -> None:
    sqs, url = stage.centre.deployer.client("sqs"), stage.centre.outputs["EventsQueueUrl"]

    def send(batch: tuple[Json, ...]) -> None:
        entries: Any = [{"Id": str(number), "MessageBody": json.dumps(each)} for number, each in enumerate(batch)]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed"), answer

    with ThreadPoolExecutor(SENDERS) as senders:
        list(senders.map(send, _tens(events)))


def _tens(events: Sequence[Json]) -> Iterator[tuple[Json, ...]]:
    for start in range(0, len(events), 10):
        yield tuple(events[start : start + 10])


@dataclass
class Seen:
    """The most that was ever seen at once, and how it is now."""

    most: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)

    def look(self, stage: Stage) -> None:
        """Count what is under way."""
        repairs = _register(stage, "repairs")
        cordons = [node for node in stage.cluster.nodes() if node["unschedulable"]]
        for name, count in (("repairs", len(repairs)), ("cordons", len(cordons))):
            self.most[name] = max(self.most[name], count)
        self.now = _states(stage)

    def is_calm(self, machines: int) -> bool:
        """Whether every machine has an incident that waits or is over."""
        calm = sum(count for state, count in self.now.items() if state in (*SETTLED, "BLOCKED"))
        return sum(self.now.values()) == calm >= machines


def listed(stage: Stage, path: str) -> list[Json]:
    """Return everything that the API lists, page by page."""
    found: list[Json] = []
    cursor: Mapping[str, Any] = {}
    while True:
        page = stage.client.get(path, pageSize=100, **cursor)
        found += page["items"]
        if not page.get("nextPageToken"):
            return found
        cursor = {"nextPageToken": page["nextPageToken"]}


def _states(stage: Stage) -> Counter[str]:
    """Count the stored incidents by state: the API is one of those that are busy."""
    dynamodb, table = stage.centre.deployer.client("dynamodb"), stage.centre.outputs["IncidentsTableName"]
    pages = dynamodb.get_paginator("query")
    counts: Counter[str] = Counter()
    for state in IncidentState:
        asked: Any = {
            "TableName": table,
            "IndexName": INDEX,
            "KeyConditionExpression": "stateKey = :state",
            "ExpressionAttributeValues": {":state": {"S": f"INC#{state}"}},
            "Select": "COUNT",
        }
        counts[state] += sum(page["Count"] for page in pages.paginate(**asked))
    return +counts


def _register(stage: Stage, name: str) -> list[str]:
    """Return the machines in a register."""
    item = (
        stage.centre.deployer.client("dynamodb")
        .get_item(
            TableName=stage.centre.outputs["FleetTableName"],
            Key={"pk": {"S": f"REGISTER#{name}"}, "sk": {"S": "META"}},
            ConsistentRead=True,
        )
        .get("Item")
    )
    entries = document_of(item)["entries"] if item else []
    return [entry["life"].split("/")[1] for entry in entries]


# ---------------------------------------------------------------- what must hold


def _check_pace(stage: Stage) -> None:
    seconds, result = stage.result.seconds, stage.result
    result.check("all were sent within 10 s", seconds["injected"] <= INJECTED_SECONDS, f"{seconds['injected']:.1f} s")
    result.check("drained within 5 min", seconds["drained"] <= DRAINED_SECONDS, f"{seconds['drained']:.0f} s")


def _check_each(stage: Stage, machines: Sequence[str]) -> None:
    incidents = listed(stage, "/incidents")
    about = Counter(incident["node"]["instanceId"] for incident in incidents)
    wrong = {machine: about[machine] for machine in machines if about[machine] != 1}
    stage.result.check("one incident for each machine", not wrong, str(wrong or f"{len(incidents)} incidents"))
    decided = {incident["incidentId"]: 0 for incident in incidents}
    for incident in incidents:
        kinds = [decision["kind"] for decision in stage.detail(incident)["decisions"]]
        decided[incident["incidentId"]] = kinds.count("RECOVERY")
    odd = {incident: count for incident, count in decided.items() if count != 1}
    stage.result.figures["incidents"] = f"{len(incidents)}, of {sum(1 for count in about.values() if count)} machines"
    stage.result.figures["decisions"] = f"{sum(decided.values())} plans"
    stage.result.check("one decision for each incident", not odd, str(odd or f"{len(decided)} decisions"))
    blocked = [incident for incident in incidents if incident["state"] == "BLOCKED"]
    rules = Counter((incident["block"] or {}).get("rule") or "no rule" for incident in blocked)
    ended = Counter(incident["state"] for incident in incidents)
    stage.result.figures["states"] = _counted(ended)
    stage.result.figures["blocked by"] = _counted(rules) or "nothing"
    is_said = bool(blocked) and "no rule" not in rules
    stage.result.check("what waits says by which rule", is_said, f"{_counted(ended)}; {_counted(rules)}")
    lost = [incident for incident in incidents if incident["state"] in ("FAILED", "JOB_NOT_BACK")]
    stage.result.check("no recovery failed", not lost, str(lost))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def _check_limits(stage: Stage, seen: Seen, limits: Json, machines: int) -> None:
    repairs = min(limits["fleetRepairs"], limits["poolRepairs"], int(limits["poolRepairShare"] * machines) or 1)
    cordons = min(limits["fleetCordons"], limits["poolCordons"], int(limits["poolCordonShare"] * machines) or 1)
    most = seen.most
    stage.result.figures["at most at once"] = (
        f"{most['cordons']} cordons of {cordons}, {most['repairs']} repairs of {repairs}"
    )
    stage.result.check("repairs stay within their limit", most["repairs"] <= repairs, f"{most['repairs']} of {repairs}")
    stage.result.check("cordons stay within theirs", most["cordons"] <= cordons, f"{most['cordons']} of {cordons}")


def _check_ledger(stage: Stage) -> None:
    """The records and the cluster say the same of every machine."""

    def differences() -> dict[str, Any]:
        nodes = stage.cluster.nodes()
        cordoned = {node["instanceId"] for node in nodes if node["unschedulable"]}
        shown = listed(stage, "/nodes")
        pairs = {
            "cordoned": (cordoned, set(_register(stage, "cordons"))),
            "shown as cordoned": (cordoned, {row["instanceId"] for row in shown if row["isCordoned"]}),
            "machines": ({node["instanceId"] for node in nodes}, {row["instanceId"] for row in shown}),
        }
        return {name: (sorted(a - b), sorted(b - a)) for name, (a, b) in pairs.items() if a != b}

    deadline = time.monotonic() + 30
    while (found := differences()) and time.monotonic() < deadline:
        time.sleep(1)
    stage.result.figures["ledger and cluster"] = f"differ: {found}" if found else "say the same"
    stage.result.check("the ledger equals the cluster", not found, str(found or "it does"))
    asked = sum(len(incident["repairs"]) for incident in listed(stage, "/incidents"))
    accepted = sum(sum(counts.values()) for counts in stage.cluster.control("GET", "counters")["accepted"].values())
    stage.result.check("each repair on record was made, once", asked == accepted, f"{asked} recorded, {accepted} made")
