"""A whole recovery in memory: the services in the order in which recover_node calls them, and a world that moves on.

Every call that writes or acts goes through one crash plan. A call that a crash interrupts is repeated, as Step
Functions, the queue or the sweep would do it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, get_type_hints

from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.health.incidents import FactKind, Incident, IncidentState, NodeFact
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.guardrails import Register
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Put, Row, Table, WorkflowName
from evenkeel.services.context import Context
from evenkeel.services.incidents import approve_recovery, ingest_event, settle_incident
from evenkeel.services.incidents.record_node_fact import IngestResult
from evenkeel.services.recovery import check_node, cordon_node, drain_node, plan_recovery, repair_node, return_node
from evenkeel.services.resume import plan_resume
from evenkeel.services.storage import guardrail_registers
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from evenkeel.services.waits import evaluate_waits, open_wait, resolve_wait
from tests.fakes import Crash, CrashPlan, a_provider_node, crashing
from tests.fakes.cluster import instance_id
from tests.unit.services_jobs.job_scenario import JobScenario

T = TypeVar("T")

QUICK = Policy(
    name="quick",
    repair=RepairPolicy(
        reboot_deadline_seconds=60,
        controller_deadline_seconds=300,
        replace_deadline_seconds=120,
        takeover_seconds=50,
        owner_deadline_seconds=200,
        karpenter_deadline_seconds=100,
        repair_possible_deadline_seconds=400,
        reconcile_after_seconds=30,
        retry_seconds=5,
        settle_scale=0,
        drain_scale=0,
        validation_deadline_seconds=40,
        return_margin_seconds=5,
        approval_deadline_seconds=60,
    ),
    jobs=JobPolicy(
        resume_deadline_seconds=300, lost_node_seconds=10, restart_backoff_seconds=1, attribution_delay_seconds=5
    ),
    watch=WatchPolicy(not_ready_seconds=10, execution_grace_seconds=10),
)


def a_fact(number: int = 1, **changes: Any) -> NodeFact:
    facts: dict[str, Any] = {
        "kind": FactKind.FAULT,
        "source": "hyperpod.node-health",
        "instance_id": instance_id(number),
        "fault_key": "hp:NvidiaErrorReboot",
        "code": "NvidiaErrorReboot",
        "observed_at": "2026-11-03T10:15:00Z",
        "envelope_id": "3f0c5e0e-8a51-4c0b-9d3c-0f5d8e7a2b61",
    }
    return NodeFact.model_validate({**facts, **changes})


@dataclass
class RecoveryScenario:
    """A fleet with a job on its first two nodes, and the recovery services on it."""

    size: int = 3
    policy: Policy = QUICK
    mode: Mode = Mode.ACT
    drills_may_act: bool = False
    with_job: bool = True
    is_stuck: bool = False
    """Repairs never end."""
    replacement_is_faulty: bool = False
    """A reboot does not clear the fault marks."""
    meanwhile: Callable[[], None] | None = None
    """Actions of people while a recovery waits for them."""
    plan: CrashPlan = field(default_factory=CrashPlan)

    def __post_init__(self) -> None:
        self.scenario = JobScenario(size=self.size, policy=self.policy)
        self.world = world = self.scenario.world
        self.job_id = self.scenario.running(nodes=2, checkpoint_uri="").job_id if self.with_job else ""
        world.workflows.executions.clear()
        world.cycle_requests.reasons.clear()
        self.ledger = crashing(world.ledger, self.plan, "commit")
        self.cluster = crashing(world.cluster, self.plan, "cordon", "return_to_service", "stop", "evict", "start_check")
        self.provider = crashing(world.provider, self.plan, "reboot", "replace", "check_health")
        self.workflows = crashing(world.workflows, self.plan, "start")
        self.task_tokens = crashing(world.task_tokens, self.plan, "succeed")
        self.wait_answers = crashing(world.wait_answers, self.plan, "request")
        self.cycle_requests = crashing(world.cycle_requests, self.plan, "request")
        self.on_call = crashing(world.on_call, self.plan, "alert")
        self.crashes = 0
        self.visited: list[str] = []
        """`state: outcome` in order, as an operator would read the execution."""

    # ------------------------------------------------------------ calls of single services

    def call_until_done(self, call: Callable[[], T]) -> T:
        """Call, and call again after a crash."""
        for _ in range(3):
            try:
                return call()
            except Crash:
                self.crashes += 1
                self.world.clock.advance(1)
        raise AssertionError("it keeps crashing")

    @property
    def now(self) -> Any:
        return self.world.clock.now()

    def context(self, **given: Any) -> Context:
        """Return a context of this scenario's ports, policy and mode; `given` replaces some."""
        known = {
            "ledger": self.ledger,
            "cluster": self.cluster,
            "provider": self.provider,
            "workflows": self.workflows,
            "task_tokens": self.task_tokens,
            "wait_answers": self.wait_answers,
            "cycle_requests": self.cycle_requests,
            "on_call": self.on_call,
            "policy": self.policy,
            "mode": self.mode,
            "drills_may_act": self.drills_may_act,
        }
        return self.world.context(**{**known, **given})

    def ingest(self, fact: NodeFact) -> IngestResult:
        return self.call_until_done(lambda: ingest_event.ingest_fact(fact, self.context()))

    def run_state(self, name: str, service: Any, **parameters: Any) -> Any:
        """Run a task state."""
        request = get_type_hints(service.run)["request"](incident_id=self.incident_id, run=self.run, **parameters)
        result = self.call_until_done(lambda: service.run(request, self.context()))
        self.visited.append(f"{name}: {result.outcome}")
        return result

    def await_condition(
        self, name: str, kind: ConditionKind, meanwhile: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Run a waiting state: open the wait, then run the other parts until an answer arrives."""
        token = f"token-{name}-{len(self.visited)}"
        request = open_wait.OpenWaitRequest(kind=kind, token=token, incident_id=self.incident_id, run=self.run)
        self.call_until_done(lambda: open_wait.run(request, self.context()))
        self.deliver_wait_answers()
        for _ in range(200):
            if token in self.world.task_tokens.answers:
                break
            self.advance_five_seconds()
            if meanwhile:
                meanwhile()
            self.call_until_done(lambda: evaluate_waits.run(self.context(), repeat_answered=True))
            self.deliver_wait_answers()
        answer = self.world.task_tokens.answers[token]
        self.visited.append(f"{name}: {answer['outcome']}")
        return answer

    def open_wait(self, kind: ConditionKind) -> None:
        """Open a wait and leave it open."""
        request = open_wait.OpenWaitRequest(
            kind=kind, token=f"token-{kind}", incident_id=self.incident_id, run=self.run
        )
        open_wait.run(request, self.context())

    def evaluate_waits_once(self) -> list[str]:
        """Evaluate the waits of the incident once, and return the outcomes that were requested."""
        result = evaluate_waits.run(self.context(), subject=self.incident_id)
        return [line.rpartition(": ")[2] for line in result.answered]

    def deliver_wait_answers(self) -> None:
        """Run `resolve_wait` twice for every requested answer."""
        requests, self.world.wait_answers.requests[:] = list(self.world.wait_answers.requests), []
        for wait_request in [*requests, *requests]:
            request = resolve_wait.ResolveWaitRequest.model_validate(
                {
                    "subject": wait_request.subject,
                    "name": wait_request.name,
                    "generation": wait_request.generation,
                    "answer": wait_request.answer,
                }
            )
            self.call_until_done(lambda request=request: resolve_wait.run(request, self.context()))  # type: ignore[misc]  # bound now

    # ------------------------------------------------------------ the passage of time

    def advance_five_seconds(self) -> None:
        """Advance the clock by 5 s, complete running repairs, settle stopped attempts, and run a scheduling cycle."""
        self.world.clock.advance(5)
        if not self.is_stuck:
            for machine in list(self.world.provider.running):
                marks = self.replacement_is_faulty and self.world.provider.running[machine] == "reboot"
                self.world.provider.finish(machine)
                if not marks:
                    self.set_fault_label(machine)
        if self.job_id:
            self.run_jobs()

    def run_jobs(self) -> None:
        job = self.scenario.job(self.job_id)
        if job.state.has_ended:
            return
        attempt = self.scenario.attempt(self.job_id, job.current_attempt)
        if not attempt.state.has_ended:
            if job.stop_of(attempt.attempt):
                self.scenario.stop(self.job_id, attempt.attempt)
                self.scenario.settle(self.job_id, attempt.attempt)
            elif job.state is JobState.STARTING:
                self.scenario.run_attempt(self.job_id, attempt.attempt)
        self.scenario.run_scheduling_cycle()

    def set_fault_label(self, machine: str, fault_type: str = "") -> None:
        """Set HyperPod's fault label of a node, or remove it if `fault_type` is empty."""
        node = next((node for node in self.world.cluster.by_name.values() if node.instance_id == machine), None)
        if node is None:
            return
        labels = {key: value for key, value in node.labels.items() if "sagemaker" not in key}
        if fault_type:
            labels["sagemaker.amazonaws.com/fault-types"] = fault_type
        self.world.cluster.set_node(node.name, labels=labels)

    # ------------------------------------------------------------ the workflow

    def report_fault(self, number: int = 1, **changes: Any) -> str:
        """Ingest a fault of a node, and return its incident."""
        fact = a_fact(number, **changes)
        if fact.fault_key.startswith("hp:"):
            self.set_fault_label(fact.instance_id, fact.fault_key.removeprefix("hp:"))
        outcome = self.ingest(fact)
        self.incident_id = outcome.incident_id
        self.run = 1
        return outcome.incident_id

    def recover(self) -> str:
        """Follow recover_node to its end, and return the outcome."""
        plan = self.run_state("PlanRecovery", plan_recovery)
        while plan.outcome == "LATER":
            self.await_condition("AwaitProvider", ConditionKind.REPAIR_POSSIBLE)
            plan = self.run_state("PlanRecovery", plan_recovery)
        node = jobs = None
        approved = ""
        while plan.outcome == "ASK" and approved != "APPROVED":
            approved = self.await_condition("AwaitApproval", ConditionKind.APPROVED, self.meanwhile)["outcome"]
            if approved == "SUPERSEDED":
                plan = self.run_state("PlanRecovery", plan_recovery)
            elif approved != "APPROVED":
                plan = plan.replace(outcome="OBSERVE")
                break
        if plan.outcome == "ACT" or approved == "APPROVED":
            if plan.repairs_node:
                self.run_state("CordonNode", cordon_node)
            while self.run_state("DrainNode", drain_node).outcome == "HELD":
                self.await_condition("AwaitStopAllowed", ConditionKind.RELEASED, self.meanwhile)
            # The branches run beside each other; here the job branch begins first and is awaited last.
            resume = self.run_state("PlanResume", plan_resume)
            node = self.node_branch(plan)
            jobs = {"outcome": resume.outcome, "reason": resume.reason}
            if resume.outcome == "PLANNED":
                jobs = self.await_condition("AwaitResume", ConditionKind.JOBS_RESUMED)
        parts = {"plan": {"outcome": plan.outcome, "reason": plan.reason}, "node": node, "jobs": jobs}
        return str(self.run_state("SettleIncident", settle_incident, **parts).outcome)

    def node_branch(self, plan: Any) -> dict[str, Any]:
        if not plan.repairs_node:
            return {"outcome": "NOT_NEEDED", "reason": plan.reason}
        self.world.clock.advance(plan.evidence_wait_seconds)
        for _ in range(20):
            repair = self.run_state("RepairNode", repair_node)
            match repair.outcome:
                case "REQUESTED" | "HEALTHY" | "DIAGNOSE":
                    is_asked = repair.outcome == "REQUESTED"
                    if (
                        is_asked
                        and self.await_condition("AwaitNode", ConditionKind.NODE_BACK)["outcome"] != "NODE_BACK"
                    ):
                        continue
                    self.run_state("CheckNode", check_node)
                    if self.await_condition("AwaitValidation", ConditionKind.NODE_VALID)["outcome"] != "VALID":
                        continue
                    returned = self.run_state("ReturnNode", return_node)
                    return {"outcome": returned.outcome, "reason": returned.reason}
                case "RETRY":
                    self.world.clock.advance(repair.wait_seconds)
                case "LATER":
                    self.await_condition("AwaitRepairPossible", ConditionKind.REPAIR_POSSIBLE)
                case "NOT_NEEDED":
                    returned = self.run_state("ReturnNode", return_node)
                    return {"outcome": returned.outcome, "reason": returned.reason}
                case "HELD" | "BLOCKED":
                    self.await_condition("AwaitGuardrails", ConditionKind.RELEASED, self.meanwhile)
                case "ASK_PERSON":
                    return {"outcome": "WAITING_FOR_PERSON", "reason": repair.reason}
                case _:
                    return {"outcome": "STOOD_DOWN", "reason": repair.reason}
        raise AssertionError("the node branch never ends")

    # ------------------------------------------------------------ current state

    @property
    def incident(self) -> Incident:
        row = self.world.ledger.get(incident_rows.incident_key(self.incident_id))
        assert row
        return rows.decode(row, Incident)

    @property
    def job(self) -> Job:
        return self.scenario.job(self.job_id)

    @property
    def lease(self) -> RepairLease | None:
        row = self.world.ledger.get(fleet_rows.lease_key(self.incident.slot))
        return rows.decode(row, RepairLease) if row else None

    def incidents(self) -> list[Incident]:
        incident_rows = [
            row for key, row in self.world.ledger.rows.items() if key.pk.startswith("INC#") and key.sk == "META"
        ]
        return [rows.decode(row, Incident) for row in incident_rows]

    def guardrail_register(self, which: RegisterName) -> Register:
        return guardrail_registers.load_register(which, self.world.context())[0]

    def execution_names(self) -> list[str]:
        return self.world.workflows.names(WorkflowName.RECOVER_NODE)

    def timeline_kinds(self) -> list[str]:
        """Return the kind of each timeline entry of the incident."""
        partition = incident_rows.incident_key(self.incident_id).pk
        return [row.doc["kind"] for row in self.world.ledger.partition(Table.INCIDENTS, partition, "EVENT#")]

    def hold_automation(self, seconds: float = 3600) -> None:
        hold = Hold(by="ana", reason="looking at it", since=self.now, until=self.now + timedelta(seconds=seconds))
        self.world.ledger.commit(Put(Row(fleet_rows.hold_key(), hold.to_json())))

    def comparable_end(self) -> dict[str, Any]:
        """Return the state that must be the same after any crash."""
        world, incident = self.world, self.incident
        left = sorted({key.pk.partition("#")[0] for key in world.ledger.rows if key.sk.startswith("WAIT#")})
        return {
            "incidents": len(self.incidents()),
            "executions": [name.removeprefix(self.incident_id) for name in self.execution_names()],
            "state": incident.state,
            "fault": incident.fault_key,
            "repairs": sorted(set(incident.repairs)),
            "replaced": world.provider.accepted_calls("replace").total(),
            "rebooted": world.provider.accepted_calls("reboot").total(),
            "branch": incident.node_branch,
            "open": [key.pk for key in world.ledger.rows if key.pk.startswith("OPEN#")],
            "waits": left,
            "holder": self.lease.incident_id if self.lease else "",
            "registered": [
                entry.life_key for which in RegisterName for entry in self.guardrail_register(which).entries
            ],
            "cordoned": [node.name for node in world.cluster.by_name.values() if node.is_cordoned],
            "tainted": [node.name for node in world.cluster.by_name.values() if node.is_awaiting_validation],
            "nodes": len(world.cluster.by_name),
            "job": (self.job.state, self.job.current_attempt) if self.job_id else None,
            "pages": sorted({page.key.removeprefix(self.incident_id) for page in world.on_call.alerts}),
            "kinds": sorted(set(self.timeline_kinds())),
        }


def answer_plan(
    recovery: RecoveryScenario, *, approves: bool = True, by: str = "role/Op (ana)", decision_id: str = ""
) -> Incident:
    """Let a person answer the plan that awaits approval."""
    plan = recovery.incident.plan
    assert plan
    request = approve_recovery.ApproveRecoveryRequest(
        incident_id=recovery.incident_id,
        decision_id=decision_id or plan.decision_id,
        approves=approves,
        by=by,
        reason="",
    )
    return approve_recovery.run(request, recovery.context())


SETTLED = tuple(state for state in IncidentState if state.is_settled)
__all__ = ["QUICK", "SETTLED", "RecoveryScenario", "a_fact", "a_provider_node", "answer_plan"]
