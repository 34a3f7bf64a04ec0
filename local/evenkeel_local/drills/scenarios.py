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
from evenkeel.runtime.policies import FRESH
from evenkeel_cli.errors import CommandFailed
from evenkeel_local import ACCOUNT_ID, PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, FleetShape
from evenkeel_local.deployment import STACK_NAME, deploy, stack_resources
from evenkeel_local.drills.looking import ENDED, JOB_SECONDS, Json, Work, node_of_rank, wait_for
from evenkeel_local.drills.stage import INCIDENT_SECONDS, Stage
from evenkeel_local.identities import make_user

HURT: Final = Work(paced_attempts=1)
"""Long enough to be hurt; what comes back of it catches up."""
ONE_NODE: Final = Work(nodes=1, paced_attempts=1)
REPAIR_CALLS: Final = {"api": "hyperpod", "operation": "Batch*ClusterNodes", "code": "ThrottlingException"}

# ---------------------------------------------------------------- one fault


def one_fault(stage: Stage, *, fault: str, ends: str = "RECOVERED") -> None:
    """One machine breaks, and the job goes on elsewhere meanwhile."""
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    stage.strike(fault, node)
    stage.end()
    stage.settled(node, ends)
    stage.finish()


def node_lost(stage: Stage) -> None:
    """What runs behind a partition is not waited for: no reboot has ended it when the next attempt runs."""
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    with stage.calls_that("throttle", **REPAIR_CALLS):
        stage.strike("node-lost", node)
        wait_for("the next attempt, while the lost node is lost", INCIDENT_SECONDS, lambda: _runs_again(stage))
    stage.end()
    stage.settled(node)
    stage.finish(may_overlap=True)


_TEAM: Final = "drills"


def younger_job(stage: Stage) -> None:
    """An interrupted job starts before a younger job of its team each time, though only the younger fills the quota."""
    with _one_team(stage, gpus=16):
        stage.submit(Work(nodes=1, steps=600, checkpoint_every=10, paced_attempts=3), team=_TEAM)
        stage.reach(1)
        younger = stage.submit_beside("younger", Work(steps=8), team=_TEAM)
        wait_for("the younger job to wait", JOB_SECONDS, lambda: stage.job(younger)["reason"])
        for attempt in range(1, 4):
            stage.reach(stage.step() + 2)
            node = stage.node()
            stage.strike("node-lost", node)
            wait_for("the next start", INCIDENT_SECONDS, partial(_has_started, stage, attempt + 1, younger))
            behind = stage.job(younger)
            is_first = behind["currentAttempt"] == 0
            stage.result.check("the interrupted job starts before the younger one", is_first, str(behind))
            if not is_first:
                break
            wait_for("the next attempt to run", INCIDENT_SECONDS, partial(_runs, stage, attempt + 1))
            stage.settled(node)
        stage.end()
        ended = stage.end(younger)
        stage.result.check("the younger job runs afterwards", ended["state"] == "SUCCEEDED", str(ended["reason"]))
        stage.finish(may_overlap=True)


def _has_started(stage: Stage, attempt: int, younger: str) -> bool:
    return bool(stage.job()["currentAttempt"] >= attempt or stage.job(younger)["currentAttempt"])


def _runs(stage: Stage, attempt: int) -> bool:
    job = stage.job()
    return bool(job["currentAttempt"] >= attempt and job["state"] in ("RUNNING", *ENDED))


@contextmanager
def _one_team(stage: Stage, gpus: int) -> Iterator[None]:
    """Have one team with a quota of its own for a while."""
    path = f"/teams/{_TEAM}/quota"
    team = {
        "name": _TEAM,
        "queue": {"groups": [{FleetShape().instance_type: {"nvidia.com/gpu": gpus}}]},
        "members": [{"principal": f"arn:aws:iam::{ACCOUNT_ID}:user/operator", "role": "lead"}],
    }
    stage.client.change("PUT", path, {"team": team, "reason": f"the drill {stage.name}"}, version=0)
    try:
        yield
    finally:
        stage.leave()
        wait_for("the team to have no jobs", JOB_SECONDS, lambda: _removed(stage))


def _removed(stage: Stage) -> bool:
    path = f"/teams/{_TEAM}/quota"
    version = int(stage.client.get(path)["version"])
    try:
        stage.client.change("DELETE", f"/teams/{_TEAM}?reason=over", {}, version=version)
    except CommandFailed:
        return False  # an attempt still stops
    return True


def _runs_again(stage: Stage) -> bool:
    job = stage.job()
    return bool(job["currentAttempt"] > 1 and job["state"] in ("RUNNING", *ENDED))


def app_crash(stage: Stage) -> None:
    """The machine is not to blame: no incident, no repair."""
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    stage.strike("app-crash", node)
    stage.finish()
    found = stage.new_incidents(node["instanceId"])
    stage.result.check("no incident opens", not found, str(found))


def no_capacity(stage: Stage) -> None:
    """The job needs every machine: it waits for the replacement and says so."""
    stage.submit(Work(nodes=stage.centre.node_count, paced_attempts=1))
    stage.reach_a_moment()
    node = stage.node()
    stage.strike("stuck-replace", node)
    incident = stage.settled(node, "WAITING_FOR_PERSON")
    waiting = stage.job()
    waits = waiting["state"] == "PENDING" and waiting["reason"].startswith(f"Waits for {stage.work.nodes} nodes")
    stage.result.check("the job waits and says why", waits, f"{waiting['state']}: {waiting['reason']}")
    is_left = "waits in the queue for capacity" in incident["outcome"]
    stage.result.check("the recovery leaves it to the queue", is_left, incident["outcome"])
    stage.clear()
    stage.say("there is capacity again: the replacement arrives")
    stage.finish()


RENTED: Final = "burst-no-capacity"
_RENT_MICROS: Final = 22_000_000


def no_capacity_burst(stage: Stage) -> None:
    """The same where nodes may be rented: the job runs there while the replacement is still awaited."""
    with _nodes_to_rent(stage, stage.centre.node_count):
        stage.submit(Work(nodes=stage.centre.node_count, steps=160))
        stage.reach_a_moment()
        node = stage.node()
        stage.strike("stuck-replace", node)
        wait_for("the job to run on rented nodes", JOB_SECONDS, lambda: _runs_in(stage, RENTED))
        there = stage.cluster.nodes()
        usable = [each["name"] for each in there if each["ready"] == "True" and not each["unschedulable"]]
        is_missing = len(usable) < stage.centre.node_count
        stage.result.check("it runs elsewhere while its machine is still being replaced", is_missing, str(there))
        incident = stage.await_incident("its incident", node, lambda _incident: True)
        planned: Json = next((each for each in stage.detail(incident)["decisions"] if each["kind"] == "RESUME"), {})
        stage.result.check("its recovery chose to rent", planned.get("action") == "BURST", str(planned))
        stage.settled(node, "WAITING_FOR_PERSON")
        stage.finish()
        rental = wait_for("the rented nodes to be given back", JOB_SECONDS, lambda: _ended_rental(stage))
        cost = float(rental["costUsd"])
        stage.result.check("what it cost is told", cost > 0, str(rental))


def _runs_in(stage: Stage, pool: str) -> bool:
    job = stage.job()
    current = stage.attempt(job["currentAttempt"])
    return bool(job["state"] == "RUNNING" and current.get("pool") == pool)


def _ended_rental(stage: Stage) -> Json:
    return next((dict(each) for each in stage.job()["rentals"] if each.get("endedAt")), {})


@contextmanager
def _nodes_to_rent(stage: Stage, count: int) -> Iterator[None]:
    """Let nodes be rented for a while, by a site whose replacements take a quarter of an hour.

    An hour's delay is worth so little that a pass by itself would wait: it is the recovery that weighs the standstill.
    """
    limits = {"nvidia.com/gpu": "0"}
    pool = {
        "name": RENTED,
        "cluster": stage.centre.cluster.eks_cluster_name,
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
    stage.cluster.apply([_node_pool(RENTED, "on-demand", limits=limits)])
    try:
        with policy_with(stage, {"burst": burst, **slow}) as in_force:
            in_force()
            yield
    finally:
        stage.cluster.delete(f"/apis/karpenter.sh/v1/nodepools/{RENTED}")


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


def flapping(stage: Stage) -> None:
    """Back and away again: the first time it is rebooted; what returns is no longer believed, and it is replaced."""
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    stage.strike("node-flap", node, seconds=5)
    wait_for("the flapping machine to go", INCIDENT_SECONDS, lambda: not stage.machine(node["instanceId"]))
    stage.finish(may_overlap=True)
    accepted = stage.accepted(node["instanceId"])
    stage.result.check("it was replaced, once", accepted.get("replace") == 1, str(accepted))
    stage.result.check("and rebooted at most twice before", accepted.get("reboot", 0) <= 2, str(accepted))


# ---------------------------------------------------------------- checkpoints


def poisoned_checkpoint(stage: Stage) -> None:
    """What was saved after the first sign of the fault is not resumed from, nor what does not hold its checksum."""
    stage.submit(Work(steps=120, paced_attempts=1))
    stage.reach(30)
    node, sound = stage.node(), stage.step()
    first_sign_at = datetime.now(UTC)
    stage.reach(sound + 14)
    every = stage.work.checkpoint_every
    newest = sound // every * every
    torn = newest - every  # surely before the sign, of which only the second is told; the newest may be on either side
    for step in (torn, newest):
        _tear(stage, step)
    _report(stage, node, "48, pid=4242, name=python, An uncorrectable double bit error (DBE)", first_sign_at)
    stage.say(f"a double bit error on {node['name']}, first seen at step {sound}; steps {torn} and {newest} are torn")
    stage.settled(node)
    stage.finish()
    second = stage.attempt(2)
    out = {each["step"]: each["code"] for each in second.get("rejectedCheckpoints", ())}
    start = (second.get("resumeFrom") or {}).get("step", -1)
    stage.result.check("what was saved since the first sign is doubted", "DISTRUSTED" in out.values(), str(out))
    stage.result.check("what is torn is walked past", out.get(torn) == "SHARD_CHECKSUM", f"{torn}: {out}")
    stage.result.check("it resumes from before both", 0 < start < torn, f"step {start} of {out}")


def _report(stage: Stage, node: Json, said: str, seen_at: datetime) -> None:
    """Tell of an Xid as a site's own detector does."""
    told = {
        "instanceId": node["instanceId"],
        "line": f"NVRM: Xid (PCI:0000:b9:00): {said}",
        "observedAt": rfc3339(seen_at),
    }
    stage.client.post("/faults", {"faults": [told]})


def _tear(stage: Stage, step: int) -> None:
    """Flip one bit of a shard, which the store takes for good."""
    store = stage.centre.deployer.client("s3")
    prefix = stage.uri.removeprefix(f"s3://{CHECKPOINTS_BUCKET}/")
    place = {"Bucket": CHECKPOINTS_BUCKET, "Key": f"{prefix}/attempt=1/step={step:09d}/shard-0-of-2.bin"}
    content = bytearray(store.get_object(**place)["Body"].read())
    content[len(content) // 2] ^= 1
    store.put_object(**place, Body=bytes(content), ChecksumAlgorithm="SHA256")


# ---------------------------------------------------------------- machines that go


SPOT_TYPE: Final = "p5.48xlarge"


def spot_reclaim(stage: Stage) -> None:
    """The save is finished and proved inside the notice, and the job is on another machine."""
    with _spot_machines(stage, 2):
        stage.submit(Work(nodes=1, steps=120, instance_types=(SPOT_TYPE,)))
        stage.reach(12)
        node, at = _spot_node(stage), stage.step()
        stage.strike("spot-reclaim", node)
        wait_for("the second attempt", JOB_SECONDS, lambda: stage.job()["currentAttempt"] > 1)
        elsewhere = _spot_node(stage)
        wait_for("the machine to be gone", JOB_SECONDS, lambda: node["name"] not in _spot_names(stage))
        stage.finish()
        incident = next(iter(stage.new_incidents(node["instanceId"])), {})
        start = (stage.attempt(2).get("resumeFrom") or {}).get("step", -1)
        said = [each["faultKey"] for each in stage.detail(incident)["evidence"] if each["opened"]] if incident else []
        stage.result.check("the notice opened an incident", said == ["ec2:spot_interruption"], f"{said} {incident}")
        stage.result.check("it saved when it was told, and resumes from there", start >= at, f"{start}, told at {at}")
        stage.result.check("the job is elsewhere", elsewhere["name"] != node["name"], f"{node} then {elsewhere}")
        stage.result.check("nobody repairs what goes", not incident.get("repairs"), str(incident))


def _spot_node(stage: Stage) -> Json:
    """Return the machine that the job's current attempt runs on, as the API shows it."""
    name = node_of_rank(stage.centre, stage.job(), 0)
    return next(row for row in _spot_rows(stage) if row["name"] == name)


@contextmanager
def _spot_machines(stage: Stage, count: int) -> Iterator[None]:
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
    stage.cluster.apply([pool, *pods])
    try:
        wait_for("the spot machines", JOB_SECONDS, lambda: len(_spot_names(stage)) == count)
        for name in names:
            stage.cluster.delete(f"/api/v1/namespaces/default/pods/{name}")
        wait_for("the pods to leave", JOB_SECONDS, lambda: all(not row["gpusInUse"] for row in _spot_rows(stage)))
        yield
    finally:
        stage.cluster.delete("/apis/karpenter.sh/v1/nodepools/spot")
        wait_for("the spot machines to go", JOB_SECONDS, lambda: not _spot_names(stage))


def _spot_rows(stage: Stage) -> list[Json]:
    rows = stage.client.get("/nodes", pageSize=200)["items"]
    return [dict(row) for row in rows if row["pool"] == "spot"]


def _spot_names(stage: Stage) -> list[str]:
    return [str(row["name"]) for row in _spot_rows(stage) if row["isReady"]]


# ---------------------------------------------------------------- what is told


def lost_events(stage: Stage) -> None:
    """No rule forwards anything and the watch cannot read the cluster."""
    events = stage.centre.deployer.client("events")
    rule = stack_resources(stage.centre.deployer)["DrillEvents"]
    watcher = stage.centre.roles["watch_cluster"].rpartition("/")[2]
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    events.disable_rule(Name=rule.rpartition("/")[2])
    try:
        with stage.calls_that("error", api="kubernetes", caller=f"*{watcher}*", status=503, code="ServiceUnavailable"):
            stage.cluster.control("POST", "watches/drop")
            stage.strike("gpu-xid79", node)
            incident = stage.await_incident("the sweeper to find it", node, lambda _incident: True)
    finally:
        events.enable_rule(Name=rule.rpartition("/")[2])
    sources = {each["source"] for each in stage.detail(incident)["evidence"]}
    stage.result.check("no event told of it", "hyperpod.node-health" not in sources, str(sources))
    stage.settled(node)
    stage.finish()


def duplicate_events(stage: Stage) -> None:
    """One incident, one execution, one replacement, however often it is told."""
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    stage.strike("gpu-xid79", node)
    incident = stage.await_incident("the incident", node, lambda _incident: True)
    _tell_again(stage, node, 20)
    wait_for("the machine to go", INCIDENT_SECONDS, lambda: not stage.machine(node["instanceId"]))
    _tell_again(stage, node, 20)  # its successor is looked at meanwhile
    stage.settled(node)
    _tell_again(stage, node, 20)
    stage.finish()
    wait_for("the events to be handled", JOB_SECONDS, lambda: not waiting_events(stage))
    found = [each["incidentId"] for each in stage.new_incidents(node["instanceId"])]
    runs = executions(stage, incident["incidentId"])
    accepted = stage.accepted(node["instanceId"])
    stage.result.check("one incident", found == [incident["incidentId"]], str(found))
    stage.result.check("one execution", runs == [f"{incident['incidentId']}-r1"], str(runs))
    stage.result.check("one replacement", accepted == {"replace": 1}, str(accepted))


def _tell_again(stage: Stage, node: Json, times: int) -> None:
    sent = [
        event
        for event in stage.cluster.control("GET", "events")["events"]
        if event["detail"].get("InstanceId") == node["instanceId"]
    ]
    for event in stage.dice.choices(sent, k=times):
        body = {"detailType": event["detailType"], "detail": event["detail"], "copies": 1}
        stage.cluster.control("POST", "events", body)


def waiting_events(stage: Stage) -> int:
    """Return how many events are not handled yet."""
    names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = stage.centre.deployer.client("sqs").get_queue_attributes(
        QueueUrl=stage.centre.outputs["EventsQueueUrl"], AttributeNames=names
    )
    return sum(int(count) for count in answer["Attributes"].values())


def executions(stage: Stage, incident_id: str) -> list[str]:
    """Return the names of an incident's executions."""
    pages = (
        stage.centre.deployer.client("stepfunctions")
        .get_paginator("list_executions")
        .paginate(stateMachineArn=stage.centre.outputs["RecoverNodeArn"])
    )
    names = (str(execution["name"]) for page in pages for execution in page["executions"])
    return sorted(name for name in names if name.startswith(f"{incident_id}-"))


def throttled(stage: Stage) -> None:
    """A call that was refused is made again later, and has its effect once."""
    stage.submit(HURT)
    stage.reach_a_moment()
    node = stage.node()
    with stage.calls_that("throttle", **REPAIR_CALLS):
        stage.strike("gpu-xid79", node)
        wait_for("three refusals", INCIDENT_SECONDS, lambda: _refused(stage) >= 3)
        accepted = stage.accepted(node["instanceId"])
        stage.result.check("nothing was accepted meanwhile", not accepted, str(accepted))
    stage.settled(node)
    stage.finish()
    accepted = stage.accepted(node["instanceId"])
    stage.result.check("it was replaced, once", accepted == {"replace": 1}, str(accepted))


def _refused(stage: Stage) -> int:
    rules = stage.cluster.control("GET", "call-faults")["callFaults"]
    return sum(int(rule["hits"]) for rule in rules if rule["effect"] == "throttle")


# ---------------------------------------------------------------- many, and others


def shared_cause(stage: Stage) -> None:
    """At the fourth machine it is one cause: repairs stop there, one page goes out, and later all are well."""
    nodes = stage.cluster.nodes()[:4]
    with _on_call(stage) as pages:
        with waves_of(stage, 90) as in_force:
            in_force()
            stage.submit(ONE_NODE)
            stage.reach_a_moment()
            for node in nodes:
                stage.strike("gpu-xid79", node)
            stage.await_incident("the wave to be stopped", nodes[-1], lambda each: _was_barred(stage, each))
            begun = sum(bool(stage.accepted(node["instanceId"])) for node in nodes)
            stage.result.check("no more than three repairs were begun", begun < len(nodes), f"{begun} of {len(nodes)}")
        stage.say("the wave is over")
        for node in nodes:
            stage.settled(node)
        told = [page for page in pages() if "sickened at once" in page]
    stage.finish()
    stage.result.check("people are paged once for the wave", len(told) == 1, str(told))


@contextmanager
def policy_with(stage: Stage, changes: Json) -> Iterator[Callable[[], None]]:
    """Have the site's policy say something else for a while; what is yielded waits until every function goes by it."""
    path = f"/clusters/{stage.client.fleet}/policy"
    stage.client.post(path, {"changes": changes, "reason": f"the drill {stage.name}"})
    read_again_at = time.monotonic() + FRESH.total_seconds()
    try:
        yield lambda: time.sleep(max(0.0, read_again_at - time.monotonic()))
    finally:
        stage.client.post(path, {"changes": {}, "reason": f"the drill {stage.name} is over"})


@contextmanager
def waves_of(stage: Stage, seconds: int) -> Iterator[Callable[[], None]]:
    """Count together what sickens within so long: a busy machine needs its time to look at all of them."""
    with policy_with(stage, {"repair": {"guardrails": {"sharedCauseWindowSeconds": seconds}}}) as in_force:
        yield in_force


@contextmanager
def _on_call(stage: Stage) -> Iterator[Callable[[], list[str]]]:
    """Subscribe to the pages for a while; what is yielded returns those that came."""
    sns, sqs = (stage.centre.deployer.client(service) for service in ("sns", "sqs"))
    url = sqs.create_queue(QueueName=f"on-call-{time.time_ns()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = stage.centre.outputs["PageTopicArn"]
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


def _was_barred(stage: Stage, incident: Json) -> bool:
    return any(line["kind"] == "blocked" and "one cause" in line["text"] for line in stage.story(incident))


def two_owners(stage: Stage) -> None:
    """HyperPod's own recovery is on: Evenkeel moves the job, asks for nothing, and vouches for what comes back."""
    arn = stage.cluster.cluster_arn
    may: Json = {"Effect": "Allow", "Action": "sagemaker:UpdateCluster", "Resource": arn}
    owner = make_user(stage.centre.deployer, "owner-of-the-cluster", [may])
    hyperpod = owner.client("sagemaker", endpoint_url=stage.cluster.sagemaker_url)
    hyperpod.update_cluster(ClusterName=arn, NodeRecovery="Automatic")
    try:
        calls = len(stage.cluster.control("GET", "provider-calls")["calls"])
        stage.submit(Work(steps=160, paced_attempts=1))
        stage.reach_a_moment()
        node = stage.node()
        if not _chosen_first(stage, node)["repairs"]:  # what Evenkeel took down cannot break
            stage.strike("gpu-xid79", node)
        incident = stage.settled(node)
        ours = stage.cluster.control("GET", "provider-calls")["calls"][calls:]
    finally:
        hyperpod.update_cluster(ClusterName=arn, NodeRecovery="None")
    stage.finish()
    stage.result.check("Evenkeel asks for no repair", not ours and not incident["repairs"], f"{ours} {incident}")
    stage.result.check("HyperPod has replaced it", bool(incident["replacementInstanceId"]), str(incident))


def _chosen_first(stage: Stage, node: Json) -> Json:
    """Tell of a fault before its owner can see it; return the incident when Evenkeel has chosen who repairs it.

    On a busy machine the owner would else have repaired it before Evenkeel looks, and any choice would do.
    """
    _report(stage, node, "79, pid=4242, name=python, GPU has fallen off the bus.", datetime.now(UTC))

    def is_chosen(incident: Json) -> bool:
        return any(decision["kind"] == "REPAIR" for decision in stage.detail(incident)["decisions"])

    return stage.detail(stage.await_incident("the choice of who repairs it", node, is_chosen))


def karpenter_repairs(stage: Stage) -> None:
    """Karpenter's own node repair is on: Evenkeel moves the job, and waits for the machine to be taken away."""
    with policy_with(stage, {"repair": {"karpenterRepairs": True}}) as in_force, _spot_machines(stage, 2):
        in_force()
        stage.submit(Work(nodes=1, steps=120, instance_types=(SPOT_TYPE,), paced_attempts=1))
        stage.reach(8)
        node = _spot_node(stage)
        if not _chosen_first(stage, node)["repairs"]:
            stage.strike("gpu-xid", node)
        incident = stage.settled(node)
        there = [name for name in _spot_names(stage) if name == node["name"]]
        stage.finish()
    asked = [ask for ask in stage.detail(incident)["decisions"] if ask["action"] in ("REPLACE", "REBOOT")]
    stage.result.check("Evenkeel asks for no repair", not incident["repairs"] and not asked, f"{incident} {asked}")
    stage.result.check("Karpenter has taken it away", not there, str(there))


def deploy_while_waiting(stage: Stage) -> None:
    """A hold keeps a recovery waiting; meanwhile every function is replaced by another release."""
    automation = f"/clusters/{stage.client.fleet}/automation"
    stage.submit(ONE_NODE)
    stage.reach_a_moment()
    node = stage.node()
    stage.client.post(f"{automation}/hold", {"reason": "a release is due", "forSeconds": 600})
    try:
        stage.strike("gpu-xid79", node)
        waits = stage.await_incident(
            "the recovery to wait", node, lambda each: any(line["kind"] == "held" for line in stage.story(each))
        )
        before = _layers(stage)
        _release(stage)
        after = _layers(stage)
    finally:
        stage.client.post(f"{automation}/release", {})
    incident = stage.settled(node)
    stage.finish()
    runs = executions(stage, waits["incidentId"])
    stage.result.check("every function is another one", not before & after, f"{before} {after}")
    stage.result.check("the execution that waited ended it", runs == [f"{incident['incidentId']}-r1"], str(runs))


def _layers(stage: Stage) -> set[str]:
    """Return the layers that the functions of the recovery carry."""
    functions = stage.centre.deployer.client("lambda")
    names = (f"{STACK_NAME}-{name}" for name in ("repair_node", "return_node", "settle_incident", "watch_cluster"))
    found = (functions.get_function_configuration(FunctionName=name) for name in names)
    return {layer["Arn"] for each in found for layer in each["Layers"]}


def _release(stage: Stage) -> None:
    """Deploy the same stack from sources that differ."""
    [stack] = stage.centre.deployer.client("cloudformation").describe_stacks(StackName=STACK_NAME)["Stacks"]
    parameters = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
    with tempfile.TemporaryDirectory(dir=stage.centre.run_dir) as folder:
        project = Path(folder)
        for name in ("functions", "shared", "statemachines", "requirements"):
            shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("template.yaml", "openapi.json", "samconfig.toml"):
            shutil.copy(PROJECT / name, project / name)
        with (project / "shared" / "evenkeel" / "__init__.py").open("a", encoding="utf-8") as package:
            package.write(f"\n# released at {datetime.now(UTC):%H:%M:%S}\n")
        deploy(
            stage.centre.engine,
            stage.centre.deployer,
            parameters,
            project / "template.yaml",
            stage.centre.run_dir,
            progress=stage.say,
        )
