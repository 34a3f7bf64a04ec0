"""`make scenarios`: run and check scenarios of a fleet that is shared, rented and resized.

    python -m evenkeel_local.scenarios               list the scenarios
    python -m evenkeel_local.scenarios preemption    run one, in a data centre of its own; exit 1 if a check fails
    python -m evenkeel_local.scenarios all           run all, one after the other

A drill breaks one part and checks one job; a scenario has several jobs that need the same nodes. Both check the
weights, that attempts do not overlap, that nothing is left open, and that every decision replays.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from evenkeel.domain.capacity.pools import Reservation
from evenkeel.runtime.site_policy import FRESH
from evenkeel_local import ACCOUNT_ID, PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, TRAINING_PLAN, DataCentre, FleetShape, Say
from evenkeel_local.drills import (
    ENDED,
    RENTED_TYPE,
    SETTLED,
    DrillResult,
    DrillTimeoutError,
    TrainingWork,
    await_all_nodes_ready,
    last_step,
    node_of_rank,
    node_pool,
    read_object,
    rented_pool,
    wait_for,
)
from evenkeel_local.drills.checks import check_dead_letters, check_decisions, leftover_records
from evenkeel_local.engine import EngineError
from evenkeel_local.gpu_cluster import ClusterFailed
from evenkeel_local.identities import make_user
from evenkeel_local.processes import interruptible
from evenkeel_local.reference_run import reference_digest

Json = dict[str, Any]

WAIT_SECONDS: Final = 150.0
_END_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.3
_LEFT_SECONDS: Final = 60.0
_SERVES: Final = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"


class ScenarioRun:
    """A scenario while it runs: its jobs, their timelines and the checks."""

    def __init__(self, centre: DataCentre, result: DrillResult, say: Say) -> None:
        self.centre = centre
        self.client = centre.client()
        self.result = result
        self.say = say
        self.jobs: list[ScenarioJob] = []
        self.meter: CostMeter | None = None
        self._seen_entries: set[tuple[str, str]] = set()

    # ------------------------------------------------------------ setup

    def set_policy(self, changes: Json, reason: str) -> None:
        """Set the site's policy, and wait until every function uses it."""
        self.note("you", f"Applied a policy: {reason}.")
        self.client.post(f"/clusters/{self.client.fleet}/policy", {"changes": changes, "reason": reason})
        time.sleep(FRESH.total_seconds())

    def create_priority_classes(self, **values: int) -> None:
        """Create priority classes, and make the operator the lead of every team."""
        people = [{"principal": f"arn:aws:iam::{ACCOUNT_ID}:user/operator", "role": "lead"}]
        quotas = {"priorityClasses": values, "members": people}
        path = f"/clusters/{self.client.fleet}/quotas"
        self.client.change("PUT", path, {"quotas": quotas, "reason": "the scenario's"}, version=0)

    def create_team(self, name: str, gpus: int, instance_type: str, **queue: Any) -> None:
        """Create a team with a quota."""
        groups = [{instance_type: {"nvidia.com/gpu": gpus}}]
        team = {"name": name, "queue": {"groups": groups, "preemption": {"within": "LowerPriority"}} | queue}
        self.client.change("PUT", f"/teams/{name}/quota", {"team": team, "reason": "the scenario's"}, version=0)
        self.note("you", f"Team {name} has {gpus} GPUs.")

    def submit(self, name: str, training_work: TrainingWork, **fields: Any) -> ScenarioJob:
        """Submit a job; `fields` are added to the request."""
        uri = f"s3://{CHECKPOINTS_BUCKET}/scenarios/{name}-{time.time_ns()}"
        job_id = self.client.post("/jobs", training_work.submission(name, uri) | fields)["jobId"]
        scenario_job = ScenarioJob(self, name, str(job_id), uri, training_work)
        self.jobs.append(scenario_job)
        self.note(
            "you",
            f"Submitted {name} on {training_work.nodes} {'node' if training_work.nodes == 1 else 'nodes'}: {job_id}.",
        )
        return scenario_job

    def scale_deployment(self, name: str, replicas: int, *tolerations: Json) -> None:
        """Scale a serving Deployment that uses whole nodes."""
        self.note("serving", f"Set {name} to {replicas} replicas.")
        container = {
            "name": "main",
            "image": f"registry.invalid/{name}:1",
            "command": ["python", "-c", _SERVES],
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
        }
        pod = {"containers": [container], "terminationGracePeriodSeconds": 1, "tolerations": list(tolerations)}
        template = {"metadata": {"labels": {"app": name}}, "spec": pod}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        metadata = {"name": name, "namespace": "default"}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        self.centre.cluster.apply([deployment])

    def running_replicas(self, name: str) -> int:
        """Return the number of running replicas."""
        return len(self.replica_nodes(name))

    def replica_nodes(self, name: str) -> list[str]:
        """Return the nodes of the running replicas."""
        pods = self.centre.cluster.get(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{name}")["items"]
        return [str(pod["spec"]["nodeName"]) for pod in pods if pod["status"].get("phase") == "Running"]

    def serving_rentals(self) -> list[Json]:
        """Return all rentals for Deployments."""
        serving = self.client.get("/status")["serving"]
        return [rental for workload in serving for rental in workload["rentals"]]

    # ------------------------------------------------------------ watching

    def wait_for(self, condition: str, look: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Poll until `look` returns something; print the timelines of the jobs meanwhile.

        Raises:
            DrillTimeoutError: the wait timed out.
        """

        def look_and_print() -> Any:
            value = look()
            self.print_timeline()
            if self.meter:
                self.meter.read(self.centre)
            return value

        return wait_for(condition, seconds, look_and_print)

    def print_timeline(self) -> None:
        """Print the new timeline entries of the jobs in order of time."""
        fresh = []
        for scenario_job in self.jobs:
            for entry in self.client.get(f"/jobs/{scenario_job.job_id}/timeline")["entries"]:
                entry_key = (scenario_job.job_id, f"{entry['at']} {entry['text']}")
                # The submission has been printed before.
                if entry_key not in self._seen_entries and entry["kind"] != "submitted":
                    self._seen_entries.add(entry_key)
                    fresh.append((str(entry["at"]), scenario_job.name, str(entry["text"])))
        for at, name, text in sorted(fresh):
            self.note(name, self._with_job_names(text), at[11:19])

    def _with_job_names(self, text: str) -> str:
        for scenario_job in self.jobs:
            text = text.replace(scenario_job.job_id, scenario_job.name)
        return text

    def note(self, actor: str, text: str, at: str = "") -> None:
        """Print one line: the time, the actor and the text."""
        self.say(f"{at or datetime.now(UTC).strftime('%H:%M:%S')}  {actor:<9} {text}")

    def check(self, claim: str, holds: object, detail: object) -> None:
        """Record a check."""
        self.result.check(claim, bool(holds), str(detail))

    def finish(self) -> None:
        """End all jobs, and check the outcome."""
        for scenario_job in self.jobs:
            if scenario_job.read()["state"] not in ENDED:
                self.client.post(f"/jobs/{scenario_job.job_id}/cancel", {"reason": "the scenario is over"})
        for scenario_job in self.jobs:
            scenario_job.wait_for_end()
        await_all_nodes_ready(self.client, self.centre)
        deadline = time.monotonic() + _LEFT_SECONDS
        while (leftovers := self._leftover_objects()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.print_timeline()
        self.check("no wait, charge, execution, rented node or limit is left", not leftovers, leftovers or "nothing")
        if self.meter:
            self._check_money(self.meter)
        check_dead_letters(self.result, self.centre)
        check_decisions(self.result, self.centre)

    def _leftover_objects(self) -> list[str]:
        unpaid = [
            f"rental {rental['rental']} of {scenario_job.name}"
            for scenario_job in self.jobs
            for rental in scenario_job.read()["rentals"]
            if not rental["endedAt"]
        ]
        unpaid += [
            f"rental {document['rental']} of serving" for document in self.serving_rentals() if not document["endedAt"]
        ]
        return [*leftover_records(self.centre), *leftover_rentals(self.centre), *unpaid]

    def _check_money(self, meter: CostMeter) -> None:
        """Check each bill and the cap against the price table and the observed nodes."""
        rentals = [
            rental for scenario_job in self.jobs for rental in scenario_job.read()["rentals"]
        ] + self.serving_rentals()
        wrong = [
            f"{rental['costUsd']} instead of {expected_cost_usd(rental)}"
            for rental in rentals
            if not has_expected_cost(rental)
        ]
        total = sum((Decimal(rental["costUsd"] or 0) for rental in rentals), Decimal(0))
        self.note("you", f"Total cost of rented nodes: ${total:.2f}.")
        self.check(
            "every bill equals price x started seconds x nodes, to the micro-dollar", not wrong, wrong or f"${total}"
        )
        used_usd = meter.min_usd()
        self.check(
            "the bills are at least the cost of the observed run time of the nodes",
            total >= used_usd,
            f"{total}, {used_usd}",
        )
        max_usd = Decimal(meter.max_micros_per_hour) / 1_000_000
        within = meter.max_micros_per_hour <= CAP_MICROS_PER_HOUR
        self.check(
            f"rented nodes never cost more than $120 per hour: ${max_usd:.2f} at the peak",
            within,
            f"${max_usd} an hour",
        )


class CostMeter:
    """Measures the cost of the rented nodes independently of Evenkeel."""

    def __init__(self) -> None:
        self.max_micros_per_hour = 0
        self._seen: dict[str, tuple[str, float, float]] = {}
        """For each machine: its pool, and the times when it was first and last seen."""

    def read(self, centre: DataCentre) -> None:
        """Record the nodes that are rented now."""
        claims = centre.cluster.get("/apis/karpenter.sh/v1/nodeclaims")["items"]
        pools = {
            str(claim["metadata"]["name"]): str(claim["metadata"]["labels"][_POOL_LABEL])
            for claim in claims
            if claim.get("status", {}).get("providerID")
        }
        now = time.monotonic()
        for name, pool in pools.items():
            first_seen = self._seen[name][1] if name in self._seen else now
            self._seen[name] = (pool, first_seen, now)
        self.max_micros_per_hour = max(self.max_micros_per_hour, sum(PRICES[pool] for pool in pools.values()))

    def min_usd(self) -> Decimal:
        """Return the minimum cost: the whole seconds between the first and the last observation of each machine."""
        micros = sum(
            PRICES[pool] * math.floor(last_seen - first_seen) for pool, first_seen, last_seen in self._seen.values()
        )
        return Decimal(micros) / _COST_PARTS_PER_USD


def expected_cost_usd(rental: Json) -> Decimal:
    """Return the expected cost of a rental, from the times of its offers and the price table."""
    micros = 0
    for offer in rental["offers"]:
        if offer["joinedNodes"]:
            duration = datetime.fromisoformat(offer["closedAt"]) - datetime.fromisoformat(offer["openedAt"])
            micros += PRICES[offer["pool"]] * offer["joinedNodes"] * max(60, math.ceil(duration.total_seconds()))
    return Decimal(micros) / _COST_PARTS_PER_USD


def has_expected_cost(rental: Json) -> bool:
    """Whether a rental has ended with the expected bill."""
    return bool(rental["costUsd"] == f"{expected_cost_usd(rental):.6f}")


@dataclass
class ScenarioJob:
    """A job of a scenario."""

    run: ScenarioRun
    name: str
    job_id: str
    uri: str
    work: TrainingWork

    def read(self) -> Json:
        """Return the job as the API shows it."""
        document: Json = self.run.client.get(f"/jobs/{self.job_id}")
        return document

    def why(self) -> Json:
        """Return why the job waits, or the last decision about it."""
        document: Json = self.run.client.get(f"/jobs/{self.job_id}/why")
        return document

    def attempt(self, number: int) -> Json:
        """Return an attempt of the job."""
        return next(dict(attempt) for attempt in self.read()["attempts"] if attempt["attempt"] == number)

    def timeline(self) -> str:
        """Return the timeline of the job as one text."""
        entries = self.run.client.get(f"/jobs/{self.job_id}/timeline")["entries"]
        return " ".join(str(entry["text"]) for entry in entries)

    def step(self) -> int:
        """Return the newest step in the log of its current attempt."""
        return last_step(self.run.client, self.job_id)

    def wait_for_step(self, step: int) -> ScenarioJob:
        """Wait for a step."""
        self.run.wait_for(f"step {step} of {self.name}", lambda: self.step() >= step)
        return self

    def wait_until(self, condition: str, holds: Callable[[Json], object], seconds: float = WAIT_SECONDS) -> Json:
        """Wait until the job fulfils a condition, and return the job."""

        def look() -> Json:
            job = self.read()
            if holds(job):
                return job
            if job["state"] in ENDED:
                raise DrillTimeoutError(
                    f"waited for {self.name} {condition}, but it is {job['state']}: {job['reason']}"
                )
            return {}

        job: Json = self.run.wait_for(f"{self.name} {condition}", look, seconds)
        return job

    def wait_for_size(self, nodes: int) -> Json:
        """Wait until the job runs on this number of nodes."""
        return self.wait_until(
            f"to run on {nodes} nodes", lambda job: (job["state"], job["currentNodes"]) == ("RUNNING", nodes)
        )

    def node(self, rank: int) -> str:
        """Return the name of the node that a rank of its current attempt runs on."""
        return node_of_rank(self.run.centre, self.read(), rank)

    def wait_for_end(self) -> Json:
        """Wait until the job has ended."""
        return self.wait_until("to end", lambda job: job["state"] in ENDED, _END_SECONDS)

    def check_good_end(self, attempts: int) -> Json:
        """Wait for the end of the job, and check its weights and its number of attempts."""
        job = self.wait_for_end()
        document = read_object(self.run.centre, self.uri, f"result/attempt={job['currentAttempt']}.json")
        digest = json.loads(document)["digest"] if document else "no result"
        expected_digest = reference_digest(self.work.nodes, self.work.steps, self.work.seed)
        self.run.check(f"{self.name} succeeds", job["state"] == "SUCCEEDED", f"{job['state']}: {job['reason']}")
        self.run.check(
            f"the weights of {self.name} equal the weights of an undisturbed run",
            digest == expected_digest,
            f"{digest} against {expected_digest}",
        )
        self.run.check(f"{self.name} took {attempts} attempts", job["currentAttempt"] == attempts, job["reason"])
        self.run.check(
            f"{self.name} has no application failure", not job["applicationFailures"], job["applicationFailures"]
        )
        return job


def leftover_rentals(centre: DataCentre) -> list[str]:
    """Return the remaining NodeClaims, capacity pods and NodePool limits of rentals."""
    get = centre.cluster.get
    pools = get("/apis/karpenter.sh/v1/nodepools")["items"]
    rented_pools = [pool for pool in pools if pool["metadata"]["name"] in _NODE_POOLS]
    claims = get("/apis/karpenter.sh/v1/nodeclaims")["items"] if rented_pools else []
    pods = get("/api/v1/pods?labelSelector=evenkeel.io%2Frental")["items"]
    open_ones = [pool for pool in rented_pools if pool["spec"]["limits"]["nvidia.com/gpu"] != "0"]
    return [str(claim["metadata"]["name"]) for claim in (*claims, *pods, *open_ones)]


# ---------------------------------------------------------------- the scenarios

TYPE: Final = FleetShape().instance_type
LONG: Final = TrainingWork(nodes=2, steps=120, checkpoint_every=4, step_seconds=0.15)
SHORT: Final = TrainingWork(nodes=2, steps=12, checkpoint_every=4, step_seconds=0.1)


def preemption(scenario_run: ScenarioRun) -> None:
    """Committed capacity is full: a job of a higher class preempts a lower one, which saves and later resumes."""
    scenario_run.create_priority_classes(low=1, high=100)
    scenario_run.create_team("red", 16, TYPE)
    low_job = scenario_run.submit("low", LONG, team="red", priorityClass="low").wait_for_step(9)
    high_job = scenario_run.submit("high", SHORT, team="red", priorityClass="high")
    high_job.check_good_end(attempts=1)
    low_job.check_good_end(attempts=2)
    stopped_attempt, resumed_attempt = low_job.attempt(1), low_job.attempt(2)
    scenario_run.check(
        "the reason of low names the job that preempts it",
        high_job.job_id in stopped_attempt["reason"],
        stopped_attempt["reason"],
    )
    scenario_run.check(
        "low resumes from the checkpoint that it saved",
        resumed_attempt["resumeFrom"]["step"] >= 8,
        resumed_attempt["resumeFrom"],
    )


def shared_node(scenario_run: ScenarioRun) -> None:
    """Two halves of a GPU node and a CPU-only job share one node; a job that needs more CPU waits."""
    scenario_run.create_priority_classes(normal=1)
    groups = [{TYPE: {"nvidia.com/gpu": 8, "cpu": 400, "memory": "4Ti"}}]
    scenario_run.create_team("red", 8, TYPE, groups=groups)
    half = TrainingWork(nodes=1, steps=600, checkpoint_every=50, step_seconds=0.15)
    short_work = TrainingWork(nodes=1, steps=20, checkpoint_every=10, step_seconds=0.1)
    first_job = scenario_run.submit("half-1", half, team="red", gpusPerNode=4)
    second = scenario_run.submit("half-2", half, team="red", gpusPerNode=4)
    notebook = scenario_run.submit("notebook", half, team="red", gpusPerNode=0, cpuPerNode=8, memoryGibPerNode=32)
    for job in (first_job, second, notebook):
        job.wait_for_step(3)
    nodes = {job.node(0) for job in (first_job, second, notebook)}
    scenario_run.check("two halves of a node and a CPU job run on one node", len(nodes) == 1, nodes)
    large = scenario_run.submit("large", short_work, team="red", gpusPerNode=0, cpuPerNode=64)
    waiting_job = large.wait_until("to wait for CPU", lambda document: "short of CPU" in document["reason"])
    scenario_run.check("a job that needs more CPU than is free waits, and says so", True, waiting_job["reason"])
    for job in (first_job, second, notebook, large):
        job.check_good_end(attempts=1)


SIZES: Final = {"minNodes": 1, "maxNodes": 3}
GROUP_TYPE: Final = "p5.48xlarge"


def elastic(scenario_run: ScenarioRun) -> None:
    """Idle nodes: a job grows. For a job of a higher class it shrinks instead of ending, then grows back."""
    scenario_run.create_priority_classes(low=1, high=100)
    scenario_run.create_team("red", 24, TYPE)
    training_work = TrainingWork(nodes=2, steps=1000, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("elastic", training_work, team="red", priorityClass="low", elastic=SIZES)
    job.wait_for_size(3)
    job.wait_for_step(job.step() + 5)
    urgent_job = scenario_run.submit(
        "urgent", TrainingWork(nodes=2, steps=30, step_seconds=0.1), team="red", priorityClass="high"
    )
    job.wait_for_size(1)
    urgent_job.check_good_end(attempts=1)
    job.wait_for_size(3)
    ended_job = job.check_good_end(attempts=4)
    sizes = [attempt["gpus"] // 8 for attempt in reversed(ended_job["attempts"])]
    scenario_run.check("the job ran on 2, 3, 1 and 3 nodes", sizes == [2, 3, 1, 3], sizes)


def node_lost(scenario_run: ScenarioRun) -> None:
    """A node is lost and there is no spare: the job continues with fewer nodes during the replacement."""
    scenario_run.create_priority_classes(low=1)
    scenario_run.create_team("red", 24, TYPE)
    slow = {
        "jobs": {"expectedReplaceSeconds": 120},
        "repair": {"replaceDeadlineSeconds": 90},
        "scheduling": {"elastic": {"spareWaitSeconds": 15}},
    }
    scenario_run.set_policy(slow, "repairs are slow in this scenario")
    training_work = TrainingWork(nodes=3, steps=1000, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("elastic", training_work, team="red", priorityClass="low", elastic=SIZES).wait_for_step(9)
    node = job.node(2)
    scenario_run.centre.cluster.inject("gpu-xid79", node=node)
    scenario_run.note("world", f"A GPU of {node} falls off the bus (Xid 79).")
    job.wait_for_size(2)
    instance_id = node.removeprefix("hyperpod-")

    def incident() -> Json:
        incidents = scenario_run.client.get("/incidents", pageSize=100)["items"]
        return next((document for document in incidents if document["node"]["instanceId"] == instance_id), {})

    open_still = incident()
    scenario_run.check(
        "the job runs while its node is repaired", open_still["state"] not in SETTLED, open_still["state"]
    )
    scenario_run.wait_for("the incident to settle", lambda: incident()["state"] in SETTLED)
    job.wait_for_size(3)
    job.check_good_end(attempts=3)
    scenario_run.check("the plan was to shrink the job", "SHRINK" in job.timeline(), job.timeline())


def node_group(scenario_run: ScenarioRun) -> None:
    """EKS without Karpenter and HyperPod: a GPU fails, and an Auto Scaling group replaces the node without a person."""
    scenario_run.create_priority_classes(normal=1)
    scenario_run.create_team("red", 24, GROUP_TYPE)
    training_work = TrainingWork(nodes=2, steps=400, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("training", training_work, team="red").wait_for_step(9)
    node = job.node(1)
    before = _instance_ids(scenario_run)
    scenario_run.centre.cluster.inject("gpu-xid79", node=node)
    scenario_run.note("world", f"A GPU of {node} falls off the bus (Xid 79).")

    def incident() -> Json:
        incidents = scenario_run.client.get("/incidents", pageSize=100)["items"]
        return next((document for document in incidents if document["node"]["instanceId"] == before[node]), {})

    settled = scenario_run.wait_for("the incident to settle", lambda: incident().get("state") in SETTLED and incident())
    scenario_run.check("the recovery needs no person", settled["state"] == "RECOVERED", settled["outcome"])
    scenario_run.wait_for(
        "the group to be complete", lambda: len(_instance_ids(scenario_run)) == scenario_run.centre.node_count
    )
    after = _instance_ids(scenario_run)
    scenario_run.check(
        "the group replaced exactly the faulty node", _lost_nodes(before, after) == {before[node]}, after
    )
    job.check_good_end(attempts=2)
    resumed = job.attempt(2)["resumeFrom"]
    scenario_run.check("the job resumes from a checkpoint", resumed["step"] >= 4, resumed)


def _instance_ids(scenario_run: ScenarioRun) -> dict[str, str]:
    """Return the instance id of each Ready node, by the node's name."""
    nodes = scenario_run.centre.cluster.get("/api/v1/nodes")["items"]
    return {
        node["metadata"]["name"]: node["spec"]["providerID"].rpartition("/")[2]
        for node in nodes
        if any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"]["conditions"]
        )
    }


def _lost_nodes(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return set(before.values()) - set(after.values())


def preempted_for_interrupted(scenario_run: ScenarioRun) -> None:
    """A high-class job loses a node and there is no spare: Evenkeel preempts a lower job, which later resumes."""
    scenario_run.create_priority_classes(low=1, high=100)
    scenario_run.create_team("red", 24, TYPE)
    slow = {"jobs": {"expectedReplaceSeconds": 600}, "repair": {"replaceDeadlineSeconds": 90}}
    scenario_run.set_policy(slow, "repairs are slow in this scenario")
    training_work = TrainingWork(nodes=2, steps=300, checkpoint_every=4, step_seconds=0.15)
    high = scenario_run.submit("high", training_work, team="red", priorityClass="high", graceSeconds=20).wait_for_step(
        9
    )
    training_work = TrainingWork(nodes=1, steps=300, checkpoint_every=4, step_seconds=0.15)
    low = scenario_run.submit("low", training_work, team="red", priorityClass="low", graceSeconds=20).wait_for_step(9)
    node, preempted_node = high.node(1), low.node(0)
    scenario_run.centre.cluster.inject("gpu-xid79", node=node)
    scenario_run.note("world", f"A GPU of {node} falls off the bus (Xid 79).")
    high.wait_until("to run again", lambda job: (job["state"], job["currentAttempt"]) == ("RUNNING", 2))
    waits = low.read()
    scenario_run.check("low waits while high runs", waits["state"] == "PENDING", f"{waits['state']}: {waits['reason']}")
    low.wait_until("to run again", lambda job: (job["state"], job["currentAttempt"]) == ("RUNNING", 2))
    high.check_good_end(attempts=2)
    low.check_good_end(attempts=2)
    nodes_taken = [node["name"] for node in high.attempt(2)["nodes"]]
    scenario_run.check(
        "high runs where low ran", preempted_node in nodes_taken and node not in nodes_taken, nodes_taken
    )
    stopped, resumed = low.attempt(1), low.attempt(2)
    scenario_run.check(
        "the reason of low names the job that preempts it", high.job_id in stopped["reason"], stopped["reason"]
    )
    scenario_run.check(
        "low resumes from the checkpoint that it saved", resumed["resumeFrom"]["step"] >= 8, resumed["resumeFrom"]
    )
    scenario_run.check("the plan was to preempt low", "PREEMPT" in high.timeline(), high.timeline())


def inference_spike(scenario_run: ScenarioRun) -> None:
    """Serving needs more replicas than nodes are free: training shrinks, then grows back."""
    scenario_run.create_priority_classes(low=1)
    scenario_run.create_team("red", 24, TYPE)
    chat = {"cluster": scenario_run.centre.cluster.eks_cluster_name, "namespace": "default", "name": "chat"}
    scenario_run.set_policy({"scheduling": {"serving": [chat]}}, "default/chat serves and has priority over training")
    training_work = TrainingWork(nodes=3, steps=800, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("training", training_work, team="red", priorityClass="low", elastic=SIZES).wait_for_step(
        9
    )
    scenario_run.scale_deployment("chat", 2)
    job.wait_for_size(1)
    scenario_run.wait_for("both replicas to run", lambda: scenario_run.running_replicas("chat") == 2)
    scenario_run.note("serving", "Both replicas run, on nodes that training released.")
    scenario_run.scale_deployment("chat", 0)
    job.wait_for_size(3)
    ended = job.check_good_end(attempts=3)
    sizes = [attempt["gpus"] // 8 for attempt in reversed(ended["attempts"])]
    scenario_run.check("the job ran on 3, 1 and 3 nodes", sizes == [3, 1, 3], sizes)
    scenario_run.check(
        "the timeline names the Deployment that gets the nodes",
        "The resize frees nodes for default/chat." in job.timeline(),
        job.timeline(),
    )


HOLDING_JOB: Final = TrainingWork(nodes=1, steps=3000, checkpoint_every=4, step_seconds=0.15)
"""A job that runs until it is cancelled."""
URGENT: Final = TrainingWork(nodes=1, steps=400, checkpoint_every=4, step_seconds=0.15)
PRICES: Final = {"burst-spot": 22_000_000, "burst-on-demand": 55_040_000}
"""Price of a node, in micro-dollars per hour."""
CAP_MICROS_PER_HOUR: Final = 120_000_000
_NODE_POOLS: Final = tuple(PRICES)
_POOL_LABEL: Final = "karpenter.sh/nodepool"
_COST_PARTS_PER_USD: Final = 3_600_000_000
"""(micro-dollars per hour × seconds) in one dollar."""


def _add_node_pools(
    scenario_run: ScenarioRun, taint: Json | None = None, burst: Json | None = None, **other: Any
) -> None:
    """Create two NodePools with limit 0, and allow Evenkeel to rent from them; `other` are more policy sections."""
    taints = [taint] if taint else []
    market = {"burst-spot": "spot", "burst-on-demand": "on-demand"}
    scenario_run.centre.cluster.apply([node_pool(name, market[name], limit=0, taints=taints) for name in _NODE_POOLS])
    shown = [f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in taints]
    pools = [
        rented_pool(scenario_run.centre, name, market[name], max_nodes=2, price=price) | {"taints": shown}
        for name, price in PRICES.items()
    ]
    may = {
        "fleetCapMicrosPerHour": CAP_MICROS_PER_HOUR,
        "otherTeamCapMicrosPerHour": CAP_MICROS_PER_HOUR,
        "otherDelayMicrosPerHour": 100_000_000,
        "otherExpectedRunSeconds": 3600,
    }
    changes = {"burst": {"pools": pools, **may, **(burst or {})}, **other}
    scenario_run.set_policy(changes, "Evenkeel may rent nodes for at most $120 per hour")
    scenario_run.meter = CostMeter()


def return_to_committed(scenario_run: ScenarioRun) -> None:
    """Committed capacity is full: an urgent job runs on rented nodes, and migrates back when capacity is free."""
    _add_node_pools(scenario_run)
    baseline_job = scenario_run.submit("baseline", HOLDING_JOB).wait_for_step(9)
    urgent = scenario_run.submit("urgent", URGENT)
    urgent.wait_for_step(9)
    rented_attempt = urgent.attempt(1)
    scenario_run.check("urgent runs on rented nodes", rented_attempt["pool"] in _NODE_POOLS, rented_attempt["pool"])
    scenario_run.client.post(f"/jobs/{baseline_job.job_id}/cancel", {"reason": "urgent needs its node"})
    scenario_run.note("you", "Cancelled baseline: urgent needs its node.")
    urgent.check_good_end(attempts=2)
    committed_attempt = urgent.attempt(2)
    scenario_run.check(
        "urgent migrated back to committed capacity",
        committed_attempt["pool"] == FleetShape().group,
        committed_attempt["pool"],
    )
    scenario_run.check(
        "the reason says so",
        "migrates back to committed capacity" in urgent.attempt(1)["reason"],
        urgent.attempt(1)["reason"],
    )
    scenario_run.check(
        "Evenkeel rented for urgent exactly once", len(urgent.read()["rentals"]) == 1, urgent.read()["rentals"]
    )


def inference_burst(scenario_run: ScenarioRun) -> None:
    """Serving needs more than committed capacity, and no job can shrink: Evenkeel rents nodes and returns them."""
    taint = {"key": "evenkeel.io/serving", "value": "chat", "effect": "NoSchedule"}
    chat = {
        "cluster": scenario_run.centre.cluster.eks_cluster_name,
        "namespace": "default",
        "name": "chat",
        "rentsFrom": ["burst-on-demand"],
        "spikeSeconds": 600,
        "patienceSeconds": 2,
    }
    _add_node_pools(scenario_run, taint, {"quietSeconds": 5}, scheduling={"serving": [chat]})
    training_job = scenario_run.submit("baseline", HOLDING_JOB).wait_for_step(9)
    node = training_job.node(0)
    scenario_run.scale_deployment("chat", 2, {**taint, "operator": "Equal"})
    scenario_run.wait_for("both replicas to run", lambda: scenario_run.running_replicas("chat") == 2)
    # A replica may run on its node shortly before the node is assigned.
    rented_node = scenario_run.wait_for(
        "both rented nodes to be assigned",
        lambda: (
            names
            if len(names := [name for document in scenario_run.serving_rentals() for name in document["nodeNames"]]) > 1
            else []
        ),
    )
    nodes = scenario_run.replica_nodes("chat")
    scenario_run.note("serving", f"Both replicas run on {' and '.join(nodes)}.")
    scenario_run.check(
        "each replica has a rented node of its own", sorted(nodes) == sorted(rented_node), f"{nodes} of {rented_node}"
    )
    scenario_run.check("training still runs", training_job.read()["state"] == "RUNNING", training_job.read()["reason"])
    scenario_run.scale_deployment("chat", 1, {**taint, "operator": "Equal"})
    returning_rental = scenario_run.wait_for(
        "one rental to end", lambda: [document for document in scenario_run.serving_rentals() if document["endedAt"]]
    )
    scenario_run.check(
        "the returned node had no replica",
        returning_rental[0]["nodeNames"] != scenario_run.replica_nodes("chat"),
        returning_rental,
    )
    scenario_run.scale_deployment("chat", 0)
    scenario_run.wait_for(
        "the other rental to end", lambda: all(document["endedAt"] for document in scenario_run.serving_rentals())
    )
    scenario_run.check("training kept its node", training_job.node(0) == node, training_job.node(0))
    scenario_run.client.post(f"/jobs/{training_job.job_id}/cancel", {"reason": "seen enough"})


def spot_reclaimed(scenario_run: ScenarioRun) -> None:
    """A spot node gets its interruption notice: the job saves in time and continues on rented on-demand nodes."""
    _add_node_pools(scenario_run)
    baseline_job = scenario_run.submit("baseline", HOLDING_JOB).wait_for_step(9)
    urgent = scenario_run.submit("urgent", URGENT).wait_for_step(9)
    notice_step = urgent.step()
    scenario_run.centre.cluster.inject("spot-reclaim", node=urgent.node(0))
    scenario_run.note("world", f"The spot node of urgent gets its interruption notice at step {notice_step}.")
    urgent.wait_until("to start again", lambda job: job["currentAttempt"] > 1)
    scenario_run.client.post(f"/jobs/{baseline_job.job_id}/cancel", {"reason": "seen enough"})
    ended_job = urgent.wait_for_end()
    pools = [attempt["pool"] for attempt in reversed(ended_job["attempts"])]
    urgent.check_good_end(attempts=ended_job["currentAttempt"])
    scenario_run.check("urgent moved from spot to on-demand", pools[:2] == ["burst-spot", "burst-on-demand"], pools)
    resume_point = urgent.attempt(2)["resumeFrom"]
    scenario_run.check(
        "urgent saved a checkpoint before the deadline of the notice", resume_point["step"] >= notice_step, resume_point
    )
    scenario_run.check(
        "Evenkeel rented for urgent exactly twice", len(urgent.read()["rentals"]) == 2, urgent.read()["rentals"]
    )


def mixed_spot(scenario_run: ScenarioRun) -> None:
    """A job on a committed node grows onto two spot nodes; one gets its notice, and the job shrinks to its base."""
    _add_node_pools(scenario_run)
    sizes = {"minNodes": 1, "maxNodes": 3, "sizes": [1, 3], "mixedPools": ["burst-spot"]}
    training_work = TrainingWork(nodes=1, steps=600, checkpoint_every=4, step_seconds=0.15)
    job = scenario_run.submit("mixed", training_work, elastic=sizes, graceSeconds=20).wait_for_step(4)
    base = job.node(0)
    job.wait_for_size(3)
    rented_part = job.attempt(2)["rentedPart"]
    nodes = [node["name"] for node in job.attempt(2)["nodes"]]
    scenario_run.check("the attempt has its base and two spot nodes", nodes == [base, *rented_part["nodes"]], nodes)
    scenario_run.check(
        "the rented part names its pool", (rented_part["pool"], rented_part["rental"]) == ("burst-spot", 1), rented_part
    )
    scenario_run.check(
        "why names both parts", "1 committed node and 2 rented nodes" in job.why()["sentence"], job.why()
    )
    job.wait_for_step(job.step() + 5)
    notice_step = job.step()
    scenario_run.centre.cluster.inject("spot-reclaim", node=rented_part["nodes"][0])
    scenario_run.note("world", f"A spot node of mixed gets its interruption notice at step {notice_step}.")
    job.wait_until(
        "to run on its base", lambda document: (document["currentAttempt"], document["state"]) == (3, "RUNNING")
    )
    last_attempt = job.attempt(3)
    scenario_run.check(
        "the job continues on its base alone",
        [node["name"] for node in last_attempt["nodes"]] == [base],
        last_attempt["nodes"],
    )
    scenario_run.check(
        "the job saved a checkpoint within the notice", last_attempt["resumeFrom"]["step"] >= notice_step, last_attempt
    )
    ended_job = job.check_good_end(attempts=3)
    sizes_run = [attempt["gpus"] // 8 for attempt in reversed(ended_job["attempts"])]
    scenario_run.check("the job ran on 1, 3 and 1 nodes", sizes_run == [1, 3, 1], sizes_run)
    rentals = ended_job["rentals"]
    scenario_run.check("Evenkeel rented two nodes once", [rental["nodes"] for rental in rentals] == [2], rentals)


def no_capacity_anywhere(scenario_run: ScenarioRun) -> None:
    """No pool has capacity: the job waits, shows why, costs nothing, and starts on free committed capacity."""
    _add_node_pools(scenario_run)
    for market in ("spot", "on-demand"):
        none = {"instanceType": RENTED_TYPE, "zone": "us-west-2a", "capacityType": market, "machines": 0}
        scenario_run.centre.cluster.control("POST", "offerings", none)
    scenario_run.note("world", "No pool has capacity to rent.")
    training_work = TrainingWork(nodes=1, steps=200, checkpoint_every=4, step_seconds=0.15)
    baseline_job = scenario_run.submit("baseline", training_work).wait_for_step(4)
    urgent = scenario_run.submit("urgent", training_work)
    document = urgent.wait_until("to be refused", lambda job: job["rentals"] and job["rentals"][0]["endedAt"])
    rental = document["rentals"][0]
    scenario_run.check(
        "every pool refused the request", all(offer["refused"] for offer in rental["offers"]), rental["offers"]
    )
    scenario_run.check("the refused rental costs nothing", rental["costUsd"] == "0.000000", rental["costUsd"])
    waiting_job = urgent.wait_until("to say why it waits", lambda job: "No pool can be rented" in job["reason"])
    scenario_run.note("urgent", waiting_job["reason"])
    scenario_run.check(
        "the reason gives the expected wait", "waits about" in waiting_job["reason"], waiting_job["reason"]
    )
    baseline_job.check_good_end(attempts=1)
    urgent.check_good_end(attempts=1)


PLAN_SECONDS: Final = 270
"""Time from the start of the data centre until jobs must leave the training plan. The deployment takes a part of it."""
CLOSING_SECONDS: Final = int(Reservation.model_fields["closing_seconds"].default)
_PLAN_ENDS: Final = FleetShape(nodes=1, plan_remaining_seconds=PLAN_SECONDS + CLOSING_SECONDS)


def _end_of_training_plan(centre: DataCentre) -> datetime:
    """Return the end of the training plan, as SageMaker states it."""
    arn = f"{centre.cluster.cluster_arn.partition(':cluster/')[0]}:training-plan/{TRAINING_PLAN}"
    may_read = {"Effect": "Allow", "Action": "sagemaker:DescribeTrainingPlan", "Resource": arn}
    reader = make_user(centre.deployer, "reader-of-the-plan", [may_read])
    sagemaker = reader.client("sagemaker", endpoint_url=centre.cluster.sagemaker_url)
    end: datetime = sagemaker.describe_training_plan(TrainingPlanName=TRAINING_PLAN)["EndTime"]
    return end


def plan_ends(scenario_run: ScenarioRun) -> None:
    """The training plan of the committed capacity ends: the job leaves in time and continues on rented nodes."""
    left_by = _end_of_training_plan(scenario_run.centre) - timedelta(seconds=CLOSING_SECONDS)
    scenario_run.note("world", f"Jobs must leave the training plan by {left_by:%H:%M:%S}.")
    _add_node_pools(scenario_run)
    training_work = TrainingWork(nodes=1, steps=1600, checkpoint_every=4, step_seconds=0.15)
    job = scenario_run.submit("training", training_work, graceSeconds=10)
    job.wait_for_step(9)
    scenario_run.check(
        "the job starts on the training plan", job.attempt(1)["pool"] == FleetShape().group, job.attempt(1)["pool"]
    )
    job.wait_until(
        "to receive the request to leave",
        lambda document: document["currentAttempt"] > 1 or "leaves" in document["reason"],
        (left_by - datetime.now(UTC)).total_seconds(),
    )
    notice_step = job.step()
    job.wait_until(
        "to run on rented nodes", lambda document: document["currentAttempt"] > 1 and document["state"] == "RUNNING"
    )
    first_attempt, second_attempt = job.attempt(1), job.attempt(2)
    scenario_run.check(
        "the job left in time", datetime.fromisoformat(first_attempt["endedAt"]) < left_by, first_attempt["endedAt"]
    )
    scenario_run.check("the reason says so", "The reservation of" in first_attempt["reason"], first_attempt["reason"])
    scenario_run.check(
        "the job continues on rented nodes", second_attempt["pool"] in _NODE_POOLS, second_attempt["pool"]
    )
    scenario_run.check(
        "the job resumes from the checkpoint that it saved before it left",
        second_attempt["resumeFrom"]["step"] >= notice_step,
        second_attempt["resumeFrom"],
    )
    job.check_good_end(attempts=2)


@dataclass(frozen=True)
class Scenario:
    """A scenario, and the hardware that it needs."""

    name: str
    play: Callable[[ScenarioRun], None]
    fleet: FleetShape

    @property
    def title(self) -> str:
        """The first line of the docstring of `play`."""
        return (self.play.__doc__ or "").partition("\n")[0]


_SLOW_REPAIRS: Final = FleetShape(nodes=3, delays={**FleetShape().delays, "replace": 30.0})
_NODE_GROUP: Final = FleetShape(nodes=0, node_groups=({"name": "workers", "instanceType": GROUP_TYPE, "count": 3},))

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("preemption", preemption, FleetShape(nodes=2)),
        Scenario("shared-node", shared_node, FleetShape(nodes=1)),
        Scenario("burst-home", return_to_committed, FleetShape(nodes=1)),
        Scenario("spot-reclaimed", spot_reclaimed, FleetShape(nodes=1)),
        Scenario("mixed-spot", mixed_spot, FleetShape(nodes=1)),
        Scenario("nowhere", no_capacity_anywhere, FleetShape(nodes=1)),
        Scenario("elastic", elastic, FleetShape(nodes=3)),
        Scenario("inference-spike", inference_spike, FleetShape(nodes=3)),
        Scenario("inference-burst", inference_burst, FleetShape(nodes=1)),
        Scenario("plan-ends", plan_ends, _PLAN_ENDS),
        Scenario("node-lost", node_lost, _SLOW_REPAIRS),
        Scenario("node-group", node_group, _NODE_GROUP),
        Scenario("place-taken", preempted_for_interrupted, _SLOW_REPAIRS),
    )
}


def run(scenario: Scenario, centre: DataCentre, *, say: Say = lambda _text: None) -> DrillResult:
    """Run a scenario in a new data centre, and check the outcome."""
    result = DrillResult(scenario.name, seed=0)
    stage = ScenarioRun(centre, result, say)
    try:
        await_all_nodes_ready(stage.client, centre)
        scenario.play(stage)
        stage.finish()
    except DrillTimeoutError as error:
        result.check("every awaited state was reached", False, str(error))
    return result


def run_alone(scenario: Scenario, *, say: Say = lambda _text: None) -> DrillResult:
    """Run a scenario in a data centre of its own."""
    folder = PROJECT / ".evenkeel" / f"scenario-{scenario.name}"
    with interruptible(), DataCentre.start(folder, fleet=scenario.fleet, say=say) as centre:
        return run(scenario, centre, say=say)


def main() -> int:
    """List the scenarios, or run some; return 0 if every check passed."""
    options = argparse.ArgumentParser(description="Run a scenario of a shared fleet and print its progress.")
    options.add_argument(
        "name", nargs="?", choices=[*SCENARIOS, "all"], help="scenario to run; if omitted, list the scenarios"
    )
    name = options.parse_args().name
    if name is None:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<15} {scenario.title}")
        print("\nmake scenarios RUN=preemption     run one scenario; RUN=all runs all")
        return 0
    chosen_scenarios = list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    try:
        return max(_run_and_report(scenario) for scenario in chosen_scenarios)
    except (EngineError, ClusterFailed) as failure:
        print(f"✖ {failure}", flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. All processes of the scenario have ended.")
        return 130


def _run_and_report(scenario: Scenario) -> int:
    print(f"── {scenario.name}: {scenario.title}", flush=True)
    began = time.monotonic()
    result = run_alone(scenario, say=lambda text: print(f"  {text}", flush=True))
    for expectation, holds, detail in result.checks:
        print(f"{'●' if holds else '✖'} {expectation}{'' if holds else f': {detail}'}", flush=True)
    failed_count = len(result.failures())
    print(
        f"{len(result.checks) - failed_count} checks passed, {failed_count} failed, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
