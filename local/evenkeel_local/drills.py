"""Drills: something real is broken at a random moment, and everything that must hold afterwards is checked.

A drill is a row of `DRILLS`; a new fault is a row here and a row in the cluster's fault table.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import ClientError

from evenkeel_cli.client import Client
from evenkeel_cli.errors import CommandFailed
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, DataCentre, Say
from evenkeel_local.twin import undisturbed_digest

ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
SETTLED: Final = ("RECOVERED", "OBSERVED", "STOOD_DOWN", "WAITING_FOR_PERSON", "JOB_NOT_BACK", "FAILED")
JOB_SECONDS: Final = 150.0
FLEET_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.2
DEAD_LETTER_QUEUES: Final = (
    "DeadLetterQueueUrl",
    "UnhandledEventsQueueUrl",
    "UndeliveredEventsQueueUrl",
    "FailedPassesQueueUrl",
    "FailedInvocationsQueueUrl",
)
"""Outputs of the stack that name the queues which must stay empty."""


@dataclass(frozen=True)
class Drill:
    """One way to break things, and how it has to end."""

    name: str
    fault: str
    """Row of the cluster's fault table."""
    story: str
    """What it does, in the operator's words."""
    incident_ends: str = "RECOVERED"
    """State that the incident must settle in; empty = no incident may open."""
    may_overlap: bool = False
    """Whether two attempts may run at once (the old one behind a partition)."""
    nodes: int = 2
    has_spare: bool = True
    """Whether the job can go on without the broken node. If not, it waits until the fault is cleared."""


DRILLS: Final = {
    drill.name: drill
    for drill in (
        Drill("gpu-xid79", "gpu-xid79", "A GPU falls off the bus (Xid 79) and the training process dies with it."),
        Drill(
            "node-lost",
            "node-lost",
            "A node drops off the network; its processes train on behind the partition.",
            may_overlap=True,
        ),
        Drill("app-crash", "app-crash", "One rank crashes by itself; the node is fine.", incident_ends=""),
        Drill(
            "stuck-replace",
            "stuck-replace",
            "A GPU falls off the bus and the replacement never arrives.",
            incident_ends="WAITING_FOR_PERSON",
        ),
        Drill(
            "stuck-replace-no-spare",
            "stuck-replace",
            "A GPU falls off the bus, the replacement never arrives, and no other node is free.",
            incident_ends="WAITING_FOR_PERSON",
            nodes=5,
            has_spare=False,
        ),
    )
}


@dataclass(frozen=True)
class Work:
    """The job a drill disturbs."""

    nodes: int = 2
    steps: int = 80
    checkpoint_every: int = 4
    step_seconds: float = 0.2
    seed: int = 7

    def submission(self, name: str, uri: str) -> dict[str, Any]:
        """Return the body of `POST /v1/jobs`."""
        return {
            "name": name,
            "image": "evenkeel/example-trainer:1",
            "command": ["python", "-m", "evenkeel_trainer"],
            "args": [
                *("--steps", str(self.steps), "--checkpoint-every", str(self.checkpoint_every)),
                *("--step-seconds", str(self.step_seconds), "--seed", str(self.seed)),
            ],
            "nodes": self.nodes,
            "gpusPerNode": 8,
            "checkpoint": {"uri": uri},
        }


@dataclass
class Result:
    """How a drill went: each check by name, with what was seen."""

    drill: str
    seed: int
    job_id: str = ""
    incident_id: str = ""
    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return bool(self.checks) and all(ok for _, ok, _ in self.checks)

    def check(self, name: str, ok: bool, seen: str) -> None:
        self.checks.append((name, ok, seen))

    def failures(self) -> list[str]:
        return [f"{name}: {seen}" for name, ok, seen in self.checks if not ok]


class DrillTimeoutError(AssertionError):
    """What a drill waited for did not come. The message says what was seen last."""


def wait_for(what: str, seconds: float, look: Callable[[], Any]) -> Any:
    """Look every 0.2 s until `look` returns something true; return it.

    Raises:
        DrillTimeoutError: it did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise DrillTimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(POLL_SECONDS)


def run(
    drill: Drill, centre: DataCentre, *, seed: int, work: Work | None = None, say: Say = lambda _text: None
) -> Result:
    """Run one drill on a running data centre and check everything that must hold.

    The moment (a step, and a fraction of it) and the victim (a rank) come from `seed`.

    Args:
        drill: What to break.
        centre: Where; its fleet must be whole, and is whole again afterwards.
        seed: Of the moment and the victim.
        work: The job to disturb.
        say: Is told what happens, for people who watch.
    """
    dice = random.Random(seed)
    work = work or Work(nodes=drill.nodes)
    client = centre.client()
    result = Result(drill.name, seed)
    await_whole_fleet(client, centre)
    before = Counters.read(centre)
    uri = f"s3://{CHECKPOINTS_BUCKET}/drills/{drill.name}-{seed}-{int(time.time())}"
    job = client.post("/jobs", work.submission(f"{drill.name}-{seed}", uri))
    result.job_id = job["jobId"]
    say(f"submitted {job['jobId']}")
    moment = dice.randint(1, work.steps // 2) + dice.random()  # later, a slow machine might find the job ended
    # By the log, not by the job's state: the moment may well come before Evenkeel has heard that the job runs.
    wait_for(f"step {int(moment)}", JOB_SECONDS, lambda: last_step(client, job["jobId"]) >= int(moment))
    time.sleep((moment % 1) * work.step_seconds)
    victim = dice.randrange(work.nodes)
    running = client.get(f"/jobs/{job['jobId']}")
    result.check("the job still ran when it was disturbed", running["state"] not in ENDED, running["state"])
    node = node_of_rank(centre, running, victim)
    earlier = {incident["incidentId"] for incident in client.get("/incidents", pageSize=100)["items"]}
    struck_at = time.monotonic()
    fault = centre.cluster.control("POST", "faults", {"fault": drill.fault, "node": node})
    say(f"{drill.fault} on {node} at step {int(moment)}")
    if not drill.has_spare:
        _await_incident(result, client, drill, node, earlier, struck_at)
        waiting = client.get(f"/jobs/{job['jobId']}")
        result.check(
            "the job waits and says why", waiting["state"] == "PENDING" and bool(waiting["reason"]), waiting["reason"]
        )
        centre.cluster.control("DELETE", f"faults/{fault['faultId']}")
        say("the fault is cleared: the replacement arrives")
    ended = wait_for("the job to end", JOB_SECONDS, lambda: _in_state(client, job["jobId"], *ENDED))
    result.seconds["jobEnded"] = time.monotonic() - struck_at
    if drill.has_spare and drill.incident_ends:
        _await_incident(result, client, drill, node, earlier, struck_at)
    centre.cluster.control("DELETE", f"faults/{fault['faultId']}")
    check_afterwards(result, centre, ended, uri, work, before, may_overlap=drill.may_overlap)
    return result


def check_afterwards(
    result: Result,
    centre: DataCentre,
    ended: dict[str, Any],
    uri: str,
    work: Work,
    before: Counters,
    *,
    may_overlap: bool = False,
) -> None:
    """Check everything that must hold once a disturbed job has ended: of the job, the fleet and the records."""
    _check_job(result, centre, ended, uri, work)
    _check_fence(result, centre, uri)
    await_whole_fleet(centre.client(), centre)
    _check_overlap(result, centre, ended["jobId"], may_overlap=may_overlap)
    _check_provider(result, centre, before)
    _check_dead_letters(result, centre)
    _check_left_behind(result, centre)


def _await_incident(
    result: Result, client: Client, drill: Drill, node: str, earlier: set[str], struck_at: float
) -> None:
    incident = wait_for("the incident to settle", JOB_SECONDS, lambda: _settled_incident(client, node, earlier))
    result.incident_id = incident["incidentId"]
    result.seconds["incidentSettled"] = time.monotonic() - struck_at
    result.check("incident ends as it should", incident["state"] == drill.incident_ends, str(incident))


# ---------------------------------------------------------------- what is looked at


def last_step(client: Client, job_id: str) -> int:
    """Return the newest step in rank 0's log; 0 where there is none yet."""
    try:
        log = client.get(f"/jobs/{job_id}/logs", rank=0, tail=5)["text"]
    except CommandFailed:
        return 0
    steps = [int(line["step"]) for line in _json_lines(log) if line.get("event") == "step"]
    return max(steps, default=0)


def node_of_rank(centre: DataCentre, job: dict[str, Any], rank: int) -> str:
    """Return the name of the node that a rank of the job's current attempt runs on, as soon as it has one."""
    name = f"{job['jobId']}-a{job['currentAttempt']}-{rank}-"

    def bound() -> str:
        pods = centre.cluster.control("GET", "pods")["pods"]
        return next((str(pod["node"]) for pod in pods if pod["name"].startswith(name) and pod["node"]), "")

    return str(wait_for(f"a node of {name}", JOB_SECONDS, bound))


def await_whole_fleet(client: Client, centre: DataCentre) -> None:
    """Wait until every machine of every group takes work."""
    wanted = centre.node_count

    def whole() -> bool:
        nodes = client.get("/nodes", pageSize=200)["items"]
        return sum(1 for node in nodes if _takes_work(node)) >= wanted

    wait_for(f"{wanted} schedulable nodes", FLEET_SECONDS, whole)


def _takes_work(node: dict[str, Any]) -> bool:
    return bool(node["isReady"] and not node["isCordoned"] and not node["isAwaitingValidation"])


def _in_state(client: Client, job_id: str, *states: str) -> dict[str, Any] | None:
    job: dict[str, Any] = client.get(f"/jobs/{job_id}")
    return job if job["state"] in states else None


def _settled_incident(client: Client, node: str, earlier: set[str]) -> dict[str, Any] | None:
    """Return the settled incident of this node that was not there before: a rebooted node keeps its name."""
    for incident in client.get("/incidents", pageSize=20)["items"]:
        is_new = incident["incidentId"] not in earlier
        if is_new and incident["node"]["name"] == node and incident["state"] in SETTLED:
            return dict(incident)
    return None


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document


@dataclass(frozen=True)
class Counters:
    """Accepted calls per node life, as the provider counted them."""

    replaces: dict[str, int]

    @classmethod
    def read(cls, centre: DataCentre) -> Counters:
        return cls(dict(centre.cluster.control("GET", "counters")["accepted"].get("replace", {})))


# ---------------------------------------------------------------- what must hold


def _check_job(result: Result, centre: DataCentre, job: dict[str, Any], uri: str, work: Work) -> None:
    result.check("the job ends well", job["state"] == "SUCCEEDED", f"{job['state']}: {job.get('reason', '')}")
    document = read_object(centre, uri, f"result/attempt={job['currentAttempt']}.json")
    expected = undisturbed_digest(work.nodes, work.steps, work.seed)
    seen = json.loads(document)["digest"] if document else "no result"
    result.check("the weights equal the undisturbed run's", seen == expected, f"{seen} against {expected}")


def _check_fence(result: Result, centre: DataCentre, uri: str) -> None:
    document = read_object(centre, uri, "_fence")
    fence: dict[str, Any] = json.loads(document) if document else {"attempt": 0, "history": []}
    wrong = resumed_past_a_fence(fence)
    seen = "; ".join(wrong) or f"{len(fence['history']) + 1} fences"
    result.check("no manifest of a fenced attempt is resumed from", not wrong, seen)


def resumed_past_a_fence(fence: dict[str, Any]) -> list[str]:
    """Say which attempts resumed from what was written behind a later attempt's back, from the fence's own record.

    A fence raised between a checkpoint and who resumes from it must itself have been pinned there or later.
    """
    pins = {int(pin["attempt"]): pin.get("resumeFrom") for pin in (*fence["history"], fence)}
    wrong = []
    for attempt, point in pins.items():
        if point is None:
            continue
        source, step = int(point["attempt"]), int(point["step"])
        for between in range(source + 1, attempt):
            if between not in pins:
                continue  # it never raised the fence
            stood = pins[between]
            if stood is None or int(stood["attempt"]) < source or int(stood["step"]) < step:
                wrong.append(f"attempt {attempt} resumed from a{source} step {step} past a{between}'s pin")
    return wrong


def _check_overlap(result: Result, centre: DataCentre, job_id: str, *, may_overlap: bool) -> None:
    """Processes of two attempts ran together only where that is allowed, and then the old one ended."""
    runs: dict[int, list[tuple[datetime, datetime]]] = {}
    for process in centre.cluster.control("GET", f"processes?job={job_id}")["processes"]:
        attempt = int(process["job"].rpartition("-a")[2])
        ended = _time(process["endedAt"]) if process["endedAt"] else datetime.now(UTC)
        runs.setdefault(attempt, []).append((_time(process["startedAt"]), ended))
        result.check(f"process of attempt {attempt} ended", bool(process["endedAt"]), str(process))
    overlaps = []
    for attempt in sorted(number for number in runs if number + 1 in runs):
        over = max(end for _, end in runs[attempt]) - min(start for start, _ in runs[attempt + 1])
        if over.total_seconds() > 0:
            overlaps.append(f"a{attempt} ended {over.total_seconds():.2f} s after a{attempt + 1} began")
    result.check("attempts overlap only behind a partition", may_overlap or not overlaps, "; ".join(overlaps) or "none")


def _check_provider(result: Result, centre: DataCentre, before: Counters) -> None:
    after = Counters.read(centre).replaces
    many = {life: count for life, count in after.items() if count > 1}
    result.check(
        "at most one accepted Replace a node life", not many, str(many or f"{len(after) - len(before.replaces)} new")
    )


def _check_dead_letters(result: Result, centre: DataCentre) -> None:
    waiting = dead_letters(centre)
    result.check("dead-letter queues are empty", not waiting, str(waiting or "all empty"))


def _check_left_behind(result: Result, centre: DataCentre) -> None:
    """Whatever worked on the fault ends soon after it, and leaves nothing that would keep the next one out."""
    deadline = time.monotonic() + FLEET_SECONDS
    while (left := left_behind(centre)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    result.check("nothing is left half done", not left, "; ".join(left) or "no open wait, pointer, charge or lease")


def left_behind(centre: DataCentre) -> list[str]:
    """Return what is still open: waits, pointers to incidents, charges, leases, executions."""
    names = {name: centre.outputs[f"{name}TableName"] for name in ("Jobs", "Incidents", "Fleet", "Quotas")}
    left = []
    for page in (
        page
        for table in names.values()
        for page in centre.deployer.client("dynamodb").get_paginator("scan").paginate(TableName=table)
    ):
        for item in page["Items"]:
            pk, sk = item["pk"]["S"], item["sk"]["S"]
            is_open = pk.startswith("OPEN#") or sk.startswith(("WAIT#", "CHARGE#"))
            holder = item["doc"]["M"].get("incidentId", {}).get("S") if pk.startswith("LEASE#") else ""
            if is_open or holder:
                left.append(f"{pk} {sk}")
    steps = centre.deployer.client("stepfunctions")
    for machine in ("RecoverNodeArn", "RunJobArn"):
        running = steps.list_executions(stateMachineArn=centre.outputs[machine], statusFilter="RUNNING")["executions"]
        left += [str(execution["name"]) for execution in running]
    return left


def dead_letters(centre: DataCentre) -> dict[str, int]:
    """Return how many messages wait in each dead-letter queue that has any."""
    sqs = centre.deployer.client("sqs")
    counts = {}
    for queue in DEAD_LETTER_QUEUES:
        attributes = sqs.get_queue_attributes(
            QueueUrl=centre.outputs[queue], AttributeNames=["ApproximateNumberOfMessages"]
        )
        count = int(attributes["Attributes"]["ApproximateNumberOfMessages"])
        if count:
            counts[queue.removesuffix("Url")] = count
    return counts


def read_object(centre: DataCentre, uri: str, key: str) -> bytes | None:
    """Read one object below a checkpoint URI, as the deployer; None where there is none."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    try:
        answer = centre.deployer.client("s3").get_object(Bucket=bucket, Key=f"{prefix}/{key}")
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            return None
        raise
    return bytes(answer["Body"].read())


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
