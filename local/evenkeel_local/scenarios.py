"""`make scenarios`: stories of a fleet that is shared, rented and resized, each told while it happens and then checked.

    python -m evenkeel_local.scenarios               the list
    python -m evenkeel_local.scenarios preemption    one of them, in a data centre of its own; exit 1 if a check fails
    python -m evenkeel_local.scenarios all           all of them, one after the other

A drill breaks one thing and looks at one job; a scenario has several jobs that want the same machines. What must hold
afterwards is the same: right weights, no two attempts at once, nothing left half done, every decision replays.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.values import rfc3339
from evenkeel.runtime.site_policy import FRESH
from evenkeel_local import ACCOUNT_ID, PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, DataCentre, FleetShape, Say
from evenkeel_local.drills import (
    ENDED,
    SETTLED,
    DrillResult,
    DrillTimeoutError,
    TrainingWork,
    await_all_nodes_ready,
    last_step,
    node_of_rank,
    read_object,
)
from evenkeel_local.drills.checks import check_dead_letters, check_decisions, leftover_records
from evenkeel_local.engine import EngineError
from evenkeel_local.gpu_cluster import ClusterFailed
from evenkeel_local.processes import interruptible
from evenkeel_local.reference_run import reference_digest

Json = dict[str, Any]

WAIT_SECONDS: Final = 150.0
_END_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.3
_LEFT_SECONDS: Final = 60.0
_SERVES: Final = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"


class ScenarioRun:
    """One scenario while it runs: its jobs, what is told of them, and what is checked."""

    def __init__(self, centre: DataCentre, result: DrillResult, say: Say) -> None:
        self.centre = centre
        self.client = centre.client()
        self.result = result
        self.say = say
        self.jobs: list[ScenarioJob] = []
        self.meter: CostMeter | None = None
        self._seen_entries: set[tuple[str, str]] = set()

    # ------------------------------------------------------------ the stage

    def policy(self, changes: Json, reason: str) -> None:
        """Put a site's policy in force everywhere."""
        self.note("you", f"Put a policy in force: {reason}.")
        self.client.post(f"/clusters/{self.client.fleet}/policy", {"changes": changes, "reason": reason})
        time.sleep(FRESH.total_seconds())

    def classes(self, **values: int) -> None:
        """Set priority classes up, and who leads every team."""
        people = [{"principal": f"arn:aws:iam::{ACCOUNT_ID}:user/operator", "role": "lead"}]
        quotas = {"priorityClasses": values, "members": people}
        path = f"/clusters/{self.client.fleet}/quotas"
        self.client.change("PUT", path, {"quotas": quotas, "reason": "the scenario's"}, version=0)

    def team(self, name: str, gpus: int, instance_type: str, **queue: Any) -> None:
        """Set a team up with a quota."""
        groups = [{instance_type: {"nvidia.com/gpu": gpus}}]
        team = {"name": name, "queue": {"groups": groups, "preemption": {"within": "LowerPriority"}} | queue}
        self.client.change("PUT", f"/teams/{name}/quota", {"team": team, "reason": "the scenario's"}, version=0)
        self.note("you", f"Team {name} has {gpus} GPUs.")

    def submit(self, name: str, work: TrainingWork, **fields: Any) -> ScenarioJob:
        """Submit a job whose checkpoints are its own; `fields` go into the request."""
        uri = f"s3://{CHECKPOINTS_BUCKET}/scenarios/{name}-{time.time_ns()}"
        job_id = self.client.post("/jobs", work.submission(name, uri) | fields)["jobId"]
        act = ScenarioJob(self, name, str(job_id), uri, work)
        self.jobs.append(act)
        self.note("you", f"Submitted {name} on {work.nodes} {'node' if work.nodes == 1 else 'nodes'}: {job_id}.")
        return act

    def serve(self, name: str, replicas: int, *tolerations: Json) -> None:
        """Scale a Deployment that serves on whole nodes, as its own autoscaler would."""
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

    def serving(self, name: str) -> int:
        """Return how many replicas run."""
        return len(self.served_on(name))

    def served_on(self, name: str) -> list[str]:
        """Return the nodes on which replicas run."""
        pods = self.centre.cluster.get(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{name}")["items"]
        return [str(pod["spec"]["nodeName"]) for pod in pods if pod["status"].get("phase") == "Running"]

    def rented_for_serving(self) -> list[Json]:
        """Return what is, or was, rented for Deployments."""
        found = self.client.get("/status")["serving"]
        return [rental for each in found for rental in each["rentals"]]

    # ------------------------------------------------------------ watching

    def wait(self, what: str, look: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Poll until `look` returns something; print the timelines of the jobs meanwhile.

        Raises:
            DrillTimeoutError: the wait timed out.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen = look()
            self.print_timeline()
            if self.meter:
                self.meter.read(self.centre)
            if seen:
                return seen
            if time.monotonic() > deadline:
                raise DrillTimeoutError(f"waited {seconds:.0f} s for {what}")
            time.sleep(_POLL_SECONDS)

    def print_timeline(self) -> None:
        """Print the new timeline entries of the jobs in order of time."""
        fresh = []
        for act in self.jobs:
            for entry in self.client.get(f"/jobs/{act.job_id}/timeline")["entries"]:
                place = (act.job_id, f"{entry['at']} {entry['text']}")
                if place not in self._seen_entries and entry["kind"] != "submitted":  # that was told already
                    self._seen_entries.add(place)
                    fresh.append((str(entry["at"]), act.name, str(entry["text"])))
        for at, name, text in sorted(fresh):
            self.note(name, self._by_name(text), at[11:19])

    def _by_name(self, text: str) -> str:
        for act in self.jobs:
            text = text.replace(act.job_id, act.name)
        return text

    def note(self, who: str, text: str, at: str = "") -> None:
        """Print one line: the time, the actor and the text."""
        self.say(f"{at or datetime.now(UTC).strftime('%H:%M:%S')}  {who:<9} {text}")

    def check(self, what: str, holds: object, seen: object) -> None:
        """Note whether something holds."""
        self.result.check(what, bool(holds), str(seen))

    def finish(self) -> None:
        """Check everything that must hold once all jobs have ended."""
        for act in self.jobs:
            if act.show()["state"] not in ENDED:
                self.client.post(f"/jobs/{act.job_id}/cancel", {"reason": "the scenario is over"})
        for act in self.jobs:
            act.end()
        await_all_nodes_ready(self.client, self.centre)
        deadline = time.monotonic() + _LEFT_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.print_timeline()
        self.check("no wait, charge, execution, rented node or limit is left", not left, left or "nothing")
        if self.meter:
            self._check_money(self.meter)
        check_dead_letters(self.result, self.centre)
        check_decisions(self.result, self.centre)

    def _left(self) -> list[str]:
        unpaid = [
            f"rental {each['rental']} of {act.name}"
            for act in self.jobs
            for each in act.show()["rentals"]
            if not each["endedAt"]
        ]
        unpaid += [f"rental {each['rental']} of serving" for each in self.rented_for_serving() if not each["endedAt"]]
        return [*leftover_records(self.centre), *leftover_rentals(self.centre), *unpaid]

    def _check_money(self, meter: CostMeter) -> None:
        """Check each bill against the price table and the machines that were seen, and the caps against both."""
        rentals = [rental for act in self.jobs for rental in act.show()["rentals"]] + self.rented_for_serving()
        wrong = [
            f"{rental['costUsd']} in place of {expected_cost_usd(rental)}"
            for rental in rentals
            if not has_expected_cost(rental)
        ]
        whole = sum((Decimal(rental["costUsd"] or 0) for rental in rentals), Decimal(0))
        self.note("you", f"Total cost of rented nodes: ${whole:.2f}.")
        self.check(
            "every bill equals price x started seconds x nodes, to the micro-dollar", not wrong, wrong or f"${whole}"
        )
        used = meter.least_usd()
        self.check(
            "the bills are at least the cost of the observed run time of the nodes", whole >= used, f"{whole}, {used}"
        )
        most = Decimal(meter.most_micros_per_hour) / 1_000_000
        within = meter.most_micros_per_hour <= CAP_MICROS_PER_HOUR
        self.check(
            f"rented nodes never cost more than $120 per hour: ${most:.2f} at the peak", within, f"${most} an hour"
        )


class CostMeter:
    """Cost of the rented nodes, measured in the cluster independently of Evenkeel."""

    def __init__(self) -> None:
        self.most_micros_per_hour = 0
        self._seen: dict[str, tuple[str, float, float]] = {}
        """Machine → its pool, and when it was seen first and last."""

    def read(self, centre: DataCentre) -> None:
        """Look at what is rented now."""
        claims = centre.cluster.get("/apis/karpenter.sh/v1/nodeclaims")["items"]
        pools = {
            str(each["metadata"]["name"]): str(each["metadata"]["labels"][_POOL_LABEL])
            for each in claims
            if each.get("status", {}).get("providerID")
        }
        now = time.monotonic()
        for name, pool in pools.items():
            first = self._seen[name][1] if name in self._seen else now
            self._seen[name] = (pool, first, now)
        self.most_micros_per_hour = max(self.most_micros_per_hour, sum(PRICES[pool] for pool in pools.values()))

    def least_usd(self) -> Decimal:
        """Return what the machines cost at least: whole seconds between the first and the last look at each."""
        parts = sum(PRICES[pool] * math.floor(last - first) for pool, first, last in self._seen.values())
        return Decimal(parts) / _PARTS


def expected_cost_usd(rental: Json) -> Decimal:
    """Work out what a rental cost, from when its offers were open and from the price table alone."""
    parts = 0
    for offer in rental["offers"]:
        if offer["joinedNodes"]:
            lasted = datetime.fromisoformat(offer["closedAt"]) - datetime.fromisoformat(offer["openedAt"])
            parts += PRICES[offer["pool"]] * offer["joinedNodes"] * max(60, math.ceil(lasted.total_seconds()))
    return Decimal(parts) / _PARTS


def has_expected_cost(rental: Json) -> bool:
    """Whether a rental has ended with the bill that it ought to have."""
    return bool(rental["costUsd"] == f"{expected_cost_usd(rental):.6f}")


@dataclass
class ScenarioJob:
    """One job of a scenario."""

    scenario_run: ScenarioRun
    name: str
    job_id: str
    uri: str
    work: TrainingWork

    def show(self) -> Json:
        """Return the job as the API shows it."""
        found: Json = self.scenario_run.client.get(f"/jobs/{self.job_id}")
        return found

    def why(self) -> Json:
        """Return why it waits, or what was decided last."""
        found: Json = self.scenario_run.client.get(f"/jobs/{self.job_id}/why")
        return found

    def attempt(self, number: int) -> Json:
        """Return one of its attempts."""
        return next(dict(each) for each in self.show()["attempts"] if each["attempt"] == number)

    def timeline(self) -> str:
        """Return the timeline of the job as one text."""
        entries = self.scenario_run.client.get(f"/jobs/{self.job_id}/timeline")["entries"]
        return " ".join(str(entry["text"]) for entry in entries)

    def step(self) -> int:
        """Return the newest step in the log of its current attempt."""
        return last_step(self.scenario_run.client, self.job_id)

    def reach(self, step: int) -> ScenarioJob:
        """Wait for a step."""
        self.scenario_run.wait(f"step {step} of {self.name}", lambda: self.step() >= step)
        return self

    def until(self, what: str, holds: Callable[[Json], object], seconds: float = WAIT_SECONDS) -> Json:
        """Wait until something holds of the job, and return it."""

        def look() -> Json:
            seen = self.show()
            if holds(seen):
                return seen
            if seen["state"] in ENDED:
                raise DrillTimeoutError(f"waited for {self.name} {what}, but it is {seen['state']}: {seen['reason']}")
            return {}

        found: Json = self.scenario_run.wait(f"{self.name} {what}", look, seconds)
        return found

    def at_size(self, nodes: int) -> Json:
        """Wait until it runs on so many nodes."""
        return self.until(
            f"to run on {nodes} nodes", lambda job: (job["state"], job["currentNodes"]) == ("RUNNING", nodes)
        )

    def node(self, rank: int) -> str:
        """Return the name of the node that a rank of its current attempt runs on."""
        return node_of_rank(self.scenario_run.centre, self.show(), rank)

    def end(self) -> Json:
        """Wait until it has ended."""
        return self.until("to end", lambda job: job["state"] in ENDED, _END_SECONDS)

    def ends_well(self, attempts: int) -> Json:
        """Wait for its end, and check that it ends with the weights of an undisturbed run, in so many attempts."""
        job = self.end()
        document = read_object(self.scenario_run.centre, self.uri, f"result/attempt={job['currentAttempt']}.json")
        seen = json.loads(document)["digest"] if document else "no result"
        right = reference_digest(self.work.nodes, self.work.steps, self.work.seed)
        self.scenario_run.check(
            f"{self.name} succeeds", job["state"] == "SUCCEEDED", f"{job['state']}: {job['reason']}"
        )
        self.scenario_run.check(
            f"the weights of {self.name} equal those of an undisturbed run", seen == right, f"{seen} against {right}"
        )
        self.scenario_run.check(
            f"{self.name} took {attempts} attempts", job["currentAttempt"] == attempts, job["reason"]
        )
        self.scenario_run.check(
            f"{self.name} has no application failure", not job["applicationFailures"], job["applicationFailures"]
        )
        return job


def leftover_rentals(centre: DataCentre) -> list[str]:
    """Return what renting has left: machines, capacity pods, limits."""
    get = centre.cluster.get
    pools = get("/apis/karpenter.sh/v1/nodepools")["items"]
    rented = [pool for pool in pools if pool["metadata"]["name"] in _NODE_POOLS]
    claims = get("/apis/karpenter.sh/v1/nodeclaims")["items"] if rented else []
    pods = get("/api/v1/pods?labelSelector=evenkeel.io%2Frental")["items"]
    open_ones = [pool for pool in rented if pool["spec"]["limits"]["nvidia.com/gpu"] != "0"]
    return [str(each["metadata"]["name"]) for each in (*claims, *pods, *open_ones)]


# ---------------------------------------------------------------- the scenarios

TYPE: Final = FleetShape().instance_type
LONG: Final = TrainingWork(nodes=2, steps=120, checkpoint_every=4, step_seconds=0.15)
SHORT: Final = TrainingWork(nodes=2, steps=12, checkpoint_every=4, step_seconds=0.1)


def preemption(scenario_run: ScenarioRun) -> None:
    """Committed capacity is full: a job of a higher class preempts a lower one, which saves and later resumes."""
    scenario_run.classes(low=1, high=100)
    scenario_run.team("red", 16, TYPE)
    low = scenario_run.submit("low", LONG, team="red", priorityClass="low").reach(9)
    high = scenario_run.submit("high", SHORT, team="red", priorityClass="high")
    high.ends_well(attempts=1)
    low.ends_well(attempts=2)
    stopped, resumed = low.attempt(1), low.attempt(2)
    scenario_run.check(
        "the reason of low names the job that preempts it", high.job_id in stopped["reason"], stopped["reason"]
    )
    scenario_run.check(
        "low resumes from the checkpoint that it saved", resumed["resumeFrom"]["step"] >= 8, resumed["resumeFrom"]
    )


SIZES: Final = {"minNodes": 1, "maxNodes": 3}


def elastic(scenario_run: ScenarioRun) -> None:
    """Idle nodes: a job grows. For a job of a higher class it shrinks instead of ending, then grows back."""
    scenario_run.classes(low=1, high=100)
    scenario_run.team("red", 24, TYPE)
    work = TrainingWork(nodes=2, steps=1000, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("elastic", work, team="red", priorityClass="low", elastic=SIZES)
    job.at_size(3)
    job.reach(job.step() + 5)
    high = scenario_run.submit(
        "urgent", TrainingWork(nodes=2, steps=30, step_seconds=0.1), team="red", priorityClass="high"
    )
    job.at_size(1)
    high.ends_well(attempts=1)
    job.at_size(3)
    ended = job.ends_well(attempts=4)
    sizes = [each["gpus"] // 8 for each in reversed(ended["attempts"])]
    scenario_run.check("the job ran on 2, 3, 1 and 3 nodes", sizes == [2, 3, 1, 3], sizes)


def node_lost(scenario_run: ScenarioRun) -> None:
    """A node is lost and there is no spare: the job continues with fewer nodes during the replacement."""
    scenario_run.classes(low=1)
    scenario_run.team("red", 24, TYPE)
    slow = {
        "jobs": {"expectedReplaceSeconds": 120},
        "repair": {"replaceDeadlineSeconds": 90},
        "scheduling": {"elastic": {"spareWaitSeconds": 15}},
    }
    scenario_run.policy(slow, "repairs are slow in this scenario")
    work = TrainingWork(nodes=3, steps=1000, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("elastic", work, team="red", priorityClass="low", elastic=SIZES).reach(9)
    node = job.node(2)
    scenario_run.centre.cluster.inject("gpu-xid79", node=node)
    scenario_run.note("world", f"A GPU of {node} falls off the bus (Xid 79).")
    job.at_size(2)
    instance_id = node.removeprefix("hyperpod-")

    def incident() -> Json:
        found = scenario_run.client.get("/incidents", pageSize=100)["items"]
        return next((each for each in found if each["node"]["instanceId"] == instance_id), {})

    open_still = incident()
    scenario_run.check(
        "the job runs while its node is repaired", open_still["state"] not in SETTLED, open_still["state"]
    )
    scenario_run.wait("the incident to settle", lambda: incident()["state"] in SETTLED)
    job.at_size(3)
    job.ends_well(attempts=3)
    scenario_run.check("the plan was to shrink the job", "SHRINK" in job.timeline(), job.timeline())


def preempted_for_interrupted(scenario_run: ScenarioRun) -> None:
    """A high-class job loses a node and there is no spare: Evenkeel preempts a lower job, which later resumes."""
    scenario_run.classes(low=1, high=100)
    scenario_run.team("red", 24, TYPE)
    slow = {"jobs": {"expectedReplaceSeconds": 600}, "repair": {"replaceDeadlineSeconds": 90}}
    scenario_run.policy(slow, "repairs are slow in this scenario")
    work = TrainingWork(nodes=2, steps=300, checkpoint_every=4, step_seconds=0.15)
    high = scenario_run.submit("high", work, team="red", priorityClass="high", graceSeconds=20).reach(9)
    work = TrainingWork(nodes=1, steps=300, checkpoint_every=4, step_seconds=0.15)
    low = scenario_run.submit("low", work, team="red", priorityClass="low", graceSeconds=20).reach(9)
    node, place = high.node(1), low.node(0)
    scenario_run.centre.cluster.inject("gpu-xid79", node=node)
    scenario_run.note("world", f"A GPU of {node} falls off the bus (Xid 79).")
    high.until("to run again", lambda job: (job["state"], job["currentAttempt"]) == ("RUNNING", 2))
    waits = low.show()
    scenario_run.check("low waits while high runs", waits["state"] == "PENDING", f"{waits['state']}: {waits['reason']}")
    low.until("to run again", lambda job: (job["state"], job["currentAttempt"]) == ("RUNNING", 2))
    high.ends_well(attempts=2)
    low.ends_well(attempts=2)
    taken = [each["name"] for each in high.attempt(2)["nodes"]]
    scenario_run.check("high runs where low ran", place in taken and node not in taken, taken)
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
    scenario_run.classes(low=1)
    scenario_run.team("red", 24, TYPE)
    chat = {"cluster": scenario_run.centre.cluster.eks_cluster_name, "namespace": "default", "name": "chat"}
    scenario_run.policy({"scheduling": {"serving": [chat]}}, "default/chat serves and has priority over training")
    work = TrainingWork(nodes=3, steps=800, checkpoint_every=4, step_seconds=0.12)
    job = scenario_run.submit("training", work, team="red", priorityClass="low", elastic=SIZES).reach(9)
    scenario_run.serve("chat", 2)
    job.at_size(1)
    scenario_run.wait("both replicas to run", lambda: scenario_run.serving("chat") == 2)
    scenario_run.note("serving", "Both replicas run, on nodes that training released.")
    scenario_run.serve("chat", 0)
    job.at_size(3)
    ended = job.ends_well(attempts=3)
    sizes = [each["gpus"] // 8 for each in reversed(ended["attempts"])]
    scenario_run.check("the job ran on 3, 1 and 3 nodes", sizes == [3, 1, 3], sizes)
    scenario_run.check(
        "the timeline names the Deployment that gets the nodes",
        "The resize frees nodes for default/chat." in job.timeline(),
        job.timeline(),
    )


RENTED: Final = "p5.48xlarge"
HOLDING_JOB: Final = TrainingWork(nodes=1, steps=3000, checkpoint_every=4, step_seconds=0.15)
"""Until it is cancelled."""
URGENT: Final = TrainingWork(nodes=1, steps=400, checkpoint_every=4, step_seconds=0.15)
PRICES: Final = {"burst-spot": 22_000_000, "burst-on-demand": 55_040_000}
"""Of a node, in micro-dollars an hour."""
CAP_MICROS_PER_HOUR: Final = 120_000_000
_NODE_POOLS: Final = tuple(PRICES)
_POOL_LABEL: Final = "karpenter.sh/nodepool"
_PARTS: Final = 3_600_000_000
"""Micro-dollars an hour times seconds, in a dollar."""


def _add_node_pools(
    scenario_run: ScenarioRun, taint: Json | None = None, burst: Json | None = None, **other: Any
) -> None:
    """Give the fleet two NodePools that nothing is rented from yet, and say what may be; `other` is more of policy."""
    taints = [taint] if taint else []
    market = {"burst-spot": "spot", "burst-on-demand": "on-demand"}
    for name in _NODE_POOLS:
        terms = {"karpenter.sh/capacity-type": market[name], "node.kubernetes.io/instance-type": RENTED}
        requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in terms.items()]
        node_class = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        spec = {
            "limits": {"nvidia.com/gpu": "0"},
            "template": {"spec": {"requirements": requirements, "nodeClassRef": node_class, "taints": taints}},
            "disruption": {"consolidateAfter": "Never"},
        }
        scenario_run.centre.cluster.apply(
            [{"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}]
        )
    pools = [
        {
            "name": name,
            "cluster": scenario_run.centre.cluster.eks_cluster_name,
            "market": market[name],
            "instanceType": RENTED,
            "zone": "us-west-2a",
            "acceleratorsPerNode": 8,
            "mostNodes": 2,
            "microsPerNodeHour": price,
            "launch": {"p50Seconds": 2, "p90Seconds": 4},
            "place": {},
            "taints": [f"{each['key']}={each['value']}:{each['effect']}" for each in taints],
        }
        for name, price in PRICES.items()
    ]
    may = {
        "fleetCapMicrosPerHour": CAP_MICROS_PER_HOUR,
        "otherTeamCapMicrosPerHour": CAP_MICROS_PER_HOUR,
        "otherDelayMicrosPerHour": 100_000_000,
        "otherExpectedRunSeconds": 3600,
    }
    may |= burst or {}
    scenario_run.policy(
        {"burst": {"pools": pools, **may}, **other}, "Evenkeel may rent nodes for at most $120 per hour"
    )
    scenario_run.meter = CostMeter()


def return_to_committed(scenario_run: ScenarioRun) -> None:
    """Committed capacity is full: an urgent job runs on rented nodes, and migrates back when capacity is free."""
    _add_node_pools(scenario_run)
    first = scenario_run.submit("baseline", HOLDING_JOB).reach(9)
    urgent = scenario_run.submit("urgent", URGENT)
    urgent.reach(9)
    rented = urgent.attempt(1)
    scenario_run.check("urgent runs on rented nodes", rented["pool"] in _NODE_POOLS, rented["pool"])
    scenario_run.client.post(f"/jobs/{first.job_id}/cancel", {"reason": "urgent needs its node"})
    scenario_run.note("you", "Cancelled baseline: urgent needs its node.")
    urgent.ends_well(attempts=2)
    back = urgent.attempt(2)
    scenario_run.check("urgent migrated back to committed capacity", back["pool"] == FleetShape().group, back["pool"])
    scenario_run.check(
        "the reason says so",
        "migrates back to committed capacity" in urgent.attempt(1)["reason"],
        urgent.attempt(1)["reason"],
    )
    scenario_run.check(
        "Evenkeel rented for urgent exactly once", len(urgent.show()["rentals"]) == 1, urgent.show()["rentals"]
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
    training = scenario_run.submit("baseline", HOLDING_JOB).reach(9)
    own = training.node(0)
    scenario_run.serve("chat", 2, {**taint, "operator": "Equal"})
    scenario_run.wait("both replicas to run", lambda: scenario_run.serving("chat") == 2)
    # A replica may stand on its node a moment before that is handed over.
    rented = scenario_run.wait(
        "both rented nodes to be assigned",
        lambda: (
            names
            if len(names := [one for each in scenario_run.rented_for_serving() for one in each["nodeNames"]]) > 1
            else []
        ),
    )
    nodes = scenario_run.served_on("chat")
    scenario_run.note("serving", f"Both replicas run on {' and '.join(nodes)}.")
    scenario_run.check(
        "each replica has a rented node of its own", sorted(nodes) == sorted(rented), f"{nodes} of {rented}"
    )
    scenario_run.check("training still runs", training.show()["state"] == "RUNNING", training.show()["reason"])
    scenario_run.serve("chat", 1, {**taint, "operator": "Equal"})
    going = scenario_run.wait(
        "one rental to end", lambda: [each for each in scenario_run.rented_for_serving() if each["endedAt"]]
    )
    scenario_run.check(
        "the returned node had no replica", going[0]["nodeNames"] != scenario_run.served_on("chat"), going
    )
    scenario_run.serve("chat", 0)
    scenario_run.wait(
        "the other rental to end", lambda: all(each["endedAt"] for each in scenario_run.rented_for_serving())
    )
    scenario_run.check("training kept its node", training.node(0) == own, training.node(0))
    scenario_run.client.post(f"/jobs/{training.job_id}/cancel", {"reason": "seen enough"})


def spot_reclaimed(scenario_run: ScenarioRun) -> None:
    """A spot node gets its interruption notice: the job saves in time and continues on rented on-demand nodes."""
    _add_node_pools(scenario_run)
    first = scenario_run.submit("baseline", HOLDING_JOB).reach(9)
    urgent = scenario_run.submit("urgent", URGENT).reach(9)
    told_at = urgent.step()
    scenario_run.centre.cluster.inject("spot-reclaim", node=urgent.node(0))
    scenario_run.note("world", f"The spot node of urgent gets its interruption notice at step {told_at}.")
    urgent.until("to start again", lambda job: job["currentAttempt"] > 1)
    scenario_run.client.post(f"/jobs/{first.job_id}/cancel", {"reason": "seen enough"})
    ended = urgent.end()
    pools = [each["pool"] for each in reversed(ended["attempts"])]
    urgent.ends_well(attempts=ended["currentAttempt"])
    scenario_run.check("urgent moved from spot to on-demand", pools[:2] == ["burst-spot", "burst-on-demand"], pools)
    resumed = urgent.attempt(2)["resumeFrom"]
    scenario_run.check(
        "urgent saved a checkpoint before the deadline of the notice", resumed["step"] >= told_at, resumed
    )
    scenario_run.check(
        "Evenkeel rented for urgent exactly twice", len(urgent.show()["rentals"]) == 2, urgent.show()["rentals"]
    )


def nowhere(scenario_run: ScenarioRun) -> None:
    """No pool has capacity: the job waits, shows why, costs nothing, and starts on free committed capacity."""
    _add_node_pools(scenario_run)
    for market in ("spot", "on-demand"):
        none = {"instanceType": RENTED, "zone": "us-west-2a", "capacityType": market, "machines": 0}
        scenario_run.centre.cluster.control("POST", "offerings", none)
    scenario_run.note("world", "No pool has capacity to rent.")
    work = TrainingWork(nodes=1, steps=200, checkpoint_every=4, step_seconds=0.15)
    first = scenario_run.submit("baseline", work).reach(4)
    urgent = scenario_run.submit("urgent", work)
    asked = urgent.until("to be refused", lambda job: job["rentals"] and job["rentals"][0]["endedAt"])
    rental = asked["rentals"][0]
    scenario_run.check(
        "every pool refused the request", all(each["refused"] for each in rental["offers"]), rental["offers"]
    )
    scenario_run.check("the refused rental costs nothing", rental["costUsd"] == "0.000000", rental["costUsd"])
    waiting = urgent.until("to say why it waits", lambda job: "No pool can be rented" in job["reason"])
    scenario_run.note("urgent", waiting["reason"])
    scenario_run.check("the reason gives the expected wait", "waits about" in waiting["reason"], waiting["reason"])
    first.ends_well(attempts=1)
    urgent.ends_well(attempts=1)


PLAN_SECONDS: Final = 150
"""For which the training plan holds its machine once the policy is in force."""


def plan_ends(scenario_run: ScenarioRun) -> None:
    """The training plan of the committed capacity ends: the job leaves in time and continues on rented nodes."""
    left_by = datetime.now(UTC) + FRESH + timedelta(seconds=PLAN_SECONDS)
    plan = {
        "cluster": scenario_run.centre.cluster.eks_cluster_name,
        "pool": FleetShape().group,
        "startsAt": rfc3339(left_by - timedelta(days=30)),
        "endsAt": rfc3339(left_by + timedelta(seconds=Reservation.model_fields["closing_seconds"].default)),
    }
    scenario_run.note("world", f"Jobs must leave the training plan by {left_by:%H:%M:%S}.")
    _add_node_pools(scenario_run, scheduling={"reservations": [plan]})
    work = TrainingWork(nodes=1, steps=1000, checkpoint_every=4, step_seconds=0.15)
    job = scenario_run.submit("training", work, graceSeconds=10)
    job.reach(9)
    scenario_run.check(
        "the job starts on the training plan", job.attempt(1)["pool"] == FleetShape().group, job.attempt(1)["pool"]
    )
    job.until("to receive the request to leave", lambda seen: seen["currentAttempt"] > 1 or "leaves" in seen["reason"])
    told_at = job.step()
    job.until("to run on rented nodes", lambda seen: seen["currentAttempt"] > 1 and seen["state"] == "RUNNING")
    first, second = job.attempt(1), job.attempt(2)
    scenario_run.check("the job left in time", datetime.fromisoformat(first["endedAt"]) < left_by, first["endedAt"])
    scenario_run.check("the reason says so", "The reservation of" in first["reason"], first["reason"])
    scenario_run.check("the job continues on rented nodes", second["pool"] in _NODE_POOLS, second["pool"])
    scenario_run.check(
        "the job resumes from the checkpoint that it saved before it left",
        second["resumeFrom"]["step"] >= told_at,
        second["resumeFrom"],
    )
    job.ends_well(attempts=2)


@dataclass(frozen=True)
class Scenario:
    """One scenario."""

    name: str
    title: str
    play: Callable[[ScenarioRun], None]
    fleet: FleetShape = field(default_factory=FleetShape)


_SLOW_REPAIRS: Final = {**FleetShape().delays, "replace": 30.0}

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "preemption",
            "Committed capacity is full: a job of a higher class preempts a lower one, which saves and later resumes.",
            preemption,
            FleetShape(nodes=2),
        ),
        Scenario(
            "burst-home",
            "Committed capacity is full: an urgent job runs on rented nodes, and migrates back when capacity is free.",
            return_to_committed,
            FleetShape(nodes=1),
        ),
        Scenario(
            "spot-reclaimed",
            "A spot node gets its interruption notice: the job saves in time and continues on rented on-demand nodes.",
            spot_reclaimed,
            FleetShape(nodes=1),
        ),
        Scenario(
            "nowhere",
            "No pool has capacity: the job waits, shows why, costs nothing, and starts on free committed capacity.",
            nowhere,
            FleetShape(nodes=1),
        ),
        Scenario(
            "elastic",
            "Idle nodes: a job grows. For a job of a higher class it shrinks instead of ending, then grows back.",
            elastic,
            FleetShape(nodes=3),
        ),
        Scenario(
            "inference-spike",
            "Serving needs more replicas than nodes are free: training shrinks, then grows back.",
            inference_spike,
            FleetShape(nodes=3),
        ),
        Scenario(
            "inference-burst",
            "Serving needs more than committed capacity, and no job can shrink: Evenkeel rents nodes and returns them.",
            inference_burst,
            FleetShape(nodes=1),
        ),
        Scenario(
            "plan-ends",
            "The training plan of the committed capacity ends: the job leaves in time and continues on rented nodes.",
            plan_ends,
            FleetShape(nodes=1),
        ),
        Scenario(
            "node-lost",
            "A node is lost and there is no spare: the job continues with fewer nodes during the replacement.",
            node_lost,
            FleetShape(nodes=3, delays=_SLOW_REPAIRS),
        ),
        Scenario(
            "place-taken",
            "A high-class job loses a node and there is no spare: Evenkeel preempts a lower job, which later resumes.",
            preempted_for_interrupted,
            FleetShape(nodes=3, delays=_SLOW_REPAIRS),
        ),
    )
}


def run(scenario: Scenario, centre: DataCentre, *, say: Say = lambda _text: None) -> DrillResult:
    """Run one scenario on a running data centre that nobody has set up yet, and check everything that must hold."""
    result = DrillResult(scenario.name, seed=0)
    scenario_run = ScenarioRun(centre, result, say)
    try:
        await_all_nodes_ready(scenario_run.client, centre)
        scenario.play(scenario_run)
        scenario_run.finish()
    except DrillTimeoutError as late:
        result.check("every awaited state was reached", False, str(late))
    return result


def rehearse(scenario: Scenario, *, say: Say = lambda _text: None) -> DrillResult:
    """Run one scenario in a data centre of its own, which ends with it."""
    folder = PROJECT / ".evenkeel" / f"scenario-{scenario.name}"
    with interruptible(), DataCentre.start(folder, fleet=scenario.fleet, say=say) as centre:
        return run(scenario, centre, say=say)


def main() -> int:
    """List the scenarios, or run some; return 0 if every check held."""
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
    chosen = list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
    try:
        return max(_run_and_report(scenario) for scenario in chosen)
    except (EngineError, ClusterFailed) as failed:
        print(f"✖ {failed}", flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. All processes of the scenario have ended.")
        return 130


def _run_and_report(scenario: Scenario) -> int:
    print(f"── {scenario.name}: {scenario.title}", flush=True)
    began = time.monotonic()
    result = rehearse(scenario, say=lambda text: print(f"  {text}", flush=True))
    for what, holds, seen in result.checks:
        print(f"{'●' if holds else '✖'} {what}{'' if holds else f': {seen}'}", flush=True)
    failed = len(result.failures())
    print(f"{len(result.checks) - failed} checks passed, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
