"""Probes: for each function, situations in which it needs the permissions of its role.

A probe prepares its own situation (new ids, rows as the other services write them) and returns the input of the
function. It can be repeated at once, even if the previous invocation was refused halfway.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from evenkeel.adapters.object_fields import QUEUE_LABEL, RENTAL_LABEL
from evenkeel.adapters.workload_resources import RESOURCES
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.burst_check_protocol import CONTROLLER
from evenkeel.domain.external.unmanaged_workloads import RESUME_ALLOWED, RESUME_LABEL
from evenkeel.domain.health.incidents import (
    OPEN_STATES,
    AffectedJob,
    Block,
    FactKind,
    Incident,
    IncidentState,
    NodeFact,
    StageTimes,
    StoredRecoveryPlan,
)
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedPod
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.jobs.spec import ElasticSpec, JobSpec
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT, KARPENTER_LABEL, RESERVATION_LABELS, FleetNode, NodeLife
from evenkeel.domain.quotas.teams import Budget, Team
from evenkeel.domain.recovery.guardrails import Register, RegisterEntry
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedJob, UnmanagedRestart
from evenkeel.domain.renting.cost import JobDemand, SpendLimits
from evenkeel.domain.renting.placement import PlacementFacts
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState
from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.domain.waiting import ConditionKind, Wait, WaitCondition
from evenkeel.events import aws_health
from evenkeel.ports import CapacitySpec, LaunchSpec, Row, Table
from evenkeel.runtime.wiring import load_policy
from evenkeel.services.admin import change_policy
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import (
    fleet_rows,
    incident_rows,
    job_rows,
    quota_rows,
    subject_rows,
    unmanaged_restart_rows,
)
from evenkeel_local import ACCOUNT_ID
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, FLEET, NAMESPACE, SERVICE_ACCOUNT
from tests import fake_kueue
from tests.contract.example_jobs import EXAMPLES, RESTARTED
from tests.local.privilege.permission_bench import USERS_NAMESPACE, InvocationResult, PermissionBench
from tests.template.documents import Json
from tests.waiting import until

Prepare = Callable[[PermissionBench], Json]

MARKED, REBOOTED, REPLACED, EXAMINED = 2, 3, 4, 0
"""Indexes of the nodes that a probe marks, reboots, replaces (always the last), and examines."""


@dataclass(frozen=True)
class PermissionProbe:
    """A situation of a function."""

    function: str
    name: str
    prepare: Prepare
    under: Callable[[PermissionBench], AbstractContextManager[None]] = lambda _stage: nullcontext()
    """Context set up before the situation; several consecutive runs share it."""
    during: Callable[[PermissionBench], AbstractContextManager[None]] = lambda _stage: nullcontext()
    """Context manager that is active while the function runs."""
    succeeds: Callable[[InvocationResult], bool] = lambda result: not result.error and not result.is_refused
    """Return whether the invocation did its work with every permission granted."""

    def __str__(self) -> str:
        return f"{self.function}-{self.name}"

    def run(self, stage: PermissionBench, *, alone: bool = False) -> InvocationResult:
        """Prepare the situation and invoke the function once; `alone` skips the additional context."""
        with self.under(stage):
            return self.repeat(stage, alone=alone)

    def repeat(self, stage: PermissionBench, *, alone: bool = False) -> InvocationResult:
        """Do the same as `run` inside an active `under` context."""
        payload = self.prepare(stage)
        with nullcontext() if alone else self.during(stage):
            return stage.invoke(self.function, payload)


PROBES: Final[list[PermissionProbe]] = []


def probe(function: str, **more: Any) -> Callable[[Prepare], Prepare]:
    """Register a situation of a function under the name of the preparing function."""

    def register(prepare: Prepare) -> Prepare:
        PROBES.append(PermissionProbe(function, prepare.__name__, prepare, **more))
        return prepare

    return register


def probes_of(function: str) -> list[PermissionProbe]:
    """Return the situations of a function."""
    return [probe for probe in PROBES if probe.function == function]


def now() -> datetime:
    return datetime.now(UTC)


# ---------------------------------------------------------------- rows, as the other services write them


def a_job(
    stage: PermissionBench, state: JobState, *, nodes: int = 1, kind: WorkloadKind = WorkloadKind.JOB, **changes: Any
) -> Job:
    job_id = stage.ids.new("job")
    spec = JobSpec(
        name="probe",
        kind=kind,
        image="registry/trainer:1",
        command=("python", "-c", "import time; time.sleep(600)"),
        nodes=nodes,
        checkpoint_uri=stage.checkpoint_uri(job_id),
        grace_seconds=1,
    )
    facts: dict[str, Any] = {
        "job_id": job_id,
        "spec": spec,
        "state": state,
        "submitted_at": now() - timedelta(minutes=1),
        "submitted_by": "user/probe",
        "cluster": stage.cluster_name,
        "namespace": NAMESPACE,
        "open_job_counters": ("principal#user/probe",),
    }
    return Job.model_validate({**facts, **changes})


def an_attempt(
    stage: PermissionBench, job: Job, state: AttemptState, number: int = 1, node: int = 0, **changes: Any
) -> Attempt:
    machine = stage.nodes[node]
    facts: dict[str, Any] = {
        "job_id": job.job_id,
        "attempt": number,
        "kind": job.spec.kind,
        "state": state,
        "cluster": job.cluster,
        "namespace": job.namespace,
        "pool": machine.pool,
        "nodes": (machine.life,),
        "node_names": (stage.name_of(machine),),
        "accelerators": 8,
        "admitted_at": now() - timedelta(seconds=20),
        "decision_id": stage.ids.new("dec"),
    }
    return Attempt.model_validate({**facts, **changes})


def store_job(stage: PermissionBench, job: Job, *attempts: Attempt) -> tuple[Job, Attempt]:
    """Store a job with its attempts; the last is the current one."""
    job = job.replace(current_attempt=len(attempts))
    live = [attempt for attempt in attempts if not attempt.state.has_ended]
    stage.put(job_rows.job_row(job, 0), *(job_rows.attempt_row(attempt, 0) for attempt in attempts))
    stage.forget(*(quota_rows.charge_key(attempt) for attempt in attempts))
    stage.put(*(quota_rows.charge_row(attempt) for attempt in live))
    return job, attempts[-1]


def a_run(
    stage: PermissionBench,
    state: AttemptState,
    *,
    launched: bool = False,
    node: int = 0,
    kind: WorkloadKind = WorkloadKind.JOB,
) -> tuple[Job, Attempt]:
    """Store a job with its first attempt, with pods in the cluster if it was launched."""
    job = a_job(stage, JobState.STARTING if state is AttemptState.STARTING else JobState.RUNNING, kind=kind)
    since: dict[str, Any] = (
        {"launched_at": now() - timedelta(seconds=10)} if launched and state is not AttemptState.STARTING else {}
    )
    job, attempt = store_job(stage, job, an_attempt(stage, job, state, node=node, **since))
    if launched:
        launch(stage, job, attempt)
    return job, attempt


def launch(stage: PermissionBench, job: Job, attempt: Attempt) -> None:
    """Create an attempt's Kubernetes Job and wait for its pods, as the admin."""
    stage.clear_workloads()
    for index, machine in enumerate(stage.nodes):
        if stage.name_of(machine) in attempt.node_names:
            stage.free_machine(index)
    spec = LaunchSpec(job_spec=job.spec, attempt=attempt, resume_from="", service_account=SERVICE_ACCOUNT)
    stage.cluster.launch(spec)
    until(lambda: any(pod.node_name for pod in pods_of(stage, attempt)), "the probe's pod has a node")


def a_mounted_run(stage: PermissionBench) -> Attempt:
    """Store a run with pods in the cluster and with checkpoints that no function can read."""
    job, attempt = a_run(stage, AttemptState.RUNNING, launched=True)
    spec = job.spec.replace(checkpoint_uri="file:///fsx/probe", checkpoint_claim="fsx")
    attempt = attempt.replace(launched_at=now())
    stage.put(job_rows.job_row(job.replace(spec=spec), 0), job_rows.attempt_row(attempt, 0))
    return attempt


def an_unmanaged_pod(stage: PermissionBench, node_name: str) -> None:
    """Create a pod of an unmanaged RayCluster on a node; its owner allows eviction."""
    stage.clear_workloads()
    name = stage.ids.new("pod")
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": name, "controller": True}
    container = {"name": "main", "image": "any", "command": ["sh", "-c", "exec sleep 60"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {RESUME_LABEL: RESUME_ALLOWED}, "ownerReferences": [owner]},
        "spec": {"nodeName": node_name, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    stage.kubernetes.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)


def pods_of(stage: PermissionBench, attempt: Attempt) -> tuple[ObservedPod, ...]:
    """Return an attempt's pods, as the admin sees them."""
    return stage.cluster.workload(attempt).pods


def an_incident(stage: PermissionBench, state: IncidentState, node: int = 1, **changes: Any) -> Incident:
    """Store an incident of a node, with the pointer to it while it is open."""
    machine = stage.nodes[node]
    facts: dict[str, Any] = {
        "incident_id": stage.ids.new("inc"),
        "life": machine.life,
        "slot": machine.slot,
        "node_name": stage.name_of(machine),
        "pool": machine.pool,
        "instance_type": "ml.p5.48xlarge",
        "boot_id": machine.kubernetes.boot_id if machine.kubernetes else "",
        "state": state,
        "severity": "critical",
        "fault_key": "hp:NvidiaErrorReboot",
        "first_signal_at": now() - timedelta(seconds=10),
        "opened_at": now() - timedelta(seconds=10),
    }
    incident = Incident.model_validate({**facts, **changes})
    stage.put(incident_rows.incident_row(incident, 0))
    stage.forget(
        incident_rows.open_key(incident.life),
        incident_rows.last_key(incident.life),
        fleet_rows.lease_key(incident.slot),
    )
    if not state.is_settled:
        stage.put(incident_rows.open_row(incident.life, incident.incident_id))
    return incident


def incident_with_plan(stage: PermissionBench, node: int = 1, **changes: Any) -> Incident:
    """Store an incident whose recovery may act, in a fleet without other repairs or cordons."""
    stage.forget(*(fleet_rows.register_key(which) for which in RegisterName))
    brief = StoredRecoveryPlan(
        run=1,
        outcome="ACT",
        repairs_node=True,
        owner="EVENKEEL",
        evidence_wait_seconds=0,
        max_repairs=3,
        decision_id="dec-probe",
        reason="A probe.",
    )
    return an_incident(stage, IncidentState.RECOVERING, node, plan=brief, **changes)


def one_faulty_node(stage: PermissionBench, node: int, **changes: Any) -> Incident:
    """Store such an incident without other faulty nodes: consecutive probes would look like a shared cause.

    The repair of an earlier probe ends first. Else the node would look rebooted since its fault.
    """
    stage.await_machine(node)
    for state in OPEN_STATES:
        stage.forget_state(Table.INCIDENTS, f"INC#{state}")
    return incident_with_plan(stage, node, **changes)


def a_node_without_a_slot(stage: PermissionBench) -> Json:
    """Return the fields of an incident whose node is gone from a cluster without logical ids."""
    life = NodeLife(
        cluster=stage.cluster_name, instance_id=f"i-{int(now().timestamp() * 1000):017x}", launched_at=now()
    )
    return {"life": life, "slot": life.key, "node_name": "", "boot_id": ""}


def a_wait(subject: str, kind: ConditionKind, name: str, facts: Json, **changes: Any) -> Wait:
    """Return an open wait of a task that does not exist, with an unknown token."""
    fields: dict[str, Any] = {
        "subject": subject,
        "name": name,
        "generation": 1,
        "token": "a-token-of-no-task",
        "opened_at": now(),
        "deadline_at": now() + timedelta(minutes=5),
        "condition": WaitCondition(kind=kind, facts=facts),
    }
    return Wait.model_validate({**fields, **changes})


def of_incident(incident: Incident, **more: Any) -> Json:
    return {"schemaVersion": 1, "incidentId": incident.incident_id, "run": 1, **more}


def of_rental(rental: Rental, **more: Any) -> Json:
    return {"schemaVersion": 1, "jobId": rental.job_id, "rental": rental.number, **more}


def of_attempt(attempt: Attempt, **more: Any) -> Json:
    return {"schemaVersion": 1, "jobId": attempt.job_id, "attempt": attempt.attempt, **more}


TO_RENT: Final = "to-rent"
"""A NodePool of an unavailable type: no node is ever launched for it."""
MARKET: Final = ("p5.48xlarge", "us-west-2a", Market.SPOT)


def a_rental(stage: PermissionBench, *, pool: str = TO_RENT, **changes: Any) -> Rental:
    """Store a rental, and no other row that a function would process."""
    stage.settle_everything()
    return a_rental_beside(stage, pool=pool, **changes)


def a_rental_beside(stage: PermissionBench, *, pool: str = TO_RENT, **changes: Any) -> Rental:
    """Store a pending job, its requested rental, and the amounts that count against the caps."""
    job = a_job(stage, JobState.PENDING, rentals=1)
    offer = RentalOffer(
        pool=pool,
        cluster=stage.cluster_name,
        market=Market.SPOT,
        instance_type=MARKET[0],
        zone=MARKET[1],
        accelerators_per_node=8,
        micros_per_node_hour=1_000_000,
        min_billed_seconds=60,
        opened_at=now(),
    )
    facts: dict[str, Any] = {
        "job_id": job.job_id,
        "number": 1,
        "team": job.spec.team,
        "namespace": NAMESPACE,
        "state": RentalState.OPENING,
        "reason": "A probe.",
        "nodes": 1,
        "offers": (offer,),
        "begun_at": now() - timedelta(minutes=5),
        "ready_by": now() + timedelta(minutes=5),
        "decision_id": "dec-none",
    }
    rental = Rental.model_validate({**facts, **changes})
    stage.put(job_rows.job_row(job, 0), job_rows.rental_row(rental, 0), quota_rows.rental_allocation_row(rental, 0))
    return rental


def a_pool_to_rent(stage: PermissionBench, accelerators: int = 0) -> None:
    """Create a NodePool with this limit and without nodes."""
    term = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["none.48xlarge"]}
    spec = {"limits": {"nvidia.com/gpu": str(accelerators)}, "template": {"spec": {"requirements": [term]}}}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": TO_RENT}, "spec": spec}
    stage.centre.cluster.apply([pool])


def record_capacity_refusal(stage: PermissionBench) -> None:
    """Store a recent refusal of the market of the rental's pool."""
    stage.put(fleet_rows.shortages_row(Shortages().with_refusal(*MARKET, now()), 0))


def _policy_that_rents(stage: PermissionBench, function: str) -> Iterator[None]:
    """Allow renting from that pool in this context. The function restarts to read the policy."""
    pool = {
        "name": TO_RENT,
        "cluster": stage.cluster_name,
        "market": "on-demand",
        "instanceType": MARKET[0],
        "acceleratorsPerNode": 8,
        "maxNodes": 4,
        "microsPerNodeHour": 1_000_000,
        "launch": {"p50Seconds": 1, "p90Seconds": 1},
        "place": {},
    }
    most = {"fleetCapMicrosPerHour": 10**9, "otherTeamCapMicrosPerHour": 10**9}
    set_policy(stage, {"burst": {"pools": [pool], "otherDelayMicrosPerHour": 10**9, **most}})
    stage.start_cold(function)
    try:
        yield
    finally:
        set_policy(stage, {})
        stage.start_cold(function)


def set_policy(stage: PermissionBench, changes: Json) -> None:
    request = change_policy.ChangePolicyRequest(
        changes=changes, by="probe", reason="A probe.", request_id=stage.ids.new("op"), fingerprint="probe"
    )
    change_policy.run(request, ledger=stage.ledger, base=load_policy("local"), now=now())


@contextmanager
def _a_renting_cycle(stage: PermissionBench) -> Iterator[None]:
    yield from _policy_that_rents(stage, "schedule_jobs")


@contextmanager
def _a_plan_that_rents(stage: PermissionBench) -> Iterator[None]:
    yield from _policy_that_rents(stage, "plan_resume")


@contextmanager
def _another_pool(stage: PermissionBench) -> Iterator[None]:
    yield from _policy_that_rents(stage, "rent_capacity")


# ---------------------------------------------------------------- receive_event


def an_envelope(stage: PermissionBench, node: int = 0, instance_id: str = "", **detail: Any) -> Json:
    """Return an SQS record with a drill's event in it."""
    arn = stage.centre.cluster.cluster_arn
    body = {
        "version": "0",
        "id": stage.ids.new("evt"),
        "detail-type": "SageMaker HyperPod Cluster Node Health Event",
        "source": "aws.sagemaker",
        "account": ACCOUNT_ID,
        "time": rfc3339(now()),
        "region": "us-west-2",
        "resources": [arn],
        "detail": {
            "ClusterName": "research-train",
            "ClusterArn": arn,
            "InstanceId": instance_id or stage.nodes[node].life.instance_id,
            "HealthSummary": {
                "HealthStatus": "Unhealthy",
                "HealthStatusReason": "HyperPod Health Monitoring Agent (HMA) has detected fault type "
                "NvidiaErrorReboot on this node and is unhealthy.",
                "RepairAction": "None",
                "Recommendation": "Please Reboot the Faulty Node.",
            },
            **detail,
        },
    }
    return {"Records": [{"messageId": "probe", "body": json.dumps(body)}]}


def is_ingested(result: InvocationResult) -> bool:
    """Return whether no record of the batch failed."""
    return result.answer == {"batchItemFailures": []} and not result.is_refused


def forget_facts(stage: PermissionBench, node: int = 0) -> None:
    """Delete the recorded signals of a node."""
    life = stage.nodes[node].life
    stage.forget(
        incident_rows.open_key(life), incident_rows.last_key(life), fleet_rows.node_key(life.cluster, life.instance_id)
    )
    for kind in FactKind:
        prefix = f"hyperpod.node-health/{life.instance_id}/{kind}/hp:NvidiaErrorReboot"
        for minutes in (0, 1):
            key = f"{prefix}/{(now() - timedelta(minutes=minutes)).strftime('%Y%m%dT%H%M')}"
            stage.forget(incident_rows.fact_key(key))


@probe("receive_event", succeeds=is_ingested)
def opens_an_incident(stage: PermissionBench) -> Json:
    forget_facts(stage)
    return an_envelope(stage)


@probe("receive_event", succeeds=is_ingested)
def joins_an_incident_and_deletes_the_unresolved_fact(stage: PermissionBench) -> Json:
    forget_facts(stage)
    incident = an_incident(stage, IncidentState.OPEN, 0)
    envelope = an_envelope(stage)
    observed_at = datetime.fromisoformat(json.loads(envelope["Records"][0]["body"])["time"])
    fact = NodeFact(
        kind=FactKind.FAULT,
        source="hyperpod.node-health",
        instance_id=incident.life.instance_id,
        fault_key="hp:NvidiaErrorReboot",
        observed_at=observed_at,
        envelope_id="probe",
    )
    stage.put(incident_rows.unresolved_row(fact.to_json(), fact.fact_key, now()))
    return envelope


@probe("receive_event", succeeds=is_ingested)
def stores_a_group_fact(stage: PermissionBench) -> Json:
    record = {
        "EventId": stage.ids.new("evt"),
        "ClusterArn": stage.centre.cluster.cluster_arn,
        "ClusterName": "research-train",
        "ResourceType": "InstanceGroup",
        "InstanceGroupName": stage.ids.new("group"),
        "EventTime": int(now().timestamp() * 1000),
        "EventLevel": "Error",
        "Description": "Failed to provision EC2 Instance in Cluster research-train",
    }
    envelope = an_envelope(stage, EventDetails=record)
    body = json.loads(envelope["Records"][0]["body"]) | {"detail-type": "SageMaker HyperPod Cluster Event"}
    return {"Records": [{"messageId": "probe", "body": json.dumps(body)}]}


@probe("receive_event", succeeds=is_ingested)
def keeps_a_malformed_event(stage: PermissionBench) -> Json:
    return an_envelope(stage, HealthSummary="none")


@probe("receive_event", succeeds=is_ingested)
def splits_an_event_of_many_machines(stage: PermissionBench) -> Json:
    envelope = an_envelope(stage)
    machines = [{"entityValue": f"i-{number:017x}"} for number in range(aws_health.MAX_ENTITIES + 1)]
    detail = {
        "eventArn": "arn:aws:health:us-west-2::event/EC2/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/probe",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "statusCode": "upcoming",
        "affectedEntities": machines,
    }
    body = json.loads(envelope["Records"][0]["body"])
    kind = {"detail-type": aws_health.DETAIL_TYPE, "source": "aws.health"}
    return {"Records": [{"messageId": "probe", "body": json.dumps(body | kind | {"detail": detail})}]}


@contextmanager
def hyperpod_is_throttled(stage: PermissionBench) -> Iterator[None]:
    rule = {"effect": "throttle", "api": "hyperpod", "operation": "DescribeClusterNode", "times": None}
    document = stage.centre.cluster.control("POST", "call-faults", rule | {"code": "ThrottlingException"})
    try:
        yield
    finally:
        stage.centre.cluster.control("DELETE", f"call-faults/{document['callFaultId']}")


@probe(
    "receive_event",
    during=hyperpod_is_throttled,
    succeeds=lambda result: (
        "batchItemFailures" in result.error_text and "Throttled" in result.error_text and not result.is_refused
    ),
)
def has_an_event_delivered_again(stage: PermissionBench) -> Json:
    forget_facts(stage)
    envelope = an_envelope(stage)
    envelope["Records"][0]["receiptHandle"] = "none"
    return envelope


# ---------------------------------------------------------------- the states of recover_node


@probe("plan_recovery")
def plans_a_recovery(stage: PermissionBench) -> Json:
    stage.forget(fleet_rows.hyperpod_key())  # so that the plan reads HyperPod's settings itself
    return of_incident(an_incident(stage, IncidentState.OPEN))


@probe("plan_recovery")
def plans_for_a_node_that_can_wait(stage: PermissionBench) -> Json:
    return of_incident(an_incident(stage, IncidentState.OPEN, fault_key="xid:63"))


@probe("plan_recovery")
def plans_for_a_node_that_is_gone(stage: PermissionBench) -> Json:
    return of_incident(an_incident(stage, IncidentState.OPEN, **a_node_without_a_slot(stage)))


@probe("plan_recovery")
def plans_a_drill(stage: PermissionBench) -> Json:
    return of_incident(an_incident(stage, IncidentState.OPEN, is_drill=True))


def add_guardrail_entries(stage: PermissionBench, which: RegisterName, *indexes: int) -> None:
    """Register exactly these nodes as in repair or as cordoned by Evenkeel."""
    entries = tuple(
        RegisterEntry(life_key=machine.life.key, incident_id="inc-probe", pool=machine.pool, since=now())
        for machine in (stage.nodes[index] for index in indexes)
    )
    stage.put(Row(fleet_rows.register_key(which), Register(entries=entries).to_json()))


@probe("cordon_node")
def cordons_a_node(stage: PermissionBench) -> Json:
    stage.free_machine(1)
    return of_incident(incident_with_plan(stage))


@probe("cordon_node")
def cordons_beside_another_machine_of_the_pool(stage: PermissionBench) -> Json:
    stage.free_machine(1)
    incident = incident_with_plan(stage)
    add_guardrail_entries(stage, RegisterName.CORDONS, 0)
    return of_incident(incident)


@probe("cordon_node")
def cordons_for_a_drill(stage: PermissionBench) -> Json:
    stage.free_machine(1)
    return of_incident(incident_with_plan(stage, is_drill=True))


@contextmanager
def cordoned_by_a_person(stage: PermissionBench) -> Iterator[None]:
    stage.free_machine(1)
    stage.patch_node(1, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        stage.free_machine(1)


@probe("cordon_node", during=cordoned_by_a_person)
def leaves_the_cordon_of_a_person(stage: PermissionBench) -> Json:
    return of_incident(incident_with_plan(stage))


@probe("drain_node")
def stops_the_pods_of_a_node(stage: PermissionBench) -> Json:
    a_run(stage, AttemptState.RUNNING, launched=True, node=1)
    return of_incident(incident_with_plan(stage))


@probe("drain_node")
def moves_a_movable_pod(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    an_unmanaged_pod(stage, incident.node_name)
    return of_incident(incident)


def a_users_job(stage: PermissionBench, node_name: str, kind: WorkloadKind, **labels: str) -> UnmanagedJob:
    """Create a job of a user on a node, which its operator does not restart and Evenkeel may restart."""
    stage.clear_workloads()
    example = next(example for example in EXAMPLES if example.kind is kind and example.after_crash == RESTARTED)
    fails = kind is WorkloadKind.HYPERPOD_PYTORCH_JOB  # HyperPod restarts it while it runs
    script = "exit 1" if fails else "exec sleep 60"
    container = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    pods = {"terminationGracePeriodSeconds": 1, "nodeName": node_name, "containers": [container]}
    name = stage.ids.new("job")
    metadata = {"name": name, "labels": {RESUME_LABEL: RESUME_ALLOWED, **labels}}
    item = {**example.manifest({"spec": pods}), "kind": str(kind), "metadata": metadata}
    stage.kubernetes.create(RESOURCES[kind].path(USERS_NAMESPACE), json.loads(json.dumps(item)))

    def found_job() -> UnmanagedJob | None:
        job = stage.cluster.unmanaged_job(stage.cluster_name, USERS_NAMESPACE, kind, name)
        is_there = job is not None and (job.failed_pods and job.failed_at if fails else job.live_nodes)
        return job if is_there else None

    unmanaged_job = until(found_job, f"a {kind} on {node_name}")
    assert unmanaged_job
    return unmanaged_job


def _users_job_probes(kind: WorkloadKind) -> None:
    """Register the situation that restarts a user's job of a kind."""

    def restarts(stage: PermissionBench) -> Json:
        incident = incident_with_plan(stage)
        a_users_job(stage, incident.node_name, kind)
        return of_incident(incident)

    restarts.__name__ = f"restarts_a_users_{kind}"
    probe("drain_node")(restarts)


for _kind in WorkloadKind:
    _users_job_probes(_kind)


@probe("drain_node")
def restarts_a_queued_job(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    a_users_job(stage, incident.node_name, WorkloadKind.JOB, **{QUEUE_LABEL: "research"})
    return of_incident(incident)


@probe("repair_node")
def restarts_a_job_that_started_meanwhile(stage: PermissionBench) -> Json:
    incident = one_faulty_node(stage, REBOOTED)
    a_users_job(stage, incident.node_name, WorkloadKind.JOB)
    return of_incident(incident)


@probe(
    "repair_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] in ("REQUESTED", "RETRY")
)
def evicts_a_recreated_pod(stage: PermissionBench) -> Json:
    incident = one_faulty_node(stage, REBOOTED, opened_at=now() + timedelta(minutes=10))
    an_unmanaged_pod(stage, incident.node_name)
    return of_incident(incident)


@probe(
    "repair_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] in ("REQUESTED", "RETRY")
)
def reboots_a_node(stage: PermissionBench) -> Json:
    stage.await_machine(REBOOTED)
    a_run(stage, AttemptState.RUNNING, launched=True, node=REBOOTED)
    return of_incident(one_faulty_node(stage, REBOOTED))


@probe("repair_node")
def looks_for_the_node_that_replaced_another(stage: PermissionBench) -> Json:
    return of_incident(one_faulty_node(stage, REBOOTED, **a_node_without_a_slot(stage)))


@probe(
    "repair_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] in ("REQUESTED", "RETRY")
)
def replaces_a_node(stage: PermissionBench) -> Json:
    return of_incident(one_faulty_node(stage, REPLACED, fault_key="hp:NvidiaErrorTerminate", min_rung="replace"))


@probe("repair_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "REQUESTED")
def terminates_a_karpenter_node(stage: PermissionBench) -> Json:
    """The node is an object without a machine, because Karpenter's deletion of the machine is not tested here."""
    instance_id = f"i-{int(now().timestamp() * 1000):017x}"
    name = f"burst-{instance_id}"
    life = NodeLife(cluster=stage.cluster_name, instance_id=instance_id, launched_at=now())
    metadata = {"name": name, "labels": {KARPENTER_LABEL: "burst"}}
    spec = {"providerID": f"aws:///us-west-2a/{instance_id}"}
    stage.kubernetes.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    add_guardrail_entries(stage, RegisterName.REPAIRS)
    incident = incident_with_plan(
        stage, life=life, slot=life.key, pool="burst", node_name=name, boot_id="", fault_key="node:not_ready"
    )
    return of_incident(with_owner(stage, incident, "KARPENTER"))


def with_owner(stage: PermissionBench, incident: Incident, owner: str) -> Incident:
    """Store the incident with another owner of the repair."""
    assert incident.plan
    changed = incident.replace(plan=incident.plan.replace(owner=owner))
    stage.forget(incident_rows.incident_key(incident.incident_id))
    stage.put(incident_rows.incident_row(changed, 0))
    return changed


@probe("repair_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "REQUESTED")
def replaces_a_node_of_a_group(stage: PermissionBench) -> Json:
    node = stage.await_node_of_group()
    assert node.instance_id
    assert node.created_at
    life = NodeLife(cluster=stage.cluster_name, instance_id=node.instance_id, launched_at=node.created_at)
    add_guardrail_entries(stage, RegisterName.REPAIRS)
    incident = incident_with_plan(
        stage, life=life, slot=life.key, pool=node.pool, node_name=node.name, boot_id="", fault_key="xid:79"
    )
    return of_incident(with_owner(stage, incident, "NODE_GROUP"))


@contextmanager
def _shared_cause(stage: PermissionBench) -> Iterator[None]:
    """Store incidents of four nodes in one zone, before any alert about their shared cause."""
    zone = next(node.kubernetes.zone for node in stage.nodes if node.kubernetes)
    pool = stage.nodes[0].pool
    stage.forget(fleet_rows.cause_key(f"zone/{zone}"), fleet_rows.cause_key(f"image/{pool}"))
    faulty = [an_incident(stage, IncidentState.RECOVERING, index, opened_at=now()) for index in range(4)]
    try:
        yield
    finally:
        stage.forget(*(incident_rows.incident_key(incident.incident_id) for incident in faulty))


@probe(
    "repair_node",
    during=_shared_cause,
    succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "BLOCKED" and not result.is_refused,
)
def alerts_about_a_shared_cause(stage: PermissionBench) -> Json:
    return of_incident(one_faulty_node(stage, REPLACED, fault_key="hp:NvidiaErrorTerminate", min_rung="replace"))


@probe(
    "repair_node",
    succeeds=lambda result: bool(result.answer) and result.answer["outcome"] in ("REQUESTED", "RETRY"),
)
def makes_a_delayed_cordon(stage: PermissionBench) -> Json:
    stage.free_machine(REBOOTED)
    block = Block(guardrail="POOL_CORDONS", reason="A probe.", since=now(), action="cordon")
    return of_incident(one_faulty_node(stage, REBOOTED, block=block))


@probe("check_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] in ("DEEP", "BASIC"))
def requests_a_deep_health_check(stage: PermissionBench) -> Json:
    """During the deep check of a node, a second request is declined and the node gets a basic check."""
    return of_incident(incident_with_plan(stage, EXAMINED, fault_key="train:slow_rank"))


@probe("check_node", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "TEST_JOB")
def runs_a_test_job(stage: PermissionBench) -> Json:
    return of_incident(incident_with_plan(stage, EXAMINED, fault_key="fabric:manager_not_running"))


@probe("check_node")
def checks_the_node_that_replaced_another(stage: PermissionBench) -> Json:
    return of_incident(incident_with_plan(stage, **a_node_without_a_slot(stage)))


@probe("return_node")
def returns_the_node_that_replaced_another(stage: PermissionBench) -> Json:
    return of_incident(incident_with_plan(stage, **a_node_without_a_slot(stage)))


@probe("return_node")
def returns_a_node(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    stage.cordon(1, incident.incident_id)
    add_guardrail_entries(stage, RegisterName.CORDONS, 1)
    return of_incident(incident)


@probe("plan_resume")
def plans_the_migration_back(stage: PermissionBench) -> Json:
    job, attempt = a_run(stage, AttemptState.RUNNING, node=1)
    affected = AffectedJob(job_id=job.job_id, attempt=attempt.attempt)
    stage.put(incident_rows.unhealthy_row(store_unhealthy_node(stage), 0))
    return of_incident(incident_with_plan(stage, affected_jobs=(affected,)))


@probe("plan_resume", under=_a_plan_that_rents)
def considers_renting_for_a_resume(stage: PermissionBench) -> Json:
    """The job needs more nodes than the fleet has, so only rented nodes are available."""
    job, attempt = a_run(stage, AttemptState.RUNNING, node=1)
    stage.put(job_rows.job_row(job.replace(spec=job.spec.replace(nodes=99)), 0))
    return of_incident(
        incident_with_plan(stage, affected_jobs=(AffectedJob(job_id=job.job_id, attempt=attempt.attempt),))
    )


@probe("settle_incident")
def settles_and_alerts(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    lease = RepairLease(slot=incident.slot, incident_id=incident.incident_id, taken_at=now())
    stage.put(Row(fleet_rows.lease_key(incident.slot), lease.to_json()))
    node = {"outcome": "WAITING_FOR_PERSON", "reason": "A probe."}
    plan = {"outcome": "ACT", "reason": "A probe."}
    return of_incident(incident, plan=plan, node=node, jobs={"outcome": "NO_JOBS", "reason": "None."})


# ---------------------------------------------------------------- published events


@probe("publish_events")
def publishes_an_approval_request_and_notifies_the_chat(stage: PermissionBench) -> Json:
    row = incident_rows.incident_row(an_incident(stage, IncidentState.WAITING_FOR_PERSON, 0), 1)
    table = stage.centre.deployer.client("dynamodb").describe_table(
        TableName=stage.centre.outputs["IncidentsTableName"]
    )["Table"]
    image = {
        "pk": {"S": row.key.pk},
        "sk": {"S": row.key.sk},
        "version": {"N": "1"},
        "doc": {"S": json.dumps(row.doc)},
    }
    change = {"ApproximateCreationDateTime": now().timestamp(), "Keys": {}, "NewImage": image}
    return {
        "Records": [{"eventName": "INSERT", "eventSourceARN": f"{table['TableArn']}/stream/probe", "dynamodb": change}]
    }


# ---------------------------------------------------------------- waits


@probe("open_wait")
def waits_for_a_run_that_was_asked_to_stop(stage: PermissionBench) -> Json:
    attempt = attempt_with_stop_request(stage, AttemptState.RUNNING)
    return of_attempt(attempt, kind="ATTEMPT_RUNNING", token="a-token-of-no-task")


@probe("open_wait")
def waits_for_kueue(stage: PermissionBench) -> Json:
    job = a_job(stage, JobState.STARTING)
    seated = an_attempt(stage, job, AttemptState.LAUNCHED)
    job, attempt = store_job(stage, job, seated.replace(local_queue="default", nodes=(), node_names=()))
    stage.clear_workloads()
    stage.cluster.launch(LaunchSpec(job.spec, attempt, "", SERVICE_ACCOUNT))
    return of_attempt(attempt, kind="ATTEMPT_ADMITTED", token="a-token-of-no-task")


@probe("open_wait")
def waits_until_it_is_not_blocked(stage: PermissionBench) -> Json:
    return of_incident(incident_with_plan(stage), kind="REPAIR_POSSIBLE", token="a-token-of-no-task")


def blocked_incident(stage: PermissionBench) -> Incident:
    """Store an incident with a blocked repair."""
    block = Block(guardrail="POOL_REPAIRS", reason="A probe.", since=now(), action="replace")
    incident = incident_with_plan(stage, block=block).replace(state=IncidentState.BLOCKED)
    stage.put(incident_rows.incident_row(incident, 0))
    add_guardrail_entries(stage, RegisterName.REPAIRS, 0)
    return incident


@probe("open_wait")
def waits_for_rented_nodes(stage: PermissionBench) -> Json:
    rental = a_rental(stage)
    return of_rental(rental, kind="RENTAL_READY", token="a-token-of-no-task")


@probe("open_wait")
def waits_for_its_order(stage: PermissionBench) -> Json:
    return of_incident(blocked_incident(stage), kind="RELEASED", token="a-token-of-no-task")


@probe("open_wait")
def waits_for_a_node(stage: PermissionBench) -> Json:
    return of_incident(incident_with_plan(stage), kind="NODE_BACK", token="a-token-of-no-task")


@probe("open_wait")
def waits_for_a_node_without_a_slot(stage: PermissionBench) -> Json:
    return of_incident(
        incident_with_plan(stage, **a_node_without_a_slot(stage)), kind="NODE_BACK", token="a-token-of-no-task"
    )


@probe("open_wait", succeeds=lambda result: "there is no incident" in result.error_text.lower())
def fails_its_task(stage: PermissionBench) -> Json:
    nobody = stage.ids.new("inc")
    return {"schemaVersion": 1, "incidentId": nobody, "run": 1, "kind": "JOBS_RESUMED", "token": "a-token-of-no-task"}


@probe("resolve_wait")
def answers_a_job(stage: PermissionBench) -> Json:
    job, _ = a_run(stage, AttemptState.RUNNING)
    wait = a_wait(job.job_id, ConditionKind.ATTEMPT_RUNNING, "attempt-1-running", {"attempt": 1})
    stage.put(subject_rows.wait_row(wait, 0))
    answer = {"outcome": "RUNNING", "reason": "A probe.", "facts": {}}
    return {"subject": job.job_id, "name": wait.name, "generation": 1, "answer": answer}


@probe("resolve_wait")
def answers_an_incident(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    wait = a_wait(incident.incident_id, ConditionKind.JOBS_RESUMED, "jobs-back", {})
    stage.put(subject_rows.wait_row(wait, 0))
    answer = {"outcome": "JOBS_RESUMED", "reason": "A probe.", "facts": {}}
    return {"subject": incident.incident_id, "name": wait.name, "generation": 1, "answer": answer}


# ---------------------------------------------------------------- the states of run_job


def a_checkpoint(stage: PermissionBench, job: Job, step: int = 10) -> None:
    """Store a checkpoint of attempt 1, as a training script saves it. A second passes between two steps."""
    data = b"weights"
    digest = hashlib.sha256(data)
    folder = f"attempt=1/step={step:09}"
    started_at = now() - timedelta(seconds=15 - step)
    shard = f"{folder}/shard-0-of-1.bin"
    prefix = f"{job.job_id}/"
    stage.s3.put_object(
        Bucket=CHECKPOINTS_BUCKET,
        Key=prefix + shard,
        Body=data,
        ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
    )
    manifest = {
        "schemaVersion": 1,
        "jobId": job.job_id,
        "attempt": 1,
        "step": step,
        "startedAt": rfc3339(started_at),
        "createdAt": rfc3339(started_at + timedelta(seconds=1)),
        "worldSize": 1,
        "shards": [{"key": shard, "sizeBytes": len(data), "sha256": digest.hexdigest()}],
    }
    stage.s3.put_object(
        Bucket=CHECKPOINTS_BUCKET, Key=f"{prefix}{folder}/manifest.json", Body=json.dumps(manifest).encode()
    )


@probe("launch_job", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "LAUNCHED")
def launches_from_a_checkpoint(stage: PermissionBench) -> Json:
    stage.clear_workloads()
    job = a_job(stage, JobState.STARTING)
    ended = an_attempt(stage, job, AttemptState.LOST, ended_at=now())
    job, attempt = store_job(stage, job, ended, an_attempt(stage, job, AttemptState.STARTING, 2))
    a_checkpoint(stage, job)
    return of_attempt(attempt)


@probe("launch_job", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "NOT_YET")
def ends_the_previous_attempt(stage: PermissionBench) -> Json:
    job, first = a_run(stage, AttemptState.RUNNING, launched=True)
    ended = first.replace(state=AttemptState.LOST, ended_at=now())
    _, attempt = store_job(stage, job, ended, an_attempt(stage, job, AttemptState.STARTING, 2))
    return of_attempt(attempt)


def a_partly_admitted_attempt(stage: PermissionBench) -> Attempt:
    """Store an elastic attempt that Kueue has started with one of its two pods."""
    stage.clear_workloads()
    job = a_job(stage, JobState.STARTING, nodes=2)
    job = job.replace(spec=job.spec.replace(elastic=ElasticSpec(min_nodes=1, max_nodes=2)))
    facts: dict[str, Any] = {"nodes": (), "node_names": (), "accelerators": 16}
    attempt = an_attempt(stage, job, AttemptState.LAUNCHED, **facts, size=2, requested_size=2, local_queue="default")
    _, uid = stage.cluster.launch(LaunchSpec(job.spec, attempt, "", SERVICE_ACCOUNT))
    _, attempt = store_job(stage, job, attempt.replace(workload_uid=uid))
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{attempt.workload_name}"
    stage.kubernetes.patch(path, {"spec": {"suspend": False, "parallelism": 1, "completions": 1}})
    return attempt


def knows_its_number(result: InvocationResult) -> bool:
    return bool(result.answer) and "got world size 1" in str(result.answer["reason"])


@probe("launch_job", succeeds=knows_its_number)
def tells_the_pods_their_number(stage: PermissionBench) -> Json:
    return of_attempt(a_partly_admitted_attempt(stage))


@probe("launch_job", succeeds=knows_its_number)
def finds_the_number_of_the_pods(stage: PermissionBench) -> Json:
    attempt = a_partly_admitted_attempt(stage)
    stage.cluster.publish_size(attempt.at_size(1))
    return of_attempt(attempt)


def _kind_probes(kind: WorkloadKind) -> None:
    """Register the situations that read, create and delete objects of a kind."""

    def launches(stage: PermissionBench) -> Json:
        stage.clear_workloads()
        job = a_job(stage, JobState.STARTING, kind=kind)
        job, attempt = store_job(stage, job, an_attempt(stage, job, AttemptState.STARTING))
        return of_attempt(attempt)

    def stops_the_kind(stage: PermissionBench) -> Json:
        _, attempt = a_run(stage, AttemptState.RUNNING, launched=True, kind=kind)
        return of_attempt(attempt)

    launches.__name__ = f"launches_a_{kind}"
    stops_the_kind.__name__ = f"stops_a_{kind}"
    probe("launch_job", succeeds=lambda result: bool(result.answer) and result.answer["outcome"] == "LAUNCHED")(
        launches
    )
    probe("stop_attempt")(stops_the_kind)


for _kind in WorkloadKind:
    if _kind is not WorkloadKind.JOB:
        _kind_probes(_kind)


@probe("mark_running", succeeds=lambda result: result.answer == {"outcome": "RUNNING"})
def marks_an_attempt_running(stage: PermissionBench) -> Json:
    _, attempt = a_run(stage, AttemptState.LAUNCHED)
    return of_attempt(attempt)


@probe("stop_attempt")
def stops_an_attempt(stage: PermissionBench) -> Json:
    _, attempt = a_run(stage, AttemptState.RUNNING, launched=True)
    return of_attempt(attempt)


@probe("settle_attempt")
def settles_a_failure_of_the_application(stage: PermissionBench) -> Json:
    stage.clear_workloads()
    _, attempt = a_run(stage, AttemptState.RUNNING)
    facts = {"state": "FAILED", "reason": "Rank 0 ended with exit code 1.", "exitCodes": {"0": 1}}
    return of_attempt(attempt, ended={"outcome": "ENDED", "reason": "A probe.", "facts": facts})


@probe("settle_attempt")
def settles_a_success(stage: PermissionBench) -> Json:
    stage.clear_workloads()
    _, attempt = a_run(stage, AttemptState.RUNNING)
    facts = {"state": "SUCCEEDED", "reason": "All ranks exited with code 0.", "exitCodes": {"0": 0}}
    return of_attempt(attempt, ended={"outcome": "ENDED", "reason": "A probe.", "facts": facts})


@probe("settle_attempt")
def settles_a_running_attempt(stage: PermissionBench) -> Json:
    _, attempt = a_run(stage, AttemptState.RUNNING, launched=True)
    return of_attempt(attempt, failure={"Error": "States.Timeout", "Cause": "A probe."})


@probe("settle_attempt")
def keeps_the_log_of_rank_0(stage: PermissionBench) -> Json:
    return of_attempt(a_mounted_run(stage), failure={"Error": "States.Timeout", "Cause": "A probe."})


@probe(
    "settle_attempt",
    succeeds=lambda result: not (result.error or result.is_refused or "RestoreNotMeasured" in result.log),
)
def measures_the_saves_of_an_ended_attempt(stage: PermissionBench) -> Json:
    stage.clear_workloads()
    job = a_job(stage, JobState.RUNNING)
    job, attempt = store_job(
        stage,
        job,
        an_attempt(stage, job, AttemptState.RUNNING, is_pinned=True, running_at=now() - timedelta(seconds=18)),
    )
    a_checkpoint(stage, job, 5)
    a_checkpoint(stage, job, 10)
    return of_attempt(attempt, failure={"Error": "States.Timeout", "Cause": "A probe."})


# ---------------------------------------------------------------- burst_capacity


def answers(*outcomes: str) -> Callable[[InvocationResult], bool]:
    return lambda result: bool(result.answer) and result.answer["outcome"] in outcomes


@probe("rent_capacity", succeeds=answers("OPENED"))
def raises_a_pool_limit(stage: PermissionBench) -> Json:
    a_pool_to_rent(stage)
    return of_rental(a_rental(stage), step="OPEN")


@probe("rent_capacity", succeeds=answers("HANDED_OVER"))
def marks_a_rental_ready(stage: PermissionBench) -> Json:
    stage.free_machine(0)
    rental = a_rental(stage, pool=stage.nodes[0].pool)
    record_capacity_refusal(stage)
    return of_rental(rental, step="HAND_OVER")


@probe("rent_capacity", succeeds=answers("HANDED_OVER"))
def labels_the_nodes_of_a_job_in_kueues_queue(stage: PermissionBench) -> Json:
    stage.free_machine(0)
    rental = a_rental(stage, pool=stage.nodes[0].pool)
    row = stage.ledger.get(job_rows.job_key(rental.job_id))
    assert row
    stage.put(job_rows.job_row(Job.model_validate(row.doc).replace(local_queue="default"), 0))
    return of_rental(rental, step="HAND_OVER")


@probe("rent_capacity", succeeds=answers("NOT_YET", "NONE"))
def withdraws_an_offer(stage: PermissionBench) -> Json:
    a_pool_to_rent(stage, 8)
    rental = a_rental(stage)
    stage.cluster.create_capacity_pods(
        CapacitySpec(
            cluster=stage.cluster_name,
            namespace=NAMESPACE,
            name=rental.name,
            pool=TO_RENT,
            nodes=1,
            accelerators=8,
            accelerator_resource="nvidia.com/gpu",
            image="registry/pause:1",
        )
    )
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    until(lambda: any(stage.kubernetes.items(pods, labelSelector=f"{RENTAL_LABEL}={rental.name}")), "a capacity pod")
    return of_rental(rental, step="NEXT", reason="A probe.")


@probe("rent_capacity", under=_another_pool, succeeds=answers("OPENED"))
def requests_capacity_of_another_pool(stage: PermissionBench) -> Json:
    """The new offer comes from the placement that a cycle recorded."""
    a_pool_to_rent(stage)
    rental = a_rental(stage, pool="another")
    job = JobDemand(
        job_id=rental.job_id,
        team=rental.team,
        nodes=1,
        accelerators_per_node=8,
        micros_per_hour_of_delay=10**9,
        run_seconds=60,
        p90_run_seconds=120,
        submitted_at=now(),
    )
    record = Decision(
        decision_id=stage.ids.new("dec"),
        kind="PLACEMENT",
        subject=rental.job_id,
        action="RENT",
        reason="A probe.",
        facts=PlacementFacts(job=job, candidates=(), spending=SpendLimits(), now=now()).to_json(),
        policy_hash="0",
        decided_at=now(),
    )
    stage.put(subject_rows.decision_row(record), job_rows.rental_row(rental.replace(decision_id=record.decision_id), 0))
    return of_rental(rental, step="NEXT", reason="A probe.")


@probe("rent_capacity", succeeds=answers("NOT_YET", "RELEASED"))
def returns_a_machine(stage: PermissionBench) -> Json:
    """The node is a claim that is never launched."""
    a_pool_to_rent(stage, 8)
    name = f"{TO_RENT}-{int(now().timestamp() * 1000)}"
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {KARPENTER_LABEL: TO_RENT}},
        "spec": {},
    }
    rental = a_rental(stage)
    stage.kubernetes.create("/apis/karpenter.sh/v1/nodeclaims", claim)
    return of_rental(rental, step="RELEASE", reason="A probe.")


@probe("rent_capacity", succeeds=answers("SETTLED"))
def settles_a_rental(stage: PermissionBench) -> Json:
    """A node of the rental has ended: its bill counts against its team's budgets."""
    a_pool_to_rent(stage)
    rental = a_rental(stage, state=RentalState.ENDING).with_offer(joined_node_names=("gone",))
    stage.put(job_rows.rental_row(rental, 0))
    return of_rental(rental, step="SETTLE")


# ---------------------------------------------------------------- what the clock starts


@probe("schedule_jobs", under=_a_renting_cycle)
def rents_nodes(stage: PermissionBench) -> Json:
    stage.settle_everything()
    stage.clear_workloads()
    job = a_job(stage, JobState.PENDING)
    stage.put(job_rows.job_row(job.replace(spec=job.spec.replace(instance_types=(MARKET[0],))), 0))
    return {}


@contextmanager
def _kueues_cycle(stage: PermissionBench) -> Iterator[None]:
    with stage.where_kueue_admits("schedule_jobs"):
        yield


@probe("schedule_jobs", under=_kueues_cycle)
def answers_kueues_check(stage: PermissionBench) -> Json:
    """A Workload that no job of Evenkeel controls is answered, too."""
    stage.settle_everything()
    name = f"asks-{int(now().timestamp() * 1000)}"
    base = {"apiVersion": f"{fake_kueue.GROUP}/v1beta2", "metadata": {"name": name}}
    spec = {"controllerName": CONTROLLER}
    stage.kubernetes.create(f"{fake_kueue.API}/admissionchecks", {**base, "kind": "AdmissionCheck", "spec": spec})
    workload = {**base, "kind": "Workload", "spec": {"queueName": "default", "podSets": [{"name": "main", "count": 1}]}}
    path = f"{fake_kueue.API}/namespaces/{NAMESPACE}/workloads"
    stage.kubernetes.create(path, workload)
    at = {"lastTransitionTime": f"{now():%Y-%m-%dT%H:%M:%SZ}"}
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "", **at}
    check = {"name": name, "state": "Pending", "message": "", **at}
    status = {"conditions": [reserved], "admissionChecks": [check]}
    stage.kubernetes.patch(f"{path}/{name}/status", {"status": status})
    return {}


@probe("schedule_jobs", succeeds=lambda result: bool(result.answer) and bool(result.answer.get("admitted")))
def admits_a_job(stage: PermissionBench) -> Json:
    stage.settle_everything()
    stage.clear_workloads()
    stage.free_machine(0)
    job = a_job(stage, JobState.PENDING)
    earlier = an_attempt(stage, job, AttemptState.LOST)
    store_job(stage, job, earlier)
    stage.put(
        quota_rows.released_charge_row(earlier, 0, now()), incident_rows.unhealthy_row(store_unhealthy_node(stage), 0)
    )
    return {}


def has_watched(result: InvocationResult) -> bool:
    """Return whether a complete poll succeeded before the watch was refused."""
    failed = ("WatchSnapshotFailed", "WaitNotEvaluated")
    return result.refuses_verb("watch", "jobs") and not any(word in result.error_text for word in failed)


@contextmanager
def _without_watch(stage: PermissionBench) -> Iterator[None]:
    # The watch lasts as long as the policy says. A refusal ends an invocation right after its first poll.
    with stage.without_verbs("evenkeel-reader", ("jobs", "watch")):
        yield


@contextmanager
def _marked_and_without_watch(stage: PermissionBench) -> Iterator[None]:
    with stage.with_fault_label(MARKED), _without_watch(stage):
        yield


def attempt_with_stop_request(stage: PermissionBench, state: AttemptState) -> Attempt:
    """Store a run with a stop request: its waits are answered at once."""
    job, attempt = a_run(stage, state)
    stop = StopRequest(attempt=1, reason="A probe.", by="probe", grace_seconds=1, requested_at=now())
    stage.put(job_rows.job_row(job.replace(stop_request=stop), 0))
    return attempt


def open_waits(stage: PermissionBench) -> None:
    """Store a wait of a job, which is to be answered, and one of an incident."""
    attempt = attempt_with_stop_request(stage, AttemptState.RUNNING)
    stage.put(
        subject_rows.wait_row(a_wait(attempt.job_id, ConditionKind.ATTEMPT_ENDED, "attempt-1-ended", {"attempt": 1}), 0)
    )
    incident = incident_with_plan(stage, affected_jobs=(AffectedJob(job_id=attempt.job_id, attempt=1),))
    facts = {"life": incident.life.key, "slot": incident.slot, "pool": incident.pool, "since": rfc3339(now())}
    back = a_wait(incident.incident_id, ConditionKind.NODE_BACK, "node-back", {**facts, "rung": "", "bootId": ""})
    jobs = a_wait(incident.incident_id, ConditionKind.JOBS_RESUMED, "jobs-back", {})
    way = a_wait(incident.incident_id, ConditionKind.REPAIR_POSSIBLE, "repair-possible", facts)
    turn = a_wait(blocked_incident(stage).incident_id, ConditionKind.RELEASED, "released", {})
    stage.put(*(subject_rows.wait_row(wait, 0) for wait in (back, jobs, way, turn)))
    rental = a_rental_beside(stage)
    ready = a_wait(rental.job_id, ConditionKind.RENTAL_READY, "rental-1-ready", {"rental": 1})
    stage.put(subject_rows.wait_row(ready, 0))


def of_a_failed_run(stage: PermissionBench) -> None:
    """Store a wait for the end of a run with a recent application failure."""
    command = ("python", "-c", "raise SystemExit(1)")
    job = a_job(stage, JobState.RUNNING)
    job = job.replace(spec=job.spec.replace(command=command))
    job, attempt = store_job(stage, job, an_attempt(stage, job, AttemptState.RUNNING))
    launch(stage, job, attempt)
    until(lambda: any(pod.has_ended for pod in pods_of(stage, attempt)), "the probe's pod has failed")
    stage.put(
        subject_rows.wait_row(a_wait(job.job_id, ConditionKind.ATTEMPT_ENDED, "attempt-1-ended", {"attempt": 1}), 0)
    )


@probe("watch_cluster", during=_without_watch, succeeds=has_watched)
def answers_a_wait(stage: PermissionBench) -> Json:
    stage.settle_everything()
    open_waits(stage)
    return {}


@probe("watch_cluster", during=_marked_and_without_watch, succeeds=has_watched)
def receives_a_fault_event(stage: PermissionBench) -> Json:
    stage.settle_everything()
    forget_facts(stage, MARKED)
    return {}


@probe("watch_cluster", during=_marked_and_without_watch, succeeds=has_watched)
def receives_a_second_fault_event(stage: PermissionBench) -> Json:
    stage.settle_everything()
    an_incident(stage, IncidentState.OPEN, MARKED)
    leave_unresolved(stage, MARKED)
    return {}


@probe("watch_cluster", during=_without_watch, succeeds=has_watched)
def delays_the_attribution_of_a_failure(stage: PermissionBench) -> Json:
    stage.settle_everything()
    of_a_failed_run(stage)
    return {}


def leave_unresolved(stage: PermissionBench, index: int) -> None:
    """Store the marks of a node as an unresolved fact about its node."""
    with stage.with_fault_label(index):
        facts = stage.facts_of(index)
    stage.put(*(incident_rows.unresolved_row(fact.to_json(), fact.fact_key, now()) for fact in facts))


def has_swept(result: InvocationResult) -> bool:
    """Return whether every step succeeded, apart from the step that reports events of other probes."""
    if not result.answer or result.answer["outcome"] != "SWEPT":
        return False
    return all(failure.startswith("event-queue: ") for failure in result.answer["failed"])


@probe("sweep_fleet", succeeds=has_swept)
def completes_work_of_crashed_functions(stage: PermissionBench) -> Json:
    stage.settle_everything()
    stage.put(job_rows.job_row(a_job(stage, JobState.PENDING), 0))
    open_waits(stage)
    a_run(stage, AttemptState.STARTING)
    left_behind = an_incident(stage, IncidentState.OPEN, 0)
    ghost = an_incident(stage, IncidentState.RECOVERED, 2)
    stage.put(incident_rows.open_row(ghost.life, ghost.incident_id))
    job, attempt = a_run(stage, AttemptState.STARTING)
    stage.end_execution(attempt.workload_name)
    cancelled, ending = a_run(stage, AttemptState.STARTING)
    stage.put(job_rows.job_row(cancelled.replace(state=JobState.STOPPING), 0))
    stage.end_execution(ending.workload_name)
    fact = NodeFact(
        kind=FactKind.FAULT,
        source="hyperpod.node-health",
        instance_id="i-00000000000000000",
        fault_key="hp:NvidiaErrorReboot",
        observed_at=now(),
        envelope_id="probe",
    )
    node_fact = fact.replace(instance_id=left_behind.life.instance_id, occurrence=job.job_id)
    stage.put(
        *(
            incident_rows.unresolved_row(node_fact.to_json(), node_fact.fact_key, now())
            for node_fact in (fact, node_fact)
        )
    )
    stage.put(incident_rows.notice_before_listing_row(fact.instance_id, [fact], now(), 0))
    stage.put(
        fleet_rows.lease_row(RepairLease(slot="nowhere/left", incident_id="", taken_at=now(), lemon=ghost.life.key), 0)
    )
    stage.patch_node(
        2, {"spec": {"taints": [{"key": AWAITING_VALIDATION_TAINT, "value": "true", "effect": "NoSchedule"}]}}
    )
    return {}


@probe("sweep_fleet", succeeds=has_swept)
def reads_the_resume_point_of_rank_0(stage: PermissionBench) -> Json:
    stage.settle_everything()
    a_mounted_run(stage)
    return {}


@probe("sweep_fleet", succeeds=has_swept)
def continues_a_restart(stage: PermissionBench) -> Json:
    stage.settle_everything()
    incident = incident_with_plan(stage)
    job = a_users_job(stage, incident.node_name, WorkloadKind.JOB)
    restart = UnmanagedRestart(
        cluster=stage.cluster_name,
        namespace=job.namespace,
        kind=job.kind,
        name=job.name,
        uid=job.uid,
        incident_id=incident.incident_id,
        node_name=incident.node_name,
        begun_at=now(),
    )
    stage.put(unmanaged_restart_rows.restart_row(restart, 0))
    return {}


@probe("sweep_fleet", succeeds=has_swept)
def ends_pods_of_settled_attempts(stage: PermissionBench) -> Json:
    stage.settle_everything()
    job, attempt = a_run(stage, AttemptState.RUNNING, launched=True)
    store_job(stage, job, attempt.replace(state=AttemptState.LOST, ended_at=now() - timedelta(minutes=1)))
    return {}


_TEAM_WITH_A_BUDGET = "probe-with-a-budget"


@contextmanager
def _without_the_team_afterwards(stage: PermissionBench) -> Iterator[None]:
    try:
        yield
    finally:
        stage.forget(quota_rows.team_key(_TEAM_WITH_A_BUDGET))


@probe("sweep_fleet", succeeds=has_swept, during=_without_the_team_afterwards)
def counts_the_use_of_a_budget(stage: PermissionBench) -> Json:
    stage.settle_everything()
    stage.forget(fleet_rows.lock_key("sweep"))  # it has the time of the last count
    stage.forget(quota_rows.team_key(_TEAM_WITH_A_BUDGET))
    team = Team(name=_TEAM_WITH_A_BUDGET, budgets=(Budget(gpu_hours=100),))
    stage.put(quota_rows.setup_row(quota_rows.team_key(team.name), team, 0))
    return {}


_RESERVATION_ID = "cr-0123456789abcdef0"


def has_read_the_reservation(result: InvocationResult) -> bool:
    """Return whether EC2 answered. The engine has no capacity reservations, so its answer names none."""
    if not result.answer or result.answer["outcome"] != "SWEPT":
        return False
    failures = [failure for failure in result.answer["failed"] if not failure.startswith("event-queue: ")]
    return [failure.startswith(f"plans: {_RESERVATION_ID}: NotFound: ") for failure in failures] == [True]


@contextmanager
def _without_the_reservation_afterwards(stage: PermissionBench) -> Iterator[None]:
    try:
        yield
    finally:
        stage.patch_node(2, {"metadata": {"labels": {RESERVATION_LABELS[0]: None}}})


@probe("sweep_fleet", succeeds=has_read_the_reservation, during=_without_the_reservation_afterwards)
def reads_when_a_capacity_block_ends(stage: PermissionBench) -> Json:
    stage.settle_everything()
    stage.patch_node(2, {"metadata": {"labels": {RESERVATION_LABELS[0]: _RESERVATION_ID}}})
    return {}


# ---------------------------------------------------------------- the API's functions


def a_request(method: str, path: str, body: Json | None = None, **query: str) -> Json:
    """Return the event that API Gateway sends to a function."""
    return {
        "resource": path,
        "path": path,
        "httpMethod": method,
        "headers": {
            "Idempotency-Key": f"probe-{now().timestamp()}",
            "Content-Type": "application/json",
            **({"If-None-Match": "*"} if method == "PUT" else {}),
            **({"If-Match": '"1"'} if method == "DELETE" else {}),
        },
        "multiValueHeaders": {},
        "queryStringParameters": query or None,
        "multiValueQueryStringParameters": {name: [value] for name, value in query.items()} or None,
        "pathParameters": None,
        "body": None if body is None else json.dumps(body),
        "isBase64Encoded": False,
        "requestContext": {
            "accountId": ACCOUNT_ID,
            "requestId": "probe",
            "httpMethod": method,
            "resourcePath": path,
            "stage": "api",
            "identity": {"userArn": f"arn:aws:iam::{ACCOUNT_ID}:user/probe"},
        },
    }


def store_unhealthy_node(stage: PermissionBench) -> UnhealthyNode:
    """Return a node that a recovery left unhealthy."""
    return UnhealthyNode(life=stage.nodes[2].life, incident_id="inc-probe", since=now(), reason="A probe.")


def has_answered(result: InvocationResult) -> bool:
    return bool(result.answer) and result.answer["statusCode"] < 300


def ids_to_read(stage: PermissionBench) -> dict[str, str]:
    """Store one row of each kind that can be read, and return the ids."""
    if stage.readable and stage.ledger.get(incident_rows.incident_key(stage.readable["incident"])):
        return stage.readable
    job, attempt = a_run(stage, AttemptState.RUNNING, launched=True)
    incident = incident_with_plan(stage, affected_jobs=(AffectedJob(job_id=job.job_id, attempt=attempt.attempt),))
    machine = stage.nodes[1]
    node = FleetNode.from_node(machine, Resources(accelerators=8), now())
    decision = Decision(
        decision_id=stage.ids.new("dec"),
        kind="RECOVERY",
        subject=incident.incident_id,
        action="reboot",
        reason="A probe.",
        facts={},
        policy_hash="probe",
        mode="act",
        decided_at=now(),
    )
    entry = TimelineEntry(at=now(), kind="decided", text="A probe.", writer="probe")
    stage.put(
        fleet_rows.node_row(machine.life.cluster, machine.life.instance_id, node.to_json(), 0, None),
        incident_rows.unhealthy_row(store_unhealthy_node(stage), 0),
        subject_rows.decision_row(decision),
        subject_rows.timeline_row(incident.incident_id, entry, "probe"),
        subject_rows.timeline_row(job.job_id, entry, "probe"),
    )
    stage.readable.update(
        job=job.job_id,
        incident=incident.incident_id,
        decision=decision.decision_id,
        node=machine.life.instance_id,
    )
    return stage.readable


def _reading(path: str) -> Prepare:
    def prepare(stage: PermissionBench) -> Json:
        return a_request("GET", path.format(**ids_to_read(stage)))

    prepare.__name__ = path.removeprefix("/v1/").replace("{", "").replace("}", "").replace("/", "_")
    return prepare


for _path in (
    "/v1/status",
    "/v1/jobs",
    "/v1/jobs/{job}",
    "/v1/jobs/{job}/timeline",
    "/v1/jobs/{job}/why",
    "/v1/jobs/{job}/receipt",
    "/v1/jobs/{job}/logs",
    "/v1/incidents",
    "/v1/incidents/{incident}",
    "/v1/incidents/{incident}/timeline",
    "/v1/incidents/{incident}/why",
    "/v1/incidents/{incident}/receipt",
    "/v1/decisions/{decision}",
    "/v1/nodes",
    "/v1/nodes/{node}",
    "/v1/utilization",
    "/v1/cost-report",
    "/v1/showback",
    f"/v1/clusters/{FLEET}/automation",
    f"/v1/clusters/{FLEET}/quotas",
    "/v1/teams",
):
    probe("api_read", succeeds=has_answered)(_reading(_path))


@probe("api_read", succeeds=has_answered)
def decisions(stage: PermissionBench) -> Json:
    return a_request("GET", "/v1/decisions", subject=ids_to_read(stage)["job"])


def has_compared(result: InvocationResult) -> bool:
    return has_answered(result) and bool(json.loads(str((result.answer or {})["body"]))["items"])


@probe("api_read", succeeds=has_compared)
def reports_an_observed_decision(stage: PermissionBench) -> Json:
    incident_with_plan(stage, mode="observe", stages=StageTimes(planned_at=now()))
    return a_request("GET", "/v1/shadow-report")


@probe("api_read", succeeds=has_answered)
def lists_the_audit_log(_stage: PermissionBench) -> Json:
    return a_request("GET", "/v1/audit")


@probe("api_read", succeeds=has_answered)
def shows_an_execution(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    machine = stage.centre.outputs["RecoverNodeArn"]
    stage.centre.deployer.client("stepfunctions").start_execution(
        stateMachineArn=machine, name=incident.execution_name, input="{}"
    )
    return a_request("GET", f"/v1/incidents/{incident.incident_id}/execution")


@probe("api_submit", succeeds=has_answered)
def submits_a_job(_stage: PermissionBench) -> Json:
    body = {"name": "probe", "image": "registry/trainer:1", "command": ["python", "train.py"]}
    return a_request("POST", "/v1/jobs", body)


@probe("api_submit", succeeds=has_answered)
def plans_a_job(stage: PermissionBench) -> Json:
    healthy = stage.nodes[1]
    node = FleetNode.from_node(healthy, Resources(accelerators=8), now())
    stage.put(
        fleet_rows.node_row(healthy.life.cluster, healthy.life.instance_id, node.to_json(), 0, None),
        incident_rows.unhealthy_row(store_unhealthy_node(stage), 0),
        job_rows.job_row(a_job(stage, JobState.RUNNING).replace(current_attempt=2), 0),
    )
    body = {"name": "probe", "image": "registry/trainer:1", "command": ["python", "train.py"]}
    return a_request("POST", "/v1/jobs/plan", body)


@probe("api_submit", succeeds=has_answered)
def cancels_a_job(stage: PermissionBench) -> Json:
    job = a_job(stage, JobState.PENDING)
    stage.put(job_rows.job_row(job, 0))
    return a_request("POST", f"/v1/jobs/{job.job_id}/cancel", {})


@probe("api_submit", succeeds=has_answered)
def suspends_a_job(stage: PermissionBench) -> Json:
    job = a_job(stage, JobState.PENDING)
    stage.put(job_rows.job_row(job, 0))
    return a_request("POST", f"/v1/jobs/{job.job_id}/suspend", {})


@probe("api_operate", succeeds=has_answered)
def releases_a_hold(stage: PermissionBench) -> Json:
    hold = Hold(by="probe", reason="A probe.", since=now(), until=now() + timedelta(minutes=1))
    stage.put(Row(fleet_rows.hold_key(), hold.to_json()))
    return a_request("POST", f"/v1/clusters/{FLEET}/automation/release", {"reason": "A probe."})


@probe("api_operate", succeeds=has_answered)
def approves_a_plan(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    assert incident.plan
    stage.put(incident_rows.incident_row(incident.replace(plan=incident.plan.replace(outcome="ASK")), 0))
    body = {"decisionId": incident.plan.decision_id, "reason": "A probe."}
    return a_request("POST", f"/v1/incidents/{incident.incident_id}/approve", body)


@probe("api_operate", succeeds=has_answered)
def acknowledges_an_incident(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    return a_request("POST", f"/v1/incidents/{incident.incident_id}/acknowledge", {"reason": "A probe."})


@probe("api_operate", succeeds=has_answered)
def removes_its_cordon(stage: PermissionBench) -> Json:
    incident = incident_with_plan(stage)
    stage.cordon(1, incident.incident_id)
    machine = stage.nodes[1]
    node = FleetNode.from_node(machine, NONE, now())
    stage.put(fleet_rows.node_row(machine.life.cluster, machine.life.instance_id, node.to_json(), 0, None))
    return a_request("POST", f"/v1/nodes/{machine.life.instance_id}/uncordon", {"reason": "A probe."})


@probe("api_operate", succeeds=has_answered)
def plans_a_replacement(stage: PermissionBench) -> Json:
    stage.forget(fleet_rows.hyperpod_key())  # so that the plan reads HyperPod's settings itself
    stage.free_machine(1)
    machine = stage.nodes[1]
    node = FleetNode.from_node(machine, NONE, now())
    stage.put(fleet_rows.node_row(machine.life.cluster, machine.life.instance_id, node.to_json(), 0, None))
    # For a fault that can wait, the plan looks for jobs on the node.
    body = {"reason": "A probe.", "code": "health:instance_retirement", "dryRun": True}
    return a_request("POST", f"/v1/nodes/{machine.life.instance_id}/replace", body)


@probe("api_operate", succeeds=has_answered)
def plans_a_replacement_of_a_node_that_is_gone(stage: PermissionBench) -> Json:
    node_without_a_slot = a_node_without_a_slot(stage)
    node = FleetNode.from_node(stage.nodes[1], NONE, now()).replace(**node_without_a_slot)
    stage.put(fleet_rows.node_row(node.life.cluster, node.life.instance_id, node.to_json(), 0, None))
    body = {"reason": "A probe.", "dryRun": True}
    return a_request("POST", f"/v1/nodes/{node.life.instance_id}/replace", body)


@probe("api_operate", succeeds=has_answered)
def reports_a_fault_of_a_node_by_its_name(stage: PermissionBench) -> Json:
    machine = stage.nodes[0]
    name = stage.ids.new("node")
    node = FleetNode.from_node(machine, NONE, now()).replace(node_name=name)
    stage.put(fleet_rows.node_row(machine.life.cluster, machine.life.instance_id, node.to_json(), 0, None))
    fault = {"nodeName": name, "code": "79", "observedAt": rfc3339(now())}
    return a_request("POST", "/v1/faults", {"faults": [fault]})


@probe("api_operate", succeeds=has_answered)
def reports_a_fault_of_a_job(stage: PermissionBench) -> Json:
    job, _ = a_run(stage, AttemptState.RUNNING, node=1)
    fault = {"jobId": job.job_id, "code": "train:hang", "observedAt": rfc3339(now())}
    return a_request("POST", "/v1/faults", {"faults": [fault]})


@probe("api_admin", succeeds=has_answered)
def shows_the_policy(_stage: PermissionBench) -> Json:
    return a_request("GET", f"/v1/clusters/{FLEET}/policy")


@probe("api_admin", succeeds=has_answered)
def tries_a_policy(_stage: PermissionBench) -> Json:
    return a_request("POST", f"/v1/clusters/{FLEET}/policy/test", {"changes": {}})


@probe("api_admin", succeeds=has_answered)
def sets_a_fleet_quota(stage: PermissionBench) -> Json:
    stage.forget(quota_rows.fleet_quotas_key(), quota_rows.setup_key())
    return a_request("PUT", f"/v1/clusters/{FLEET}/quotas", {"quotas": {}, "reason": "A probe."})


_TEAM = "probe-team"


@contextmanager
def _is_gone_afterwards(stage: PermissionBench) -> Iterator[None]:
    """Delete the team even after a refusal: otherwise jobs of other probes would need a team."""
    try:
        yield
    finally:
        stage.forget(quota_rows.team_key(_TEAM))


@probe("api_admin", succeeds=has_answered, during=_is_gone_afterwards)
def removes_a_team(stage: PermissionBench) -> Json:
    stage.forget(quota_rows.team_key(_TEAM))
    stage.put(quota_rows.setup_row(quota_rows.team_key(_TEAM), Team(name=_TEAM), 0))
    return a_request("DELETE", f"/v1/teams/{_TEAM}", reason="probe")


@probe("api_admin", succeeds=has_answered)
def returns_the_policy(_stage: PermissionBench) -> Json:
    return a_request("POST", f"/v1/clusters/{FLEET}/policy", {"changes": {}, "reason": "A probe."})
