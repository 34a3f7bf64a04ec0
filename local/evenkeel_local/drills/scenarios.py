"""What each drill does, and what it checks besides what must always hold."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from evenkeel.domain.values import rfc3339
from evenkeel.runtime.site_policy import FRESH
from evenkeel_client.errors import CommandFailed
from evenkeel_local import ACCOUNT_ID, PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, FleetShape
from evenkeel_local.deployment import STACK_NAME, deploy, stack_resources
from evenkeel_local.drills.drill_run import INCIDENT_SECONDS, DrillRun
from evenkeel_local.drills.harness import ENDED, JOB_SECONDS, Json, TrainingWork, node_of_rank, wait_for
from evenkeel_local.identities import make_user

INTERRUPTED: Final = TrainingWork(paced_attempts=1)
"""Long enough to be hurt; what comes back of it catches up."""
ONE_NODE: Final = TrainingWork(nodes=1, paced_attempts=1)
REPAIR_CALLS: Final = {"api": "hyperpod", "operation": "Batch*ClusterNodes", "code": "ThrottlingException"}

# ---------------------------------------------------------------- one fault


def one_fault(drill: DrillRun, *, fault: str, ends: str = "RECOVERED") -> None:
    """One machine breaks, and the job goes on elsewhere meanwhile."""
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    drill.inject_fault(fault, node)
    drill.end()
    drill.settled(node, ends)
    drill.finish()


def node_lost(drill: DrillRun) -> None:
    """What runs behind a partition is not waited for: no reboot has ended it when the next attempt runs."""
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    with drill.inject_call_fault("throttle", **REPAIR_CALLS):
        drill.inject_fault("node-lost", node)
        wait_for("the next attempt, while the lost node is lost", INCIDENT_SECONDS, lambda: _runs_again(drill))
    drill.end()
    drill.settled(node)
    drill.finish(may_overlap=True)


_TEAM: Final = "drills"


def younger_job(drill: DrillRun) -> None:
    """An interrupted job starts before a younger job of its team each time, though only the younger fills the quota."""
    with _one_team(drill, gpus=16):
        drill.submit(TrainingWork(nodes=1, steps=600, checkpoint_every=10, paced_attempts=3), team=_TEAM)
        drill.reach(1)
        younger = drill.submit_other("younger", TrainingWork(steps=8), team=_TEAM)
        wait_for("the younger job to wait", JOB_SECONDS, lambda: drill.job(younger)["reason"])
        for attempt in range(1, 4):
            drill.reach(drill.step() + 2)
            node = drill.node()
            drill.inject_fault("node-lost", node)
            wait_for("the next start", INCIDENT_SECONDS, partial(_has_started, drill, attempt + 1, younger))
            behind = drill.job(younger)
            is_first = behind["currentAttempt"] == 0
            drill.result.check("the interrupted job starts before the younger job", is_first, str(behind))
            if not is_first:
                break
            wait_for("the next attempt to run", INCIDENT_SECONDS, partial(_runs, drill, attempt + 1))
            drill.settled(node)
        drill.end()
        ended = drill.end(younger)
        drill.result.check("the younger job runs afterwards", ended["state"] == "SUCCEEDED", str(ended["reason"]))
        drill.finish(may_overlap=True)


def _has_started(drill: DrillRun, attempt: int, younger: str) -> bool:
    return bool(drill.job()["currentAttempt"] >= attempt or drill.job(younger)["currentAttempt"])


def _runs(drill: DrillRun, attempt: int) -> bool:
    job = drill.job()
    return bool(job["currentAttempt"] >= attempt and job["state"] in ("RUNNING", *ENDED))


@contextmanager
def _one_team(drill: DrillRun, gpus: int) -> Iterator[None]:
    """Have one team with a quota of its own for a while."""
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
        drill.leave()
        wait_for("the team to have no jobs", JOB_SECONDS, lambda: _is_removed(drill))


def _is_removed(drill: DrillRun) -> bool:
    path = f"/teams/{_TEAM}/quota"
    version = int(drill.client.get(path)["version"])
    try:
        drill.client.change("DELETE", f"/teams/{_TEAM}?reason=over", {}, version=version)
    except CommandFailed:
        return False  # an attempt still stops
    return True


def _runs_again(drill: DrillRun) -> bool:
    job = drill.job()
    return bool(job["currentAttempt"] > 1 and job["state"] in ("RUNNING", *ENDED))


def app_crash(drill: DrillRun) -> None:
    """The machine is not to blame: no incident, no repair."""
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    drill.inject_fault("app-crash", node)
    drill.finish()
    found = drill.new_incidents(node["instanceId"])
    drill.result.check("no incident opens", not found, str(found))


def no_capacity(drill: DrillRun) -> None:
    """The job needs every machine: it waits for the replacement and says so."""
    drill.submit(TrainingWork(nodes=drill.centre.node_count, paced_attempts=1))
    drill.await_random_step()
    node = drill.node()
    drill.inject_fault("stuck-replace", node)
    incident = drill.settled(node, "WAITING_FOR_PERSON")
    waiting = drill.job()
    says_why = waiting["reason"].startswith(f"The job waits for {drill.work.nodes} nodes")
    waits = waiting["state"] == "PENDING" and says_why
    drill.result.check("the job waits and gives its reason", waits, f"{waiting['state']}: {waiting['reason']}")
    is_left = "Waiting in the queue for capacity" in incident["outcome"]
    drill.result.check("the recovery hands the job to the queue", is_left, incident["outcome"])
    drill.clear()
    drill.say("capacity is back: the replacement arrives")
    drill.finish()


RENTED: Final = "burst-no-capacity"
_RENT_MICROS: Final = 22_000_000


def no_capacity_burst(drill: DrillRun) -> None:
    """The same where nodes may be rented: the job runs there while the replacement is still awaited."""
    with _nodes_to_rent(drill, drill.centre.node_count):
        drill.submit(TrainingWork(nodes=drill.centre.node_count, steps=160))
        drill.await_random_step()
        node = drill.node()
        drill.inject_fault("stuck-replace", node)
        wait_for("the job to run on rented nodes", JOB_SECONDS, lambda: _runs_in_pool(drill, RENTED))
        there = drill.cluster.nodes()
        usable = [each["name"] for each in there if each["ready"] == "True" and not each["unschedulable"]]
        is_missing = len(usable) < drill.centre.node_count
        drill.result.check("the job runs on rented nodes during the replacement", is_missing, str(there))
        incident = drill.await_incident("its incident", node, lambda _incident: True)
        planned: Json = next((each for each in drill.detail(incident)["decisions"] if each["kind"] == "RESUME"), {})
        drill.result.check("the recovery chose to rent nodes", planned.get("action") == "BURST", str(planned))
        drill.settled(node, "WAITING_FOR_PERSON")
        drill.finish()
        rental = wait_for("the rented nodes to be given back", JOB_SECONDS, lambda: _ended_rental(drill))
        cost = float(rental["costUsd"])
        drill.result.check("the job shows the cost of the rental", cost > 0, str(rental))


def _runs_in_pool(drill: DrillRun, pool: str) -> bool:
    job = drill.job()
    current = drill.attempt(job["currentAttempt"])
    return bool(job["state"] == "RUNNING" and current.get("pool") == pool)


def _ended_rental(drill: DrillRun) -> Json:
    return next((dict(each) for each in drill.job()["rentals"] if each.get("endedAt")), {})


@contextmanager
def _nodes_to_rent(drill: DrillRun, count: int) -> Iterator[None]:
    """Let nodes be rented for a while, by a site whose replacements take a quarter of an hour.

    An hour's delay is worth so little that a pass by itself would wait: it is the recovery that weighs the standstill.
    """
    limits = {"nvidia.com/gpu": "0"}
    pool = {
        "name": RENTED,
        "cluster": drill.centre.cluster.eks_cluster_name,
        "market": "on-demand",
        "instanceType": SPOT_TYPE,
        "zone": "us-west-2a",
        "acceleratorsPerNode": 8,
        "mostNodes": count,
        "microsPerNodeHour": _RENT_MICROS,
        "launch": {"p50Seconds": 2, "p90Seconds": 4},
        "place": {},
    }
    burst = {
        "pools": [pool],
        "fleetCapMicrosPerHour": _RENT_MICROS * count,
        "otherTeamCapMicrosPerHour": _RENT_MICROS * count,
        "otherDelayMicrosPerHour": 1_000_000,
        "otherExpectedRunSeconds": 120,
    }
    slow = {"jobs": {"expectedReplaceSeconds": 960}, "economy": {"leastSamples": 1000, "expectedRebootSeconds": 960}}
    drill.cluster.apply([_node_pool(RENTED, "on-demand", limits=limits)])
    try:
        with policy_with(drill, {"burst": burst, **slow}) as in_force:
            in_force()
            yield
    finally:
        drill.cluster.delete(f"/apis/karpenter.sh/v1/nodepools/{RENTED}")


def _node_pool(name: str, market: str, meta: Json | None = None, limits: Json | None = None) -> Json:
    """Return a NodePool of Karpenter's for machines of one type, had in one way."""
    terms = {"karpenter.sh/capacity-type": market, "node.kubernetes.io/instance-type": SPOT_TYPE}
    template: Json = {
        "spec": {
            "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in terms.items()],
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
        },
    }
    if meta:
        template["metadata"] = meta
    spec: Json = {"template": template, "disruption": {"consolidateAfter": "Never"}}
    if limits:
        spec["limits"] = limits
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def flapping(drill: DrillRun) -> None:
    """Back and away again: the first time it is rebooted; what returns is no longer believed, and it is replaced."""
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    drill.inject_fault("node-flap", node, seconds=5)
    wait_for("the flapping machine to go", INCIDENT_SECONDS, lambda: not drill.machine(node["instanceId"]))
    drill.finish(may_overlap=True)
    accepted = drill.accepted(node["instanceId"])
    drill.result.check("the node was replaced exactly once", accepted.get("replace") == 1, str(accepted))
    drill.result.check("the node was rebooted at most twice before", accepted.get("reboot", 0) <= 2, str(accepted))


# ---------------------------------------------------------------- checkpoints


def poisoned_checkpoint(drill: DrillRun) -> None:
    """What was saved after the first sign of the fault is not resumed from, nor what does not hold its checksum."""
    drill.submit(TrainingWork(steps=120, paced_attempts=1))
    drill.reach(30)
    node, sound = drill.node(), drill.step()
    first_sign_at = datetime.now(UTC)
    drill.reach(sound + 14)
    every = drill.work.checkpoint_every
    newest = sound // every * every
    torn = newest - every  # surely before the sign, of which only the second is told; the newest may be on either side
    for step in (torn, newest):
        _corrupt_shard(drill, step)
    _report(drill, node, "48, pid=4242, name=python, An uncorrectable double bit error (DBE)", first_sign_at)
    drill.say(f"a double bit error on {node['name']}, first seen at step {sound}; steps {torn} and {newest} are torn")
    drill.settled(node)
    drill.finish()
    second = drill.attempt(2)
    out = {each["step"]: each["code"] for each in second.get("rejectedCheckpoints", ())}
    start = (second.get("resumeFrom") or {}).get("step", -1)
    drill.result.check("checkpoints after the first sign are distrusted", "DISTRUSTED" in out.values(), str(out))
    drill.result.check("damaged checkpoints are rejected", out.get(torn) == "SHARD_CHECKSUM", f"{torn}: {out}")
    drill.result.check("the job resumes from a checkpoint before both", 0 < start < torn, f"step {start} of {out}")


def _report(drill: DrillRun, node: Json, said: str, seen_at: datetime) -> None:
    """Tell of an Xid as a site's own detector does."""
    told = {
        "instanceId": node["instanceId"],
        "line": f"NVRM: Xid (PCI:0000:b9:00): {said}",
        "observedAt": rfc3339(seen_at),
    }
    drill.client.post("/faults", {"faults": [told]})


def _corrupt_shard(drill: DrillRun, step: int) -> None:
    """Flip one bit of a shard, which the store takes for good."""
    store = drill.centre.deployer.client("s3")
    prefix = drill.uri.removeprefix(f"s3://{CHECKPOINTS_BUCKET}/")
    place = {"Bucket": CHECKPOINTS_BUCKET, "Key": f"{prefix}/attempt=1/step={step:09d}/shard-0-of-2.bin"}
    content = bytearray(store.get_object(**place)["Body"].read())
    content[len(content) // 2] ^= 1
    store.put_object(**place, Body=bytes(content), ChecksumAlgorithm="SHA256")


# ---------------------------------------------------------------- machines that go


SPOT_TYPE: Final = "p5.48xlarge"


def spot_reclaim(drill: DrillRun) -> None:
    """The save is finished and proved inside the notice, and the job is on another machine."""
    with _spot_machines(drill, 2):
        drill.submit(TrainingWork(nodes=1, steps=120, instance_types=(SPOT_TYPE,)))
        drill.reach(12)
        node, at = _spot_node(drill), drill.step()
        drill.inject_fault("spot-reclaim", node)
        wait_for("the second attempt", JOB_SECONDS, lambda: drill.job()["currentAttempt"] > 1)
        elsewhere = _spot_node(drill)
        wait_for("the machine to be gone", JOB_SECONDS, lambda: node["name"] not in _spot_names(drill))
        drill.finish()
        incident = next(iter(drill.new_incidents(node["instanceId"])), {})
        start = (drill.attempt(2).get("resumeFrom") or {}).get("step", -1)
        said = [each["faultKey"] for each in drill.detail(incident)["evidence"] if each["opened"]] if incident else []
        drill.result.check(
            "the interruption notice opened an incident", said == ["ec2:spot_interruption"], f"{said} {incident}"
        )
        drill.result.check(
            "the job saved after the notice and resumes from that checkpoint", start >= at, f"{start}, told at {at}"
        )
        drill.result.check(
            "the job runs on another node", elsewhere["name"] != node["name"], f"{node} then {elsewhere}"
        )
        drill.result.check("Evenkeel repairs no node that is going away", not incident.get("repairs"), str(incident))


def _spot_node(drill: DrillRun) -> Json:
    """Return the machine that the job's current attempt runs on, as the API shows it."""
    name = node_of_rank(drill.centre, drill.job(), 0)
    return next(row for row in _spot_rows(drill) if row["name"] == name)


@contextmanager
def _spot_machines(drill: DrillRun, count: int) -> Iterator[None]:
    """Have Karpenter launch some spot machines, by pods that need one each and then leave."""
    meta = {"labels": {"drill": "spot"}}
    pool = _node_pool("spot", "spot", meta)
    names = [f"wants-spot-{number}" for number in range(count)]
    pods: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeSelector": {"drill": "spot"},
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            },
        }
        for name in names
    ]
    drill.cluster.apply([pool, *pods])
    try:
        wait_for("the spot machines", JOB_SECONDS, lambda: len(_spot_names(drill)) == count)
        for name in names:
            drill.cluster.delete(f"/api/v1/namespaces/default/pods/{name}")
        wait_for("the pods to leave", JOB_SECONDS, lambda: all(not row["gpusInUse"] for row in _spot_rows(drill)))
        yield
    finally:
        drill.cluster.delete("/apis/karpenter.sh/v1/nodepools/spot")
        wait_for("the spot machines to go", JOB_SECONDS, lambda: not _spot_names(drill))


def _spot_rows(drill: DrillRun) -> list[Json]:
    rows = drill.client.get("/nodes", pageSize=200)["items"]
    return [dict(row) for row in rows if row["pool"] == "spot"]


def _spot_names(drill: DrillRun) -> list[str]:
    return [str(row["name"]) for row in _spot_rows(drill) if row["isReady"]]


# ---------------------------------------------------------------- what is told


def lost_events(drill: DrillRun) -> None:
    """No rule forwards anything and the watch cannot read the cluster."""
    events = drill.centre.deployer.client("events")
    rule = stack_resources(drill.centre.deployer)["DrillEvents"]
    watcher = drill.centre.roles["watch_cluster"].rpartition("/")[2]
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    events.disable_rule(Name=rule.rpartition("/")[2])
    try:
        with drill.inject_call_fault(
            "error", api="kubernetes", caller=f"*{watcher}*", status=503, code="ServiceUnavailable"
        ):
            drill.cluster.control("POST", "watches/drop")
            drill.inject_fault("gpu-xid79", node)
            incident = drill.await_incident("the sweeper to find it", node, lambda _incident: True)
    finally:
        events.enable_rule(Name=rule.rpartition("/")[2])
    sources = {each["source"] for each in drill.detail(incident)["evidence"]}
    drill.result.check("no event reported the fault", "hyperpod.node-health" not in sources, str(sources))
    drill.settled(node)
    drill.finish()


def duplicate_events(drill: DrillRun) -> None:
    """One incident, one execution, one replacement, however often it is told."""
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    drill.inject_fault("gpu-xid79", node)
    incident = drill.await_incident("the incident", node, lambda _incident: True)
    _repeat_events(drill, node, 20)
    wait_for("the machine to go", INCIDENT_SECONDS, lambda: not drill.machine(node["instanceId"]))
    _repeat_events(drill, node, 20)  # its successor is looked at meanwhile
    drill.settled(node)
    _repeat_events(drill, node, 20)
    drill.finish()
    wait_for("the events to be handled", JOB_SECONDS, lambda: not waiting_events(drill))
    found = [each["incidentId"] for each in drill.new_incidents(node["instanceId"])]
    runs = executions(drill, incident["incidentId"])
    accepted = drill.accepted(node["instanceId"])
    drill.result.check("one incident", found == [incident["incidentId"]], str(found))
    drill.result.check("one execution", runs == [f"{incident['incidentId']}-r1"], str(runs))
    drill.result.check("one replacement", accepted == {"replace": 1}, str(accepted))


def _repeat_events(drill: DrillRun, node: Json, times: int) -> None:
    sent = [
        event
        for event in drill.cluster.control("GET", "events")["events"]
        if event["detail"].get("InstanceId") == node["instanceId"]
    ]
    for event in drill.rng.choices(sent, k=times):
        body = {"detailType": event["detailType"], "detail": event["detail"], "copies": 1}
        drill.cluster.control("POST", "events", body)


def waiting_events(drill: DrillRun) -> int:
    """Return how many events are not handled yet."""
    names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = drill.centre.deployer.client("sqs").get_queue_attributes(
        QueueUrl=drill.centre.outputs["EventsQueueUrl"], AttributeNames=names
    )
    return sum(int(count) for count in answer["Attributes"].values())


def executions(drill: DrillRun, incident_id: str) -> list[str]:
    """Return the names of an incident's executions."""
    pages = (
        drill.centre.deployer.client("stepfunctions")
        .get_paginator("list_executions")
        .paginate(stateMachineArn=drill.centre.outputs["RecoverNodeArn"])
    )
    names = (str(execution["name"]) for page in pages for execution in page["executions"])
    return sorted(name for name in names if name.startswith(f"{incident_id}-"))


def throttled(drill: DrillRun) -> None:
    """A call that was refused is made again later, and has its effect once."""
    drill.submit(INTERRUPTED)
    drill.await_random_step()
    node = drill.node()
    with drill.inject_call_fault("throttle", **REPAIR_CALLS):
        drill.inject_fault("gpu-xid79", node)
        wait_for("three refusals", INCIDENT_SECONDS, lambda: _refused(drill) >= 3)
        accepted = drill.accepted(node["instanceId"])
        drill.result.check("the provider accepted no repair during the throttling", not accepted, str(accepted))
    drill.settled(node)
    drill.finish()
    accepted = drill.accepted(node["instanceId"])
    drill.result.check("the node was replaced exactly once", accepted == {"replace": 1}, str(accepted))


def _refused(drill: DrillRun) -> int:
    rules = drill.cluster.control("GET", "call-faults")["callFaults"]
    return sum(int(rule["hits"]) for rule in rules if rule["effect"] == "throttle")


# ---------------------------------------------------------------- many, and others


def shared_cause(drill: DrillRun) -> None:
    """At the fourth machine it is one cause: repairs stop there, one page goes out, and later all are well."""
    nodes = drill.cluster.nodes()[:4]
    with _subscribe_to_pages(drill) as pages:
        with shared_cause_window(drill, 90) as in_force:
            in_force()
            drill.submit(ONE_NODE)
            drill.await_random_step()
            for node in nodes:
                drill.inject_fault("gpu-xid79", node)
            drill.await_incident("the wave to be stopped", nodes[-1], lambda each: _was_blocked(drill, each))
            begun = sum(bool(drill.accepted(node["instanceId"])) for node in nodes)
            drill.result.check("at most three repairs started", begun < len(nodes), f"{begun} of {len(nodes)}")
        drill.say("the wave is over")
        for node in nodes:
            drill.settled(node)
        told = [page for page in pages() if "failed at once" in page]
    drill.finish()
    drill.result.check("people are paged once for the wave", len(told) == 1, str(told))


@contextmanager
def policy_with(drill: DrillRun, changes: Json) -> Iterator[Callable[[], None]]:
    """Have the site's policy say something else for a while; what is yielded waits until every function goes by it."""
    path = f"/clusters/{drill.client.fleet}/policy"
    drill.client.post(path, {"changes": changes, "reason": f"the drill {drill.name}"})
    read_again_at = time.monotonic() + FRESH.total_seconds()
    try:
        yield lambda: time.sleep(max(0.0, read_again_at - time.monotonic()))
    finally:
        drill.client.post(path, {"changes": {}, "reason": f"the drill {drill.name} is over"})


@contextmanager
def shared_cause_window(drill: DrillRun, seconds: int) -> Iterator[Callable[[], None]]:
    """Count together what sickens within so long: a busy machine needs its time to look at all of them."""
    with policy_with(drill, {"repair": {"guardrails": {"sharedCauseWindowSeconds": seconds}}}) as in_force:
        yield in_force


@contextmanager
def _subscribe_to_pages(drill: DrillRun) -> Iterator[Callable[[], list[str]]]:
    """Subscribe to the pages for a while; what is yielded returns those that came."""
    sns, sqs = (drill.centre.deployer.client(service) for service in ("sns", "sqs"))
    url = sqs.create_queue(QueueName=f"on-call-{time.time_ns()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = drill.centre.outputs["PageTopicArn"]
    may = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [may]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    subscription = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, ReturnSubscriptionArn=True)

    def pages() -> list[str]:
        found: list[str] = []
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                found.append(str(json.loads(message["Body"])["Subject"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found

    try:
        yield pages
    finally:
        sns.unsubscribe(SubscriptionArn=subscription["SubscriptionArn"])
        sqs.delete_queue(QueueUrl=url)


def _was_blocked(drill: DrillRun, incident: Json) -> bool:
    return any(line["kind"] == "blocked" and "shared cause" in line["text"] for line in drill.timeline(incident))


def two_owners(drill: DrillRun) -> None:
    """HyperPod's own recovery is on: Evenkeel moves the job, asks for nothing, and vouches for what comes back."""
    arn = drill.cluster.cluster_arn
    may: Json = {"Effect": "Allow", "Action": "sagemaker:UpdateCluster", "Resource": arn}
    owner = make_user(drill.centre.deployer, "owner-of-the-cluster", [may])
    hyperpod = owner.client("sagemaker", endpoint_url=drill.cluster.sagemaker_url)
    hyperpod.update_cluster(ClusterName=arn, NodeRecovery="Automatic")
    try:
        calls = len(drill.cluster.control("GET", "provider-calls")["calls"])
        drill.submit(TrainingWork(steps=160, paced_attempts=1))
        drill.await_random_step()
        node = drill.node()
        if not _report_before_owner(drill, node)["repairs"]:  # what Evenkeel took down cannot break
            drill.inject_fault("gpu-xid79", node)
        incident = drill.settled(node)
        ours = drill.cluster.control("GET", "provider-calls")["calls"][calls:]
    finally:
        hyperpod.update_cluster(ClusterName=arn, NodeRecovery="None")
    drill.finish()
    drill.result.check("Evenkeel requests no repair", not ours and not incident["repairs"], f"{ours} {incident}")
    drill.result.check("HyperPod has replaced the node", bool(incident["replacementInstanceId"]), str(incident))


def _report_before_owner(drill: DrillRun, node: Json) -> Json:
    """Tell of a fault before its owner can see it; return the incident when Evenkeel has chosen who repairs it.

    On a busy machine the owner would else have repaired it before Evenkeel looks, and any choice would do.
    """
    _report(drill, node, "79, pid=4242, name=python, GPU has fallen off the bus.", datetime.now(UTC))

    def is_chosen(incident: Json) -> bool:
        return any(decision["kind"] == "REPAIR" for decision in drill.detail(incident)["decisions"])

    return drill.detail(drill.await_incident("the choice of who repairs it", node, is_chosen))


def karpenter_repairs(drill: DrillRun) -> None:
    """Karpenter's own node repair is on: Evenkeel moves the job, and waits for the machine to be taken away."""
    with policy_with(drill, {"repair": {"karpenterRepairs": True}}) as in_force, _spot_machines(drill, 2):
        in_force()
        drill.submit(TrainingWork(nodes=1, steps=120, instance_types=(SPOT_TYPE,), paced_attempts=1))
        drill.reach(8)
        node = _spot_node(drill)
        if not _report_before_owner(drill, node)["repairs"]:
            drill.inject_fault("gpu-xid", node)
        incident = drill.settled(node)
        there = [name for name in _spot_names(drill) if name == node["name"]]
        drill.finish()
    asked = [ask for ask in drill.detail(incident)["decisions"] if ask["action"] in ("REPLACE", "REBOOT")]
    drill.result.check("Evenkeel requests no repair", not incident["repairs"] and not asked, f"{incident} {asked}")
    drill.result.check("Karpenter has removed the node", not there, str(there))


def deploy_while_waiting(drill: DrillRun) -> None:
    """A hold keeps a recovery waiting; meanwhile every function is replaced by another release."""
    automation = f"/clusters/{drill.client.fleet}/automation"
    drill.submit(ONE_NODE)
    drill.await_random_step()
    node = drill.node()
    drill.client.post(f"{automation}/hold", {"reason": "a release is due", "forSeconds": 600})
    try:
        drill.inject_fault("gpu-xid79", node)
        waits = drill.await_incident(
            "the recovery to wait", node, lambda each: any(line["kind"] == "held" for line in drill.timeline(each))
        )
        before = _layers(drill)
        _deploy_release(drill)
        after = _layers(drill)
    finally:
        drill.client.post(f"{automation}/release", {})
    incident = drill.settled(node)
    drill.finish()
    runs = executions(drill, waits["incidentId"])
    drill.result.check("every function has a new version", not before & after, f"{before} {after}")
    drill.result.check(
        "the execution from before the release finished the recovery",
        runs == [f"{incident['incidentId']}-r1"],
        str(runs),
    )


def _layers(drill: DrillRun) -> set[str]:
    """Return the layers that the functions of the recovery carry."""
    functions = drill.centre.deployer.client("lambda")
    names = (f"{STACK_NAME}-{name}" for name in ("repair_node", "return_node", "settle_incident", "watch_cluster"))
    found = (functions.get_function_configuration(FunctionName=name) for name in names)
    return {layer["Arn"] for each in found for layer in each["Layers"]}


def _deploy_release(drill: DrillRun) -> None:
    """Deploy the same stack from sources that differ."""
    [stack] = drill.centre.deployer.client("cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"]
    parameters = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
    with tempfile.TemporaryDirectory(dir=drill.centre.run_dir) as folder:
        project = Path(folder)
        for name in ("functions", "shared", "statemachines", "requirements"):
            shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("template.yaml", "openapi.json", "samconfig.toml"):
            shutil.copy(PROJECT / name, project / name)
        with (project / "shared" / "evenkeel" / "__init__.py").open("a", encoding="utf-8") as package:
            package.write(f"\n# released at {datetime.now(UTC):%H:%M:%S}\n")
        deploy(
            drill.centre.engine,
            drill.centre.deployer,
            parameters,
            project / "template.yaml",
            drill.centre.run_dir,
            progress=drill.say,
        )
