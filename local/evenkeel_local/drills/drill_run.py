"""A drill while it runs: its job, its nodes and its incidents."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, DataCentre, Say
from evenkeel_local.drills.checks import check_outcome
from evenkeel_local.drills.harness import (
    ENDED,
    JOB_SECONDS,
    SETTLED,
    DrillResult,
    Json,
    RepairCounters,
    TrainingWork,
    await_all_nodes_ready,
    last_step,
    node_of_rank,
    wait_for,
)

INCIDENT_SECONDS: Final = 150.0


class DrillRun:
    """One run of a drill: its job, nodes, faults and checks."""

    def __init__(self, result: DrillResult, centre: DataCentre, *, say: Say) -> None:
        self.name = result.drill
        self.centre = centre
        self.cluster = centre.cluster
        self.client = centre.client()
        self.seed = result.seed
        self.rng = random.Random(result.seed)
        self.say = say
        self.result = result
        self.work = TrainingWork()
        self.uri = ""
        self._faults: list[str] = []
        self._beside: list[str] = []
        self._injected_at = time.monotonic()
        await_all_nodes_ready(self.client, centre)
        self._before = RepairCounters.read(centre)
        self._earlier = {incident["incidentId"] for incident in self.incidents()}

    # ------------------------------------------------------------ the job

    def submit(self, training_work: TrainingWork, *, team: str = "") -> None:
        """Submit the job that the drill disturbs."""
        self.work = training_work
        self.uri = f"s3://{CHECKPOINTS_BUCKET}/drills/{self.name}-{self.seed}-{time.time_ns()}"
        self.result.job_id = self._submit(f"{self.name}-{self.seed}", training_work, self.uri, team)

    def submit_other(self, name: str, training_work: TrainingWork, *, team: str = "") -> str:
        """Submit another job, which the drill does not disturb; return its id."""
        uri = f"s3://{CHECKPOINTS_BUCKET}/drills/{self.name}-{self.seed}-{name}-{time.time_ns()}"
        job_id = self._submit(f"{self.name}-{self.seed}-{name}", training_work, uri, team)
        self._beside.append(job_id)
        return job_id

    def _submit(self, name: str, training_work: TrainingWork, uri: str, team: str) -> str:
        body = training_work.submission(name, uri) | ({"team": team} if team else {})
        job_id = str(self.client.post("/jobs", body)["jobId"])
        self.say(f"submitted {job_id}")
        return job_id

    def job(self, job_id: str = "") -> Json:
        """Return a job as the API shows it; by default the job that the drill disturbs."""
        job: Json = self.client.get(f"/jobs/{job_id or self.result.job_id}")
        return job

    def attempt(self, number: int) -> Json:
        """Return an attempt of the disturbed job; empty if it does not exist yet."""
        return next((dict(attempt) for attempt in self.job()["attempts"] if attempt["attempt"] == number), {})

    def step(self) -> int:
        """Return the newest step in the log of the current attempt."""
        return last_step(self.client, self.result.job_id)

    def wait_for_step(self, step: int) -> None:
        """Wait for a step in the log. The log may have it before Evenkeel knows that the job runs."""
        wait_for(f"step {step}", JOB_SECONDS, lambda: self.step() >= step)

    def await_random_step(self) -> None:
        """Wait for a random time in the first half of the job. In the second half, the job might end first."""
        moment = self.rng.randint(1, self.work.steps // 2) + self.rng.random()
        self.wait_for_step(int(moment))
        time.sleep((moment % 1) * self.work.step_seconds)
        state = self.job()["state"]
        self.check("the job ran when the fault was injected", state not in ENDED, state)

    def submit_and_choose_node(self, training_work: TrainingWork) -> Json:
        """Submit the job that the drill disturbs, wait for a random time, and return the node of a random rank."""
        self.submit(training_work)
        self.await_random_step()
        return self.node()

    def check(self, claim: str, holds: bool, detail: object) -> None:
        """Record a check with its observation."""
        self.result.check(claim, holds, str(detail))

    def node(self, rank: int | None = None) -> Json:
        """Return the node of a rank of the current attempt; by default of a random rank."""
        chosen_rank = self.rng.randrange(self.work.nodes) if rank is None else rank
        return self.cluster_node(node_of_rank(self.centre, self.job(), chosen_rank))

    def wait_for_end(self, job_id: str = "") -> Json:
        """Wait until a job has ended, and return it; by default the job that the drill disturbs."""

        def look() -> Json:
            job = self.job(job_id)
            return job if job["state"] in ENDED else {}

        ended_job: Json = wait_for("the job to end", JOB_SECONDS, look)
        self.result.seconds["jobEnded"] = time.monotonic() - self._injected_at
        return ended_job

    # ------------------------------------------------------------ the nodes

    def cluster_node(self, name: str) -> Json:
        """Return a node as the GPU cluster shows it; empty if it is gone."""
        return next((node for node in self.cluster.nodes() if name in (node["name"], node["instanceId"])), {})

    def accepted_repairs(self, instance_id: str) -> dict[str, int]:
        """Return how often the provider accepted each repair of a node, from any caller."""
        accepted_repairs = self.cluster.control("GET", "counters")["accepted"]
        return {action: counts[instance_id] for action, counts in accepted_repairs.items() if instance_id in counts}

    def inject_fault(self, fault: str, node: Json, **options: Any) -> str:
        """Inject a fault into a node. `finish` and `leave` clear it."""
        self._injected_at = time.monotonic()
        fault_id = str(self.cluster.inject(fault, node=node["name"], **options)["faultId"])
        self._faults.append(fault_id)
        self.say(f"{fault} on {node['name']}")
        return fault_id

    def clear_faults(self) -> None:
        """Clear every fault. Idempotent: yes."""
        while self._faults:
            self.cluster.clear(self._faults.pop())

    def clean_up(self) -> None:
        """Clean up after a drill that failed: clear its faults and cancel its jobs."""
        self.clear_faults()
        for job_id in filter(None, (self.result.job_id, *self._beside)):
            if self.job(job_id)["state"] not in ENDED:
                self.client.post(f"/jobs/{job_id}/cancel", {"reason": "the drill is over"})

    @contextmanager
    def inject_call_fault(self, effect: str, **rule: Any) -> Iterator[None]:
        """Make matching API calls fail inside the `with` block."""
        added_rule = self.cluster.control("POST", "call-faults", {"effect": effect, "times": None, **rule})
        try:
            yield
        finally:
            self.cluster.control("DELETE", f"call-faults/{added_rule['callFaultId']}")

    # ------------------------------------------------------------ the incidents

    def incidents(self) -> list[Json]:
        """Return the newest incidents."""
        return list(self.client.get("/incidents", pageSize=100)["items"])

    def new_incidents(self, instance_id: str = "") -> list[Json]:
        """Return the incidents since the start of the drill, oldest first; by default of all nodes."""
        return [
            incident
            for incident in reversed(self.incidents())
            if incident["incidentId"] not in self._earlier
            and instance_id in ("", incident["node"]["instanceId"], incident["replacementInstanceId"])
        ]

    def await_incident(self, condition: str, node: Json, holds: Callable[[Json], object]) -> Json:
        """Wait for an incident of a node that fulfils a condition."""

        def look() -> Json:
            incidents = self.new_incidents(node["instanceId"])
            return next((incident for incident in incidents if holds(incident)), {})

        incident: Json = wait_for(condition, INCIDENT_SECONDS, look)
        self.result.incident_id = incident["incidentId"]
        return incident

    def wait_until_settled(self, node: Json, state: str = "RECOVERED") -> Json:
        """Wait until the incident of a node is settled, and check its state."""
        incident = self.await_incident("the incident to settle", node, lambda document: document["state"] in SETTLED)
        self.result.seconds["incidentSettled"] = time.monotonic() - self._injected_at
        self.check("the incident ends in the expected state", incident["state"] == state, incident)
        return incident

    def timeline(self, incident: Json) -> list[Json]:
        """Return the entries of an incident's timeline."""
        return list(self.client.get(f"/incidents/{incident['incidentId']}/timeline")["entries"])

    def incident_detail(self, incident: Json) -> Json:
        """Return an incident with its evidence and decisions."""
        document: Json = self.client.get(f"/incidents/{incident['incidentId']}")
        return document

    # ------------------------------------------------------------ the end

    def finish(self, *, may_overlap: bool = False) -> None:
        """Wait for the end of the job, clear the faults, and check the outcome."""
        ended_job = self.wait_for_end()
        self.clear_faults()
        check_outcome(self.result, self.centre, ended_job, self.uri, self.work, self._before, may_overlap=may_overlap)
