"""The executions of the workflow tests, as a table. A test fails if no execution takes some transition."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.template.documents import states, workflow
from tests.workflow.workflow_bench import Answer, TaskError, WorkflowCase

Answers = Mapping[str, Answer | Sequence[Answer]]

BROKEN = TaskError("KeyError", "a bug")
LOST = TaskError("PermanentError", "NotAllowed: patch node hyperpod-i-0ab: 403")
LATE = TaskError("States.Timeout")
NO_POLICY = TaskError("NoPolicyInForce", "No policy of the site can be used.")
FLAPPING = TaskError("TransientError", "Throttled: describe cluster")


def says(outcome: str, **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "reason": f"It is {outcome.lower()}.", **more}


# ---------------------------------------------------------------- recover_node

PLAN = says("ACT", repairsNode=True, settleSeconds=5, maxRepairs=3, decisionId="dec-4m")
RETRY = says("RETRY", rung="", waitSeconds=30)
REQUESTED = says("REQUESTED", rung="replace", waitSeconds=0)

WELL = {
    "PlanRecovery": PLAN,
    "AwaitApproval": says("APPROVED", facts={}),
    "CordonNode": says("CORDONED"),
    "DrainNode": says("JOBS_AFFECTED", jobs=[{"jobId": "job-llm", "attempt": 1}]),
    "AwaitStopAllowed": says("RELEASED", facts={}),
    "RepairNode": REQUESTED,
    "AwaitNode": says("NODE_BACK", facts={"instanceId": "i-0ce"}),
    "CheckNode": says("DEEP"),
    "AwaitValidation": says("VALID", facts={}),
    "AwaitProvider": says("REPAIR_POSSIBLE", facts={}),
    "AwaitRepairPossible": says("REPAIR_POSSIBLE", facts={}),
    "AwaitGuardrails": says("RELEASED", facts={}),
    "ReturnNode": says("RETURNED"),
    "PlanResume": says("PLANNED", jobs=[{"jobId": "job-llm", "attempt": 1, "option": "SPARE"}]),
    "AwaitResume": says("JOBS_RESUMED", facts={}),
    "SettleIncident": says("RECOVERED"),
}
NODE_TASKS, JOB_TASKS = (
    tuple(name for name, state in branch["States"].items() if state["Type"] == "Task")
    for branch in workflow("recover_node")["States"]["Recover"]["Branches"]
)
IN_BRANCHES = (*(name for name in NODE_TASKS if name != "AwaitRepairPossible"), *JOB_TASKS)
"""Tasks that the case `well` with a hold first reaches."""
LATER = says("LATER", repairsNode=False, settleSeconds=0, maxRepairs=3, decisionId="dec-4l")
JOBS_ONLY = {**PLAN, "repairsNode": False}
STOP_HELD: Answers = {"PlanRecovery": JOBS_ONLY, "DrainNode": [says("HELD"), WELL["DrainNode"]]}
IN_THE_WAY = {"RepairNode": [says("LATER", rung="", waitSeconds=0), REQUESTED]}
HOLD_FIRST = {"RepairNode": [says("HELD", rung="", waitSeconds=0), REQUESTED]}
BLOCKED_FIRST = {"RepairNode": [says("BLOCKED", rung="", waitSeconds=0), REQUESTED]}
ASK = {**PLAN, "outcome": "ASK"}


def recovery(name: str, ends: str, answers: Answers | None = None, **more: Any) -> WorkflowCase:
    return WorkflowCase(f"recover-{name}", "recover_node", {**WELL, **(answers or {})}, ends, **more)


def settled(outcome: str, **answers: Any) -> Answers:
    return {**answers, "SettleIncident": says(outcome)}


RECOVER_NODE = [
    recovery("well", "Recovered", visits=("ReturnNode", "AwaitResume", "JoinBranches")),
    recovery("observe-only", "Observed", settled("OBSERVED", PlanRecovery=says("OBSERVE")), never=("CordonNode",)),
    recovery("nothing-to-do", "Observed", settled("OBSERVED", PlanRecovery=says("NOTHING")), never=("CordonNode",)),
    recovery("other-owner", "StoodDown", settled("STOOD_DOWN", PlanRecovery=says("STAND_DOWN")), never=("CordonNode",)),
    recovery(
        "jobs-only",
        "Recovered",
        {"PlanRecovery": JOBS_ONLY},
        visits=("LeaveNode", "AwaitResume"),
        never=("CordonNode", "RepairNode"),
    ),
    recovery(
        "jobs-only-approved",
        "Recovered",
        {"PlanRecovery": {**JOBS_ONLY, "outcome": "ASK"}},
        visits=("AwaitApproval", "LeaveNode"),
        never=("CordonNode",),
    ),
    recovery("stop-held", "Recovered", STOP_HELD, visits=("AwaitStopAllowed", "LeaveNode", "AwaitResume")),
    recovery(
        "stop-held-and-vetoed",
        "StoodDown",
        settled("STOOD_DOWN", **STOP_HELD, AwaitStopAllowed=says("OPTED_OUT")),
        visits=("AwaitStopAllowed",),
        never=("PlanResume",),
    ),
    recovery("stop-held-for-ever", "Recovered", {**STOP_HELD, "DrainNode": says("HELD")}, visits=("LeaveNode",)),
    recovery("breaks-in-AwaitStopAllowed", "RecoveryFailed", {**STOP_HELD, "AwaitStopAllowed": BROKEN}),
    recovery("late-in-AwaitStopAllowed", "RecoveryFailed", {**STOP_HELD, "AwaitStopAllowed": LATE}),
    recovery("hyperpod-busy", "Recovered", {"PlanRecovery": [LATER, PLAN]}, visits=("AwaitProvider", "CordonNode")),
    recovery(
        "hyperpod-busy-for-ever",
        "StoodDown",
        settled("STOOD_DOWN", PlanRecovery=LATER),
        visits=("AwaitProvider",),
        never=("CordonNode",),
    ),
    recovery("breaks-in-AwaitProvider", "RecoveryFailed", {"PlanRecovery": LATER, "AwaitProvider": BROKEN}),
    recovery("late-in-AwaitProvider", "RecoveryFailed", {"PlanRecovery": LATER, "AwaitProvider": LATE}),
    recovery("work-may-end-first", "Recovered", IN_THE_WAY, visits=("AwaitRepairPossible", "AwaitNode")),
    recovery("breaks-in-AwaitRepairPossible", "RecoveryFailed", {**IN_THE_WAY, "AwaitRepairPossible": BROKEN}),
    recovery("late-in-AwaitRepairPossible", "RecoveryFailed", {**IN_THE_WAY, "AwaitRepairPossible": LATE}),
    recovery("examined", "Recovered", {"RepairNode": says("DIAGNOSE")}, never=("AwaitNode",)),
    recovery("healthy-by-itself", "Recovered", {"RepairNode": says("HEALTHY")}, never=("AwaitNode",)),
    recovery("repair-not-needed", "Recovered", {"RepairNode": says("NOT_NEEDED")}, never=("AwaitValidation",)),
    recovery("provider-busy", "Recovered", {"RepairNode": [RETRY, RETRY, REQUESTED]}, visits=("PauseRepair",)),
    recovery("held", "Recovered", HOLD_FIRST, visits=("AwaitGuardrails", "AwaitNode")),
    recovery("blocked", "Recovered", BLOCKED_FIRST, visits=("AwaitGuardrails", "AwaitNode")),
    recovery("approved", "Recovered", {"PlanRecovery": ASK}, visits=("AwaitApproval", "CordonNode")),
    recovery(
        "declined",
        "Observed",
        settled("OBSERVED", PlanRecovery=ASK, AwaitApproval=says("DECLINED")),
        never=("CordonNode",),
    ),
    recovery(
        "nobody-approves",
        "Observed",
        settled("OBSERVED", PlanRecovery=ASK, AwaitApproval=says("DEADLINE_PASSED")),
        never=("CordonNode",),
    ),
    recovery(
        "asked-anew",
        "Recovered",
        {"PlanRecovery": ASK, "AwaitApproval": [says("SUPERSEDED"), says("APPROVED")]},
        visits=("CordonNode",),
    ),
    recovery(
        "superseded-for-ever",
        "Observed",
        settled("OBSERVED", PlanRecovery=ASK, AwaitApproval=says("SUPERSEDED")),
        never=("CordonNode",),
    ),
    recovery("breaks-in-AwaitApproval", "RecoveryFailed", {"PlanRecovery": ASK, "AwaitApproval": BROKEN}),
    recovery("late-in-AwaitApproval", "RecoveryFailed", {"PlanRecovery": ASK, "AwaitApproval": LATE}),
    recovery(
        "reboot-then-replace",
        "Recovered",
        {"AwaitNode": [says("DEADLINE_PASSED"), says("NODE_BACK")]},
        visits=("MayRepairAgain",),
    ),
    recovery("invalid-then-valid", "Recovered", {"AwaitValidation": [says("INVALID"), says("VALID")]}),
    recovery(
        "ladder-used-up",
        "NeedsPerson",
        settled("WAITING_FOR_PERSON", RepairNode=says("ASK_PERSON")),
        visits=("RepairNeedsPerson", "AwaitResume"),
    ),
    recovery("taken-over", "StoodDown", settled("STOOD_DOWN", RepairNode=says("STAND_DOWN")), visits=("StandDown",)),
    recovery("provider-busy-for-ever", "NeedsPerson", settled("WAITING_FOR_PERSON", RepairNode=RETRY)),
    recovery("never-back", "NeedsPerson", settled("WAITING_FOR_PERSON", AwaitNode=says("DEADLINE_PASSED"))),
    recovery("unknown-repair-outcome", "RecoveryFailed", {"RepairNode": says("PONDER")}),
    recovery("no-jobs", "Recovered", {"PlanResume": says("NO_JOBS", jobs=[])}, never=("AwaitResume",)),
    recovery("jobs-queued", "Recovered", {"AwaitResume": says("QUEUED", facts={})}),
    recovery("job-not-back", "JobNotResumed", settled("JOB_NOT_RESUMED", AwaitResume=says("DEADLINE_PASSED"))),
    recovery("settled-as-failed", "RecoveryFailed", settled("FAILED")),
    recovery("settled-as-something-new", "RecoveryFailed", settled("SHELVED")),
    recovery("cannot-settle", "RecoveryFailed", {"SettleIncident": BROKEN}),
    recovery("branch-breaks-uncaught", "RecoveryFailed", {"PlanRecovery": {**PLAN, "settleSeconds": "soon"}}),
    recovery("transient-to-the-end", "RecoveryFailed", {"CordonNode": FLAPPING}, never=("DrainNode",)),
    *(recovery(f"breaks-in-{s}", "RecoveryFailed", {s: LOST}) for s in ("PlanRecovery", "CordonNode", "DrainNode")),
    *(recovery(f"breaks-in-{s}", "RecoveryFailed", {**HOLD_FIRST, s: BROKEN}) for s in IN_BRANCHES),
    *(
        recovery(f"late-in-{s}", "RecoveryFailed", {**HOLD_FIRST, s: LATE})
        for s in ("AwaitNode", "AwaitValidation", "AwaitGuardrails", "AwaitResume")
    ),
    recovery("unknown-version", "UnsupportedInput", document={"schemaVersion": 2, "incidentId": "inc-1", "run": 1}),
    recovery("no-incident", "UnsupportedInput", document={"schemaVersion": 1, "run": 1}),
    recovery("no-input", "UnsupportedInput", document={}),
]

# ---------------------------------------------------------------- run_job

RUNS = {
    "LaunchJob": says("LAUNCHED", waitSeconds=0),
    "AwaitRunning": says("RUNNING", facts={}),
    "MarkRunning": says("RUNNING"),
    "AwaitEnd": says("ENDED", facts={"state": "SUCCEEDED"}),
    "StopAttempt": says("STOPPING"),
    "AwaitStopped": says("STOPPED", facts={"state": "LOST"}),
    "SettleAttempt": says("JOB_SUCCEEDED"),
}
NOT_YET = says("NOT_YET", waitSeconds=5)
STOP = says("STOP_REQUESTED", facts={})
STILL_RUNS = says("STILL_RUNS", waitSeconds=300)


def attempt(name: str, ends: str, answers: Answers | None = None, **more: Any) -> WorkflowCase:
    return WorkflowCase(f"run-{name}", "run_job", {**RUNS, **(answers or {})}, ends, **more)


def ends_as(outcome: str, **answers: Any) -> Answers:
    return {**answers, "SettleAttempt": says(outcome)}


RUN_JOB = [
    attempt("well", "JobSucceeded", visits=("AwaitRunning", "MarkRunning", "AwaitEnd"), never=("StopAttempt",)),
    attempt("waits-for-remains", "JobSucceeded", {"LaunchJob": [NOT_YET, NOT_YET, RUNS["LaunchJob"]]}),
    attempt("remains-for-ever", "JobRequeued", ends_as("JOB_REQUEUED", LaunchJob=NOT_YET), never=("AwaitRunning",)),
    attempt("gives-up", "JobRequeued", ends_as("JOB_REQUEUED", LaunchJob=says("GIVE_UP")), never=("AwaitRunning",)),
    attempt("stale-at-launch", "AttemptStale", {"LaunchJob": says("STALE")}, never=("SettleAttempt",)),
    attempt("unknown-launch", "RunJobFailed", {"LaunchJob": says("PONDER")}, visits=("SettleAttempt",)),
    attempt("ends-before-seen", "JobSucceeded", {"AwaitRunning": RUNS["AwaitEnd"]}, never=("MarkRunning",)),
    attempt("stopped-early", "JobCancelled", ends_as("JOB_CANCELLED", AwaitRunning=STOP), visits=("AwaitStopped",)),
    attempt("never-runs", "JobRequeued", ends_as("JOB_REQUEUED", AwaitRunning=says("DEADLINE_PASSED"))),
    attempt("unknown-running", "RunJobFailed", {"AwaitRunning": says("PONDER")}, visits=("SettleAttempt",)),
    attempt(
        "kueue-admits",
        "JobSucceeded",
        {"LaunchJob": [says("QUEUED"), says("LAUNCHED")], "AwaitAdmission": says("ADMITTED", facts={})},
        visits=("AwaitAdmission", "AwaitRunning"),
    ),
    attempt(
        "kueue-admitted-and-it-ended",
        "JobSucceeded",
        {"LaunchJob": says("QUEUED"), "AwaitAdmission": RUNS["AwaitEnd"]},
        never=("AwaitRunning",),
    ),
    attempt(
        "stopped-in-kueues-queue",
        "JobCancelled",
        ends_as("JOB_CANCELLED", LaunchJob=says("QUEUED"), AwaitAdmission=STOP),
        visits=("AwaitStopped",),
        never=("AwaitRunning",),
    ),
    attempt(
        "kueue-never-admits",
        "JobRequeued",
        ends_as("JOB_REQUEUED", LaunchJob=says("QUEUED"), AwaitAdmission=says("DEADLINE_PASSED")),
        visits=("AwaitStopped",),
    ),
    attempt(
        "unknown-admission",
        "RunJobFailed",
        {"LaunchJob": says("QUEUED"), "AwaitAdmission": says("PONDER")},
        visits=("SettleAttempt",),
    ),
    attempt(
        "breaks-in-AwaitAdmission",
        "RunJobFailed",
        {"LaunchJob": says("QUEUED"), "AwaitAdmission": BROKEN},
        visits=("SettleAttempt",),
    ),
    attempt(
        "late-in-AwaitAdmission",
        "RunJobFailed",
        {"LaunchJob": says("QUEUED"), "AwaitAdmission": LATE},
        visits=("SettleAttempt",),
    ),
    attempt("stale-while-marking", "AttemptStale", {"MarkRunning": says("STALE")}, never=("SettleAttempt",)),
    attempt("stopped", "JobRequeued", ends_as("JOB_REQUEUED", AwaitEnd=STOP), visits=("AwaitStopped",)),
    attempt("runs-too-long", "JobFailed", ends_as("JOB_FAILED", AwaitEnd=says("DEADLINE_PASSED"))),
    attempt("never-stops", "JobRequeued", ends_as("JOB_REQUEUED", AwaitEnd=STOP, AwaitStopped=says("DEADLINE_PASSED"))),
    attempt("unknown-end", "RunJobFailed", {"AwaitEnd": says("PONDER")}, visits=("SettleAttempt",)),
    attempt("application-fails", "JobFailed", ends_as("JOB_FAILED")),
    attempt("settled-before", "AttemptStale", ends_as("ALREADY_SETTLED")),
    attempt("settled-as-something-new", "RunJobFailed", ends_as("JOB_SHELVED")),
    attempt("cannot-settle", "RunJobFailed", {"SettleAttempt": BROKEN}),
    attempt("transient-to-the-end", "RunJobFailed", {"LaunchJob": FLAPPING}, visits=("SettleAttempt",)),
    attempt("no-policy-to-the-end", "RunJobFailed", {"LaunchJob": NO_POLICY}, visits=("SettleAttempt",)),
    attempt(
        "still-runs-after-a-failure",
        "JobSucceeded",
        {"AwaitEnd": [BROKEN, RUNS["AwaitEnd"]], "SettleAttempt": [STILL_RUNS, RUNS["SettleAttempt"]]},
        visits=("PauseAfterFailure",),
    ),
    attempt(
        "still-runs-after-an-unknown-end",
        "JobRequeued",
        {"AwaitEnd": [says("PONDER"), STOP], "SettleAttempt": [STILL_RUNS, says("JOB_REQUEUED")]},
        visits=("PauseAfterFailure", "AwaitStopped"),
    ),
    attempt("fails-for-ever", "RunJobFailed", {"AwaitEnd": BROKEN, "SettleAttempt": STILL_RUNS}),
    attempt("still-runs-for-ever", "RunJobFailed", {"SettleAttempt": STILL_RUNS}),
    *(
        attempt(f"breaks-in-{s}", "RunJobFailed", {"AwaitEnd": STOP, s: BROKEN}, visits=("SettleAttempt",))
        for s in RUNS
        if s != "SettleAttempt"
    ),
    *(
        attempt(f"late-in-{s}", "RunJobFailed", {"AwaitEnd": STOP, s: LATE}, visits=("SettleAttempt",))
        for s in ("AwaitRunning", "AwaitEnd", "AwaitStopped")
    ),
    attempt("unknown-version", "UnsupportedInput", document={"schemaVersion": 2, "jobId": "job-1", "attempt": 1}),
    attempt("no-attempt", "UnsupportedInput", document={"schemaVersion": 1, "jobId": "job-1"}),
]

# ---------------------------------------------------------------- burst_capacity

RENTS = {
    "CheckRental": says("WANTED"),
    "OpenPool": says("OPENED"),
    "AwaitNodes": says("NODES_READY", facts={}),
    "HandOver": says("HANDED_OVER"),
    "NextOffer": says("OPENED"),
    "AwaitEnd": says("OVER", facts={}),
    "ReleasePool": says("RELEASED"),
    "SettleRental": says("SETTLED"),
}
TO_GO = says("NOT_YET", waitSeconds=0)
TURNED_DOWN: Answers = {"AwaitNodes": [says("REFUSED", facts={}), RENTS["AwaitNodes"]]}


def rental(name: str, ends: str = "CapacityReleased", answers: Answers | None = None, **more: Any) -> WorkflowCase:
    return WorkflowCase(f"rent-{name}", "burst_capacity", {**RENTS, **(answers or {})}, ends, **more)


BURST_CAPACITY = [
    rental("well", visits=("OpenPool", "HandOver", "AwaitEnd", "ReleasePool"), never=("NextOffer",)),
    rental("goes-on-where-it-was-ready", answers={"CheckRental": says("READY")}, never=("OpenPool",)),
    rental("goes-on-giving-back", answers={"CheckRental": says("ENDING")}, never=("OpenPool", "AwaitEnd")),
    rental("is-over", "RentalStale", {"CheckRental": says("STALE")}, never=("ReleasePool",)),
    rental("stale-at-open", "RentalStale", {"OpenPool": says("STALE")}),
    rental("stale-at-hand-over", "RentalStale", {"HandOver": says("STALE")}),
    rental("stale-at-next", "RentalStale", {**TURNED_DOWN, "NextOffer": says("STALE")}),
    rental("stale-at-release", "RentalStale", {"ReleasePool": says("STALE")}),
    rental("stale-at-settle", "RentalStale", {"SettleRental": says("STALE")}),
    rental("refused-pool", answers={"OpenPool": [says("REFUSED"), says("OPENED")]}, visits=("NextOffer",)),
    rental("not-wanted-at-open", answers={"OpenPool": says("NOT_WANTED")}, never=("AwaitNodes",)),
    rental("refused-nodes", answers=TURNED_DOWN, visits=("NextOffer", "HandOver")),
    rental("late-nodes", answers={"AwaitNodes": [says("DEADLINE_PASSED"), RENTS["AwaitNodes"]]}, visits=("NextOffer",)),
    rental("not-wanted-nodes", answers={"AwaitNodes": says("NOT_WANTED", facts={})}, never=("HandOver",)),
    rental("no-other-pool", answers={**TURNED_DOWN, "NextOffer": says("NO_OTHER_POOL")}, never=("HandOver",)),
    rental("next-looks-again", answers={**TURNED_DOWN, "NextOffer": [TO_GO, TO_GO, says("OPENED")]}),
    rental("next-for-ever", answers={**TURNED_DOWN, "NextOffer": TO_GO}, never=("HandOver",)),
    rental("hand-over-looks-again", answers={"HandOver": [TO_GO, says("HANDED_OVER")]}, visits=("PauseHandOver",)),
    rental("hand-over-for-ever", answers={"HandOver": TO_GO, "NextOffer": says("NO_OTHER_POOL")}, never=("AwaitEnd",)),
    rental("not-wanted-at-hand-over", answers={"HandOver": says("NOT_WANTED")}, never=("AwaitEnd",)),
    rental("is-in-use-after-all", answers={"ReleasePool": [says("IN_USE"), says("RELEASED")]}),
    rental("release-looks-again", answers={"ReleasePool": [TO_GO, TO_GO, says("RELEASED")]}, visits=("PauseRelease",)),
    rental("runs-past-its-deadline", answers={"AwaitEnd": says("DEADLINE_PASSED")}),
    rental("never-gone", "BurstCapacityFailed", {"ReleasePool": TO_GO, "SettleRental": says("NOT_YET")}),
    *(
        rental(f"unknown-{s}", "BurstCapacityFailed", {**TURNED_DOWN, s: says("PONDER")}, visits=("SettleRental",))
        for s in ("CheckRental", "OpenPool", "AwaitNodes", "HandOver", "NextOffer", "AwaitEnd")
    ),
    *(
        rental(f"breaks-in-{s}", "BurstCapacityFailed", {**TURNED_DOWN, s: BROKEN}, visits=("SettleRental",))
        for s in RENTS
    ),
    rental("late-in-AwaitNodes", "BurstCapacityFailed", {"AwaitNodes": LATE}, visits=("ReleasePool",)),
    rental("late-in-AwaitEnd", "BurstCapacityFailed", {"AwaitEnd": LATE}, visits=("ReleasePool",)),
    rental("flapping-to-the-end", "BurstCapacityFailed", {"OpenPool": FLAPPING}, visits=("ReleasePool",)),
    WorkflowCase(
        "rent-unsupported", "burst_capacity", {}, "UnsupportedInput", document={"schemaVersion": 2, "jobId": "job-llm"}
    ),
]

CASES = [*RECOVER_NODE, *RUN_JOB, *BURST_CAPACITY]


def ending_states(machine: str) -> dict[str, tuple[str, str]]:
    """Return status and error by the name of each state that ends the machine."""
    kinds = {"Succeed": "SUCCEEDED", "Fail": "FAILED"}
    return {n: (kinds[s["Type"]], s.get("Error", "")) for n, s in states(workflow(machine)) if s["Type"] in kinds}
