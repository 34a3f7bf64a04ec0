"""The steps of each drill, with its own checks. The docstring of a drill is its title in `evenkeel drill ls`."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from evenkeel.adapters.workload_resources import RESOURCES
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.values import rfc3339
from evenkeel.runtime.site_policy import FRESH
from evenkeel_client.errors import CommandFailed
from evenkeel_local import ACCOUNT_ID, PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, FleetShape, subscribe_queue
from evenkeel_local.deployment import STACK_NAME, deploy, stack_resources
from evenkeel_local.drills.drill_run import INCIDENT_SECONDS, DrillRun
from evenkeel_local.drills.harness import (
    ENDED,
    JOB_SECONDS,
    RENTED_TYPE,
    Json,
    TrainingWork,
    node_of_rank,
    node_pool,
    rented_pool,
    wait_for,
)
from evenkeel_local.identities import make_user

INTERRUPTED: Final = TrainingWork(paced_attempts=1)
"""Long enough to be interrupted. A resumed attempt runs without delays."""
ONE_NODE: Final = TrainingWork(nodes=1, paced_attempts=1)
REPAIR_CALLS: Final = {"api": "hyperpod", "operation": "Batch*ClusterNodes", "code": "ThrottlingException"}

# ---------------------------------------------------------------- one fault


def one_fault(drill: DrillRun, *, fault: str, ends: str = "RECOVERED") -> None:
    """A node fails, and the job continues on other nodes during the repair."""
    node = drill.submit_and_choose_node(INTERRUPTED)
    drill.inject_fault(fault, node)
    drill.wait_for_end()
    drill.wait_until_settled(node, ends)
    drill.finish()


def fault_under(drill: DrillRun, *, kind: WorkloadKind) -> None:
    """A GPU fails under a job that an operator runs, and Evenkeel resumes the job as a new object of its kind."""
    node = drill.submit_and_choose_node(replace(INTERRUPTED, kind=kind))
    objects_before = _objects_of(drill, kind)
    drill.inject_fault("gpu-xid79", node)
    wait_for("the next attempt", INCIDENT_SECONDS, lambda: _runs_again(drill))
    added_objects = _objects_of(drill, kind) - objects_before
    drill.check(
        "each attempt is an object of the kind",
        (len(objects_before), len(added_objects)) == (1, 1),
        (objects_before, added_objects),
    )
    drill.wait_for_end()
    drill.wait_until_settled(node)
    drill.finish()


def _objects_of(drill: DrillRun, kind: WorkloadKind) -> set[str]:
    """Return the names of the job's objects of a kind."""
    items = drill.cluster.get(RESOURCES[kind].path())["items"]
    names = (str(item["metadata"]["name"]) for item in items)
    return {name for name in names if name.startswith(f"{drill.result.job_id}-a")}


def node_lost(drill: DrillRun) -> None:
    """A node loses its network; its processes continue to train behind the partition."""
    node = drill.submit_and_choose_node(INTERRUPTED)
    with drill.inject_call_fault("throttle", **REPAIR_CALLS):
        drill.inject_fault("node-lost", node)
        wait_for("the next attempt, while the lost node is lost", INCIDENT_SECONDS, lambda: _runs_again(drill))
    drill.wait_for_end()
    drill.wait_until_settled(node)
    drill.finish(may_overlap=True)


_TEAM: Final = "drills"


def younger_job(drill: DrillRun) -> None:
    """A job loses its node three times, while a younger job of the team waits for the whole quota."""
    with _team_with_quota(drill, gpus=16):
        drill.submit(TrainingWork(nodes=1, steps=600, checkpoint_every=10, paced_attempts=3), team=_TEAM)
        drill.wait_for_step(1)
        younger = drill.submit_other("younger", TrainingWork(steps=8), team=_TEAM)
        wait_for("the younger job to wait", JOB_SECONDS, lambda: drill.job(younger)["reason"])
        for attempt in range(1, 4):
            drill.wait_for_step(drill.step() + 2)
            node = drill.node()
            drill.inject_fault("node-lost", node)
            wait_for("the next start", INCIDENT_SECONDS, partial(_has_started, drill, attempt + 1, younger))
            behind = drill.job(younger)
            is_first = behind["currentAttempt"] == 0
            drill.check("the interrupted job starts before the younger job", is_first, behind)
            if not is_first:
                break
            wait_for("the next attempt to run", INCIDENT_SECONDS, partial(_is_running, drill, attempt + 1))
            drill.wait_until_settled(node)
        drill.wait_for_end()
        ended_job = drill.wait_for_end(younger)
        drill.check("the younger job runs afterwards", ended_job["state"] == "SUCCEEDED", str(ended_job["reason"]))
        drill.finish(may_overlap=True)


def _has_started(drill: DrillRun, attempt: int, younger: str) -> bool:
    return bool(drill.job()["currentAttempt"] >= attempt or drill.job(younger)["currentAttempt"])


def _is_running(drill: DrillRun, attempt: int) -> bool:
    job = drill.job()
    return bool(job["currentAttempt"] >= attempt and job["state"] in ("RUNNING", *ENDED))


@contextmanager
def _team_with_quota(drill: DrillRun, gpus: int) -> Iterator[None]:
    """Create a team with a quota inside the `with` block."""
    path = f"/teams/{_TEAM}/quota"
    team = {
        "name": _TEAM,
        "queue": {"groups": [{FleetShape().instance_type: {"nvidia.com/gpu": gpus}}]},
        "members": [{"principal": f"arn:aws:iam::{ACCOUNT_ID}:user/operator", "role": "lead"}],
    }
    drill.client.change("PUT", path, {"team": team, "reason": f"the drill {drill.name}"}, version=0)
    try:
        yield
    finally:
        drill.clean_up()
        wait_for("the team to have no jobs", JOB_SECONDS, lambda: _is_removed(drill))


def _is_removed(drill: DrillRun) -> bool:
    path = f"/teams/{_TEAM}/quota"
    version = int(drill.client.get(path)["version"])
    try:
        drill.client.change("DELETE", f"/teams/{_TEAM}?reason=over", {}, version=version)
    except CommandFailed:
        return False  # an attempt is still stopping
    return True


def _runs_again(drill: DrillRun) -> bool:
    job = drill.job()
    return bool(job["currentAttempt"] > 1 and job["state"] in ("RUNNING", *ENDED))


def app_crash(drill: DrillRun) -> None:
    """A rank crashes; its node is healthy."""
    node = drill.submit_and_choose_node(INTERRUPTED)
    drill.inject_fault("app-crash", node)
    drill.finish()
    incidents = drill.new_incidents(node["instanceId"])
    drill.check("no incident opens", not incidents, incidents)


def no_capacity(drill: DrillRun) -> None:
    """A GPU falls off the bus, the replacement node never arrives, and no other node is free."""
    node = drill.submit_and_choose_node(TrainingWork(nodes=drill.centre.node_count, paced_attempts=1))
    drill.inject_fault("stuck-replace", node)
    incident = drill.wait_until_settled(node, "WAITING_FOR_PERSON")
    waiting_job = drill.job()
    says_why = waiting_job["reason"].startswith(f"The job waits for {drill.work.nodes} nodes")
    waits = waiting_job["state"] == "PENDING" and says_why
    drill.check("the job waits and gives its reason", waits, f"{waiting_job['state']}: {waiting_job['reason']}")
    is_left = "Waiting in the queue for capacity" in incident["outcome"]
    drill.check("the recovery hands the job to the queue", is_left, incident["outcome"])
    drill.clear_faults()
    drill.say("capacity is back: the replacement arrives")
    drill.finish()


RENTED: Final = "burst-no-capacity"
_RENT_MICROS: Final = 22_000_000


def no_capacity_burst(drill: DrillRun) -> None:
    """Run the drill above on a fleet that may rent nodes: the job runs on rented nodes during the replacement."""
    with _nodes_to_rent(drill, drill.centre.node_count):
        node = drill.submit_and_choose_node(TrainingWork(nodes=drill.centre.node_count, steps=160))
        drill.inject_fault("stuck-replace", node)
        wait_for("the job to run on rented nodes", JOB_SECONDS, lambda: _runs_in_pool(drill, RENTED))
        nodes = drill.cluster.nodes()
        usable = [node["name"] for node in nodes if node["ready"] == "True" and not node["unschedulable"]]
        is_missing = len(usable) < drill.centre.node_count
        drill.check("the job runs on rented nodes during the replacement", is_missing, nodes)
        incident = drill.await_incident("its incident", node, lambda _incident: True)
        resume_plan: Json = next(
            (decision for decision in drill.incident_detail(incident)["decisions"] if decision["kind"] == "RESUME"), {}
        )
        drill.check("the recovery chose to rent nodes", resume_plan.get("action") == "RENT", resume_plan)
        drill.wait_until_settled(node, "WAITING_FOR_PERSON")
        drill.finish()
        rental = wait_for("the rented nodes to be released", JOB_SECONDS, lambda: _ended_rental(drill))
        cost = float(rental["costUsd"])
        drill.check("the job shows the cost of the rental", cost > 0, rental)


def _runs_in_pool(drill: DrillRun, pool: str) -> bool:
    job = drill.job()
    current = drill.attempt(job["currentAttempt"])
    return bool(job["state"] == "RUNNING" and current.get("pool") == pool)


def _ended_rental(drill: DrillRun) -> Json:
    return next((dict(rental) for rental in drill.job()["rentals"] if rental.get("endedAt")), {})


@contextmanager
def _nodes_to_rent(drill: DrillRun, count: int) -> Iterator[None]:
    """Let Evenkeel rent nodes inside the `with` block. In the policy, replacements take a quarter of an hour.

    The cost of delay is so low that a scheduling cycle would wait. The recovery adds the cost of the interrupted job.
    """
    pool = rented_pool(drill.centre, RENTED, "on-demand", max_nodes=count, price=_RENT_MICROS)
    burst = {
        "pools": [pool],
        "fleetCapMicrosPerHour": _RENT_MICROS * count,
        "otherTeamCapMicrosPerHour": _RENT_MICROS * count,
        "otherDelayMicrosPerHour": 1_000_000,
        "otherExpectedRunSeconds": 120,
    }
    slow = {"jobs": {"expectedReplaceSeconds": 960}, "economy": {"minSamples": 1000, "expectedRebootSeconds": 960}}
    drill.cluster.apply([node_pool(RENTED, "on-demand", limit=0)])
    try:
        with changed_policy(drill, {"burst": burst, **slow}) as in_force:
            in_force()
            yield
    finally:
        drill.cluster.delete(f"/apis/karpenter.sh/v1/nodepools/{RENTED}")


def flapping(drill: DrillRun) -> None:
    """A node repeatedly leaves the cluster and returns."""
    node = drill.submit_and_choose_node(INTERRUPTED)
    drill.inject_fault("node-flap", node, seconds=5)
    wait_for("the flapping node to go", INCIDENT_SECONDS, lambda: not drill.cluster_node(node["instanceId"]))
    drill.finish(may_overlap=True)
    accepted_repairs = drill.accepted_repairs(node["instanceId"])
    drill.check("the node was replaced exactly once", accepted_repairs.get("replace") == 1, accepted_repairs)
    drill.check("the node was rebooted at most twice before", accepted_repairs.get("reboot", 0) <= 2, accepted_repairs)


# ---------------------------------------------------------------- checkpoints


def poisoned_checkpoint(drill: DrillRun) -> None:
    """A memory error is found late: later checkpoints are distrusted, and an older shard is damaged."""
    drill.submit(TrainingWork(steps=120, paced_attempts=1))
    drill.wait_for_step(30)
    node, valid_step = drill.node(), drill.step()
    first_sign_at = datetime.now(UTC)
    drill.wait_for_step(valid_step + 14)
    every = drill.work.checkpoint_every
    newest_step = valid_step // every * every
    torn = (
        newest_step - every
    )  # before the first sign, whose time has whole seconds; the newest checkpoint may be before or after it
    for step in (torn, newest_step):
        _corrupt_shard(drill, step)
    _report_xid(drill, node, "48, pid=4242, name=python, An uncorrectable double bit error (DBE)", first_sign_at)
    drill.say(
        f"a double bit error on {node['name']}, first seen at step {valid_step}; "
        f"steps {torn} and {newest_step} are torn"
    )
    drill.wait_until_settled(node)
    drill.finish()
    second = drill.attempt(2)
    document = {checkpoint["step"]: checkpoint["code"] for checkpoint in second.get("rejectedCheckpoints", ())}
    start = (second.get("resumeFrom") or {}).get("step", -1)
    drill.check("checkpoints after the first sign are distrusted", "DISTRUSTED" in document.values(), document)
    drill.check("damaged checkpoints are rejected", document.get(torn) == "SHARD_CHECKSUM", f"{torn}: {document}")
    drill.check("the job resumes from a checkpoint before both", 0 < start < torn, f"step {start} of {document}")


def _report_xid(drill: DrillRun, node: Json, driver_line: str, seen_at: datetime) -> None:
    """Report an Xid, as a site's own detector does."""
    fault = {
        "instanceId": node["instanceId"],
        "line": f"NVRM: Xid (PCI:0000:b9:00): {driver_line}",
        "observedAt": rfc3339(seen_at),
    }
    drill.client.post("/faults", {"faults": [fault]})


def _corrupt_shard(drill: DrillRun, step: int) -> None:
    """Flip one bit of a shard; the store accepts it."""
    store = drill.centre.deployer.client("s3")
    prefix = drill.uri.removeprefix(f"s3://{CHECKPOINTS_BUCKET}/")
    shard_object = {"Bucket": CHECKPOINTS_BUCKET, "Key": f"{prefix}/attempt=1/step={step:09d}/shard-0-of-2.bin"}
    content = bytearray(store.get_object(**shard_object)["Body"].read())
    content[len(content) // 2] ^= 1
    store.put_object(**shard_object, Body=bytes(content), ChecksumAlgorithm="SHA256")


# ---------------------------------------------------------------- nodes that AWS takes back


def spot_reclaim(drill: DrillRun) -> None:
    """A spot node gets its interruption notice: the job saves a checkpoint and resumes on another node."""
    with _spot_machines(drill, 2):
        drill.submit(TrainingWork(nodes=1, steps=120, instance_types=(RENTED_TYPE,)))
        drill.wait_for_step(12)
        node, reclaimed_at = _spot_node(drill), drill.step()
        drill.inject_fault("spot-reclaim", node)
        wait_for("the second attempt", JOB_SECONDS, lambda: drill.job()["currentAttempt"] > 1)
        elsewhere = _spot_node(drill)
        wait_for("the node to be gone", JOB_SECONDS, lambda: node["name"] not in _spot_node_names(drill))
        drill.finish()
        incident = next(iter(drill.new_incidents(node["instanceId"])), {})
        start = (drill.attempt(2).get("resumeFrom") or {}).get("step", -1)
        evidence = drill.incident_detail(incident)["evidence"] if incident else []
        opening_faults = [entry["faultKey"] for entry in evidence if entry["opened"]]
        drill.check(
            "the interruption notice opened an incident",
            opening_faults == ["ec2:spot_interruption"],
            f"{opening_faults} {incident}",
        )
        drill.check(
            "the job saved after the notice and resumes from that checkpoint",
            start >= reclaimed_at,
            f"{start}, noticed at {reclaimed_at}",
        )
        drill.check("the job runs on another node", elsewhere["name"] != node["name"], f"{node} then {elsewhere}")
        drill.check("Evenkeel repairs no node that is going away", not incident.get("repairs"), incident)


def _spot_node(drill: DrillRun) -> Json:
    """Return the node of the job's current attempt, as the API shows it."""
    name = node_of_rank(drill.centre, drill.job(), 0)
    return next(row for row in _spot_node_documents(drill) if row["name"] == name)


@contextmanager
def _spot_machines(drill: DrillRun, count: int) -> Iterator[None]:
    """Let Karpenter launch spot nodes for temporary pods, and keep the nodes inside the `with` block."""
    pool = node_pool("spot", "spot", labels={"drill": "spot"})
    names = [f"wants-spot-{number}" for number in range(count)]
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    spec = {"nodeSelector": {"drill": "spot"}, "restartPolicy": "Never", "containers": [container]}
    metadata = [{"name": name, "namespace": "default"} for name in names]
    pods: list[Json] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata_entry, "spec": spec} for metadata_entry in metadata
    ]
    drill.cluster.apply([pool, *pods])
    try:
        wait_for("the spot nodes", JOB_SECONDS, lambda: len(_spot_node_names(drill)) == count)
        for name in names:
            drill.cluster.delete(f"/api/v1/namespaces/default/pods/{name}")
        wait_for(
            "the pods to leave", JOB_SECONDS, lambda: all(not row["gpusInUse"] for row in _spot_node_documents(drill))
        )
        yield
    finally:
        drill.cluster.delete("/apis/karpenter.sh/v1/nodepools/spot")
        wait_for("the spot nodes to go", JOB_SECONDS, lambda: not _spot_node_names(drill))


def _spot_node_documents(drill: DrillRun) -> list[Json]:
    rows = drill.client.get("/nodes", pageSize=200)["items"]
    return [dict(row) for row in rows if row["pool"] == "spot"]


def _spot_node_names(drill: DrillRun) -> list[str]:
    return [str(row["name"]) for row in _spot_node_documents(drill) if row["isReady"]]


# ---------------------------------------------------------------- events


def lost_events(drill: DrillRun) -> None:
    """All events are lost and the watch is cut off: only the sweep can find the faulty node."""
    events = drill.centre.deployer.client("events")
    resources = stack_resources(drill.centre.deployer)
    rules = [resources[name].rpartition("/")[2] for name in ("HyperPodEvents", "DrillEvents")]
    watcher = drill.centre.roles["watch_cluster"].rpartition("/")[2]
    node = drill.submit_and_choose_node(INTERRUPTED)
    for rule in rules:
        events.disable_rule(Name=rule)
    try:
        with drill.inject_call_fault(
            "error", api="kubernetes", caller=f"*{watcher}*", status=503, code="ServiceUnavailable"
        ):
            drill.cluster.control("POST", "watches/drop")
            drill.inject_fault("gpu-xid79", node)
            incident = drill.await_incident("the sweep to find it", node, lambda _incident: True)
    finally:
        for rule in rules:
            events.enable_rule(Name=rule)
    sources = {entry["source"] for entry in drill.incident_detail(incident)["evidence"]}
    drill.check("no event reported the fault", "hyperpod.node-health" not in sources, sources)
    drill.wait_until_settled(node)
    drill.finish()


def duplicate_events(drill: DrillRun) -> None:
    """Sixty events report the same fault, in any order, also during and after the replacement."""
    node = drill.submit_and_choose_node(INTERRUPTED)
    drill.inject_fault("gpu-xid79", node)
    incident = drill.await_incident("the incident", node, lambda _incident: True)
    _repeat_events(drill, node, 20)
    wait_for("the node to go", INCIDENT_SECONDS, lambda: not drill.cluster_node(node["instanceId"]))
    _repeat_events(drill, node, 20)  # during the validation of its successor
    drill.wait_until_settled(node)
    _repeat_events(drill, node, 20)
    drill.finish()
    wait_for("the events to be handled", JOB_SECONDS, lambda: not waiting_events(drill))
    incidents = [new_incident["incidentId"] for new_incident in drill.new_incidents(node["instanceId"])]
    runs = executions(drill, incident["incidentId"])
    accepted_repairs = drill.accepted_repairs(node["instanceId"])
    drill.check("one incident", incidents == [incident["incidentId"]], incidents)
    drill.check("one execution", runs == [f"{incident['incidentId']}-r1"], runs)
    drill.check("one replacement", accepted_repairs == {"replace": 1}, accepted_repairs)


def _repeat_events(drill: DrillRun, node: Json, times: int) -> None:
    sent_events = [
        event
        for event in drill.cluster.control("GET", "events")["events"]
        if event["detail"].get("InstanceId") == node["instanceId"]
    ]
    for event in drill.rng.choices(sent_events, k=times):
        body = {"detailType": event["detailType"], "detail": event["detail"], "copies": 1}
        drill.cluster.control("POST", "events", body)


def waiting_events(drill: DrillRun) -> int:
    """Return the number of events that are not handled yet."""
    names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = drill.centre.deployer.client("sqs").get_queue_attributes(
        QueueUrl=drill.centre.outputs["EventsQueueUrl"], AttributeNames=names
    )
    return sum(int(count) for count in answer["Attributes"].values())


def executions(drill: DrillRun, incident_id: str) -> list[str]:
    """Return the names of an incident's executions."""
    paginator = drill.centre.deployer.client("stepfunctions").get_paginator("list_executions")
    pages = paginator.paginate(stateMachineArn=drill.centre.outputs["RecoverNodeArn"])
    names = (str(execution["name"]) for page in pages for execution in page["executions"])
    return sorted(name for name in names if name.startswith(f"{incident_id}-"))


def throttled(drill: DrillRun) -> None:
    """The provider throttles every repair call, then recovers."""
    node = drill.submit_and_choose_node(INTERRUPTED)
    with drill.inject_call_fault("throttle", **REPAIR_CALLS):
        drill.inject_fault("gpu-xid79", node)
        wait_for("three refusals", INCIDENT_SECONDS, lambda: _refused_calls(drill) >= 3)
        accepted_repairs = drill.accepted_repairs(node["instanceId"])
        drill.check("the provider accepted no repair during the throttling", not accepted_repairs, accepted_repairs)
    drill.wait_until_settled(node)
    drill.finish()
    accepted_repairs = drill.accepted_repairs(node["instanceId"])
    drill.check("the node was replaced exactly once", accepted_repairs == {"replace": 1}, accepted_repairs)


def _refused_calls(drill: DrillRun) -> int:
    rules = drill.cluster.control("GET", "call-faults")["callFaults"]
    return sum(int(rule["hits"]) for rule in rules if rule["effect"] == "throttle")


# ---------------------------------------------------------------- shared causes and other owners


def shared_cause(drill: DrillRun) -> None:
    """Four nodes of a zone fail at once: Evenkeel stops the repairs and pages people once."""
    nodes = drill.cluster.nodes()[:4]
    with _subscribe_to_pages(drill) as pages:
        with shared_cause_window(drill, 90) as in_force:
            in_force()
            drill.submit(ONE_NODE)
            drill.await_random_step()
            for node in nodes:
                drill.inject_fault("gpu-xid79", node)
            drill.await_incident("the wave to be stopped", nodes[-1], lambda document: _was_blocked(drill, document))
            begun = sum(bool(drill.accepted_repairs(node["instanceId"])) for node in nodes)
            drill.check("at most three repairs started", begun < len(nodes), f"{begun} of {len(nodes)}")
        # A shared cause ends with its faults, or when an operator says that it is over.
        zone = drill.client.get(f"/nodes/{nodes[-1]['instanceId']}")["zone"]
        release = {"cause": f"zone/{zone}", "reason": "the drill's wave is over"}
        drill.client.post(f"/clusters/{drill.client.fleet}/automation/release", release)
        drill.say("the wave is over")
        for node in nodes:
            drill.wait_until_settled(node)
        pages_sent = [page for page in pages() if "failed at once" in page]
    drill.finish()
    drill.check("people are paged once for the wave", len(pages_sent) == 1, pages_sent)


@contextmanager
def changed_policy(drill: DrillRun, changes: Json) -> Iterator[Callable[[], None]]:
    """Change the site's policy inside the `with` block; the yielded function waits until every function uses it."""
    path = f"/clusters/{drill.client.fleet}/policy"
    drill.client.post(path, {"changes": changes, "reason": f"the drill {drill.name}"})
    read_again_at = time.monotonic() + FRESH.total_seconds()
    try:
        yield lambda: time.sleep(max(0.0, read_again_at - time.monotonic()))
    finally:
        drill.client.post(path, {"changes": {}, "reason": f"the drill {drill.name} is over"})


@contextmanager
def shared_cause_window(drill: DrillRun, seconds: int) -> Iterator[Callable[[], None]]:
    """Set the window of the shared-cause rule: on a busy machine the faults are seen late."""
    with changed_policy(drill, {"repair": {"guardrails": {"sharedCauseWindowSeconds": seconds}}}) as in_force:
        yield in_force


@contextmanager
def _subscribe_to_pages(drill: DrillRun) -> Iterator[Callable[[], list[str]]]:
    """Subscribe to the pages inside the `with` block; the yielded function returns the subjects of new pages."""
    sns, sqs = (drill.centre.deployer.client(service) for service in ("sns", "sqs"))
    url = sqs.create_queue(QueueName=f"on-call-{time.time_ns()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    subscription = subscribe_queue(drill.centre.deployer, url, arn, drill.centre.outputs["PageTopicArn"])

    def pages() -> list[str]:
        subjects: list[str] = []
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                subjects.append(str(json.loads(message["Body"])["Subject"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return subjects

    try:
        yield pages
    finally:
        sns.unsubscribe(SubscriptionArn=subscription)
        sqs.delete_queue(QueueUrl=url)


def _was_blocked(drill: DrillRun, incident: Json) -> bool:
    return any(line["kind"] == "blocked" and "shared cause" in line["text"] for line in drill.timeline(incident))


def two_owners(drill: DrillRun) -> None:
    """HyperPod and Evenkeel could both repair a node: only HyperPod does."""
    arn = drill.cluster.cluster_arn
    may: Json = {"Effect": "Allow", "Action": "sagemaker:UpdateCluster", "Resource": arn}
    owner = make_user(drill.centre.deployer, "owner-of-the-cluster", [may])
    hyperpod = owner.client("sagemaker", endpoint_url=drill.cluster.sagemaker_url)
    hyperpod.update_cluster(ClusterName=arn, NodeRecovery="Automatic")
    try:
        calls = len(drill.cluster.control("GET", "provider-calls")["calls"])
        node = drill.submit_and_choose_node(TrainingWork(steps=160, paced_attempts=1))
        if not _report_before_owner(drill, node)["repairs"]:  # no node breaks while Evenkeel repairs it
            drill.inject_fault("gpu-xid79", node)
        incident = drill.wait_until_settled(node)
        calls_made = drill.cluster.control("GET", "provider-calls")["calls"][calls:]
    finally:
        hyperpod.update_cluster(ClusterName=arn, NodeRecovery="None")
    drill.finish()
    drill.check("Evenkeel requests no repair", not calls_made and not incident["repairs"], f"{calls_made} {incident}")
    drill.check("HyperPod has replaced the node", bool(incident["replacementInstanceId"]), incident)


def _report_before_owner(drill: DrillRun, node: Json) -> Json:
    """Report a fault before the owner of the repair sees it. Return the incident once Evenkeel has chosen the owner.

    Otherwise, on a busy machine, the owner might repair the node before Evenkeel decides.
    """
    _report_xid(drill, node, "79, pid=4242, name=python, GPU has fallen off the bus.", datetime.now(UTC))

    def is_chosen(incident: Json) -> bool:
        return any(decision["kind"] == "REPAIR" for decision in drill.incident_detail(incident)["decisions"])

    return drill.incident_detail(drill.await_incident("the choice of who repairs it", node, is_chosen))


def karpenter_repairs(drill: DrillRun) -> None:
    """Karpenter and Evenkeel could both repair a node: only Karpenter does."""
    with changed_policy(drill, {"repair": {"karpenterRepairs": True}}) as in_force, _spot_machines(drill, 2):
        in_force()
        drill.submit(TrainingWork(nodes=1, steps=120, instance_types=(RENTED_TYPE,), paced_attempts=1))
        drill.wait_for_step(8)
        node = _spot_node(drill)
        if not _report_before_owner(drill, node)["repairs"]:
            drill.inject_fault("gpu-xid", node)
        incident = drill.wait_until_settled(node)
        wait_for("Karpenter to remove the node", JOB_SECONDS, lambda: node["name"] not in _spot_node_names(drill))
        drill.finish()
    requests = [ask for ask in drill.incident_detail(incident)["decisions"] if ask["action"] in ("REPLACE", "REBOOT")]
    drill.check("Evenkeel requests no repair", not incident["repairs"] and not requests, f"{incident} {requests}")


def nvsentinel(drill: DrillRun) -> None:
    """NVSentinel and Evenkeel could both repair a node: only NVSentinel does."""
    states = ("quarantined", "draining", "drain-succeeded", "remediating", "remediation-succeeded")
    _other_controller(drill, [{"labels": {"dgxc.nvidia.com/nvsentinel-state": state}} for state in states])


def termination_handler(drill: DrillRun) -> None:
    """aws-node-termination-handler and Evenkeel could both act on a node: only the handler does."""
    _other_controller(drill, [{"labels": {"aws-node-termination-handler/action": "UncordonAfterReboot"}}])


def self_node_remediation(drill: DrillRun) -> None:
    """medik8s and Evenkeel could both repair a node: only the remediator of medik8s does."""
    _other_controller(drill, [{"taint": "remediation.medik8s.io/self-node-remediation"}])


def _other_controller(drill: DrillRun, marks: list[Json]) -> None:
    """Cordon a node with one mark after the other, as another controller does. Then remove the mark and the cordon."""
    calls = len(drill.cluster.control("GET", "provider-calls")["calls"])
    node = drill.submit_and_choose_node(TrainingWork(steps=160, paced_attempts=1))
    _mark_node(drill, node, marks[0])
    decisions = _report_before_owner(drill, node)["decisions"]
    for mark in marks[1:]:
        _mark_node(drill, node, mark)
    _mark_node(drill, node, None)
    incident = drill.wait_until_settled(node)
    calls_made = drill.cluster.control("GET", "provider-calls")["calls"][calls:]
    drill.finish()
    first_repair = next(decision for decision in decisions if decision["kind"] == "REPAIR")
    drill.check("Evenkeel waits for the other controller", first_repair["action"] == "AWAIT", first_repair)
    drill.check("Evenkeel requests no repair", not calls_made and not incident["repairs"], f"{calls_made} {incident}")


def _mark_node(drill: DrillRun, node: Json, mark: Json | None) -> None:
    """Cordon a node and mark it; without a mark, remove both. Server-side apply removes omitted fields."""
    name = node["name"]
    taints = drill.cluster.get(f"/api/v1/nodes/{name}")["spec"].get("taints") or []
    spec: Json = {"unschedulable": True} if mark else {}
    if mark and "taint" in mark:
        spec["taints"] = [*taints, {"key": mark["taint"], "effect": "NoSchedule"}]
    metadata = {"name": name, "labels": mark.get("labels", {}) if mark else {}}
    drill.cluster.apply([{"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}])


def deploy_while_waiting(drill: DrillRun) -> None:
    """A new release is deployed while a recovery waits: the old execution continues with the new functions."""
    automation = f"/clusters/{drill.client.fleet}/automation"
    node = drill.submit_and_choose_node(ONE_NODE)
    drill.client.post(f"{automation}/hold", {"reason": "a release is due", "forSeconds": 600})
    try:
        drill.inject_fault("gpu-xid79", node)
        waits = drill.await_incident(
            "the recovery to wait",
            node,
            lambda document: any(line["kind"] == "held" for line in drill.timeline(document)),
        )
        layers_before = _function_layers(drill)
        _deploy_release(drill)
        layers_after = _function_layers(drill)
    finally:
        drill.client.post(f"{automation}/release", {})
    incident = drill.wait_until_settled(node)
    drill.finish()
    runs = executions(drill, waits["incidentId"])
    drill.check("every function has a new version", not layers_before & layers_after, f"{layers_before} {layers_after}")
    drill.check(
        "the execution from before the release finished the recovery",
        runs == [f"{incident['incidentId']}-r1"],
        str(runs),
    )


def _function_layers(drill: DrillRun) -> set[str]:
    """Return the layers of the functions of the recovery."""
    functions = drill.centre.deployer.client("lambda")
    names = (f"{STACK_NAME}-{name}" for name in ("repair_node", "return_node", "settle_incident", "watch_cluster"))
    configurations = (functions.get_function_configuration(FunctionName=name) for name in names)
    return {layer["Arn"] for configuration in configurations for layer in configuration["Layers"]}


def _deploy_release(drill: DrillRun) -> None:
    """Deploy the same stack from changed sources."""
    [stack] = drill.centre.deployer.client("cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"]
    parameters = {parameter["ParameterKey"]: parameter["ParameterValue"] for parameter in stack["Parameters"]}
    with tempfile.TemporaryDirectory(dir=drill.centre.run_dir) as folder:
        project = Path(folder)
        for name in ("functions", "shared", "statemachines", "requirements"):
            shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("template.yaml", "openapi.json", "samconfig.toml"):
            shutil.copy(PROJECT / name, project / name)
        with (project / "shared" / "evenkeel" / "__init__.py").open("a", encoding="utf-8") as package:
            package.write(f"\n# released at {datetime.now(UTC):%H:%M:%S}\n")
        where = (drill.centre.engine, drill.centre.deployer, parameters)
        deploy(*where, project / "template.yaml", drill.centre.run_dir, progress=drill.say)
