"""A fleet during a recovery, for the exact outputs of the command."""

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.incidents import StageTimes
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.jobs.job import ResumeOption, ResumePlan
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import (
    a_decision,
    a_fleet_node,
    a_job,
    affected,
    ago,
    an_attempt,
    an_incident,
    some_evidence,
    store,
    store_timeline_entries,
)


def store_running_recovery(gateway: Gateway) -> None:
    """Store job 1, which runs attempt 2 while node 1 is replaced, the pending job 2, and the ended job 3."""
    ledger = gateway.fakes.ledger
    plan = ResumePlan(
        incident_id="inc-0000000001",
        after_attempt=1,
        option=ResumeOption.FREE_NODE,
        decision_id="dec-0000000003",
        planned_at=ago(minutes=11),
    )
    job = a_job(
        1,
        state="RUNNING",
        reason="All 2 pods are running.",
        current_attempt=2,
        resume_plan=plan,
        started_at=ago(minutes=25),
    )
    waiting = a_job(2, reason="Needs 2 free nodes of one pool; 1 is free.")
    over = a_job(3, state="SUCCEEDED", reason="Every pod ended with 0.", current_attempt=1, ended_at=ago(minutes=5))
    point = ResumePoint(attempt=1, step=412, manifest="attempt=1/step=000000412/manifest.json")
    lost_attempt = an_attempt(
        job, 1, state="LOST", reason="Its node failed.", running_at=ago(minutes=25), ended_at=ago(minutes=12)
    )
    resumed_attempt = an_attempt(
        job,
        2,
        nodes=(3, 2),
        is_pinned=True,
        resume_from=point,
        running_at=ago(minutes=9),
        decision_id="dec-0000000004",
    )
    stages = StageTimes(
        detected_at=ago(minutes=12),
        planned_at=ago(minutes=11, seconds=58.2),
        cordoned_at=ago(minutes=11, seconds=57.9),
        jobs_stopped_at=ago(minutes=11, seconds=50),
        repair_requested_at=ago(minutes=11, seconds=48),
    )
    incident = an_incident(1, affected_jobs=affected(job), repairs=("replace",), stages=stages, is_drill=True)
    resume_decision = a_decision(
        3,
        incident.incident_id,
        kind="RESUME",
        action="FREE_NODE",
        reason="A free node is ready now; nothing is quicker.",
        chosen=Alternative(option="FREE_NODE", why_not="", expected_seconds=120, gpu_hours_lost=0.53, usd=2.67),
        alternatives=(
            Alternative(option="SPARE", why_not="No spare is configured for this pool."),
            Alternative(
                option="WAIT_FOR_REPAIR",
                why_not="The replacement takes about 16 minutes, and the job would stand still.",
                expected_seconds=960,
                gpu_hours_lost=4.27,
                usd=21.33,
            ),
        ),
    )
    admitted = a_decision(
        4, job.job_id, kind="ADMISSION", action="ADMIT", reason="Two nodes of p5-workers are free; its turn has come."
    )
    store(
        ledger,
        job,
        waiting,
        over,
        lost_attempt,
        resumed_attempt,
        incident,
        some_evidence(incident),
        resume_decision,
        admitted,
    )
    store(ledger, a_decision(1, incident.incident_id))
    store(
        ledger,
        a_fleet_node(1, is_cordoned=True, incident_id=incident.incident_id),
        *(a_fleet_node(n, accelerators_in_use=8) for n in (2, 3)),
        a_fleet_node(4),
    )
    store_timeline_entries(
        ledger,
        incident.incident_id,
        (ago(minutes=12), "fault", "hyperpod-i-00000000000000001: Xid 79, GPU has fallen off the bus."),
        (ago(minutes=11, seconds=58), "decided", "ACT: Xid 79 calls for a replacement."),
        (ago(minutes=11, seconds=57), "cordoned", "New pods stay off the node."),
        (ago(minutes=11, seconds=50), "job", "job-0000000001: attempt 1 is stopped; it resumes on a free node."),
        (
            ago(minutes=11, seconds=48),
            "repair",
            "Replace was asked of HyperPod and accepted; published p90 of a replacement is about 16 minutes.",
        ),
    )
    store_timeline_entries(
        ledger,
        job.job_id,
        (ago(minutes=29), "submitted", "Submitted by role/Researcher (ana)."),
        (ago(minutes=25), "running", "Attempt 1 runs on 2 nodes."),
        (ago(minutes=9), "running", "Attempt 2 runs, from step 412."),
    )
