"""Checks after the job of a drill has ended: of the job, the fleet and the records."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from evenkeel.adapters.dynamo_ledger import document_of
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills.decision_replay import replay_mismatches
from evenkeel_local.drills.harness import (
    FLEET_SECONDS,
    POLL_SECONDS,
    DrillResult,
    RepairCounters,
    TrainingWork,
    await_all_nodes_ready,
    dead_letter_counts,
    read_object,
)
from evenkeel_local.reference_run import reference_digest


def check_outcome(
    result: DrillResult,
    centre: DataCentre,
    ended_job: dict[str, Any],
    uri: str,
    training_work: TrainingWork,
    counters_before: RepairCounters,
    *,
    may_overlap: bool = False,
) -> None:
    """Check the job, the fleet and the records after the disturbed job has ended."""
    _check_job(result, centre, ended_job, uri, training_work)
    _check_fence(result, centre, uri)
    await_all_nodes_ready(centre.client(), centre)
    _check_overlap(result, centre, ended_job["jobId"], may_overlap=may_overlap)
    _check_provider(result, centre, counters_before)
    check_dead_letters(result, centre)
    _check_leftovers(result, centre)
    check_decisions(result, centre)


def check_decisions(result: DrillResult, centre: DataCentre) -> None:
    """Check that every recorded decision replays to the same answer."""
    wrong = replay_mismatches(centre)
    text = f"{len(wrong)} do not: {wrong[:3]}"
    result.check("every recorded decision replays to the same answer", not wrong, text)


def _check_job(
    result: DrillResult, centre: DataCentre, job: dict[str, Any], uri: str, training_work: TrainingWork
) -> None:
    result.check("the job succeeds", job["state"] == "SUCCEEDED", f"{job['state']}: {job.get('reason', '')}")
    document = read_object(centre, uri, f"result/attempt={job['currentAttempt']}.json")
    expected_digest = reference_digest(training_work.nodes, training_work.steps, training_work.seed)
    digest = json.loads(document)["digest"] if document else "no result"
    result.check(
        "the weights equal the weights of a run without the fault",
        digest == expected_digest,
        f"{digest} against {expected_digest}",
    )


def _check_fence(result: DrillResult, centre: DataCentre, uri: str) -> None:
    document = read_object(centre, uri, "_fence")
    fence: dict[str, Any] = json.loads(document) if document else {"attempt": 0, "history": []}
    wrong = resumed_past_a_fence(fence)
    text = "; ".join(wrong) or f"{len(fence['history']) + 1} fences"
    result.check("no attempt resumes from a checkpoint that a fenced attempt wrote", not wrong, text)


def resumed_past_a_fence(fence: dict[str, Any]) -> list[str]:
    """Return the attempts that resumed from a checkpoint of a fenced attempt, by the history of the fence.

    An attempt between the checkpoint and the resumed attempt must have resumed from that checkpoint or a later one.
    """
    pins = {int(pin["attempt"]): pin.get("resumeFrom") for pin in (*fence["history"], fence)}
    wrong = []
    for attempt, resume_point in pins.items():
        if resume_point is None:
            continue
        source_attempt, step = int(resume_point["attempt"]), int(resume_point["step"])
        for skipped_attempt in range(source_attempt + 1, attempt):
            if skipped_attempt not in pins:
                continue  # this attempt never raised a fence
            skipped_pin = pins[skipped_attempt]
            if skipped_pin is None or int(skipped_pin["attempt"]) < source_attempt or int(skipped_pin["step"]) < step:
                wrong.append(
                    f"attempt {attempt} resumed from a{source_attempt} step {step} past a{skipped_attempt}'s pin"
                )
    return wrong


def _check_overlap(result: DrillResult, centre: DataCentre, job_id: str, *, may_overlap: bool) -> None:
    """Check that processes of two attempts did not overlap, unless allowed, and that all have ended."""
    runs: dict[int, list[tuple[datetime, datetime]]] = {}
    for process in centre.cluster.control("GET", f"processes?job={job_id}")["processes"]:
        attempt = int(process["job"].removeprefix(f"{job_id}-a").partition("-")[0])
        ended_at = _parse_time(process["endedAt"]) if process["endedAt"] else datetime.now(UTC)
        runs.setdefault(attempt, []).append((_parse_time(process["startedAt"]), ended_at))
        result.check(f"process of attempt {attempt} ended", bool(process["endedAt"]), str(process))
    overlaps = []
    for attempt in sorted(number for number in runs if number + 1 in runs):
        overlap = max(end for _, end in runs[attempt]) - min(start for start, _ in runs[attempt + 1])
        if overlap.total_seconds() > 0:
            overlaps.append(f"a{attempt} ended {overlap.total_seconds():.2f} s after a{attempt + 1} began")
    result.check("attempts overlap only behind a partition", may_overlap or not overlaps, "; ".join(overlaps) or "none")


def _check_provider(result: DrillResult, centre: DataCentre, counters_before: RepairCounters) -> None:
    replacements_after = RepairCounters.read(centre).replaces
    repeated_lives = {life: count for life, count in replacements_after.items() if count > 1}
    text = str(repeated_lives or f"{len(replacements_after) - len(counters_before.replaces)} new")
    result.check("the provider accepts at most one Replace per node life", not repeated_lives, text)


def check_dead_letters(result: DrillResult, centre: DataCentre) -> None:
    dead_letters = dead_letter_counts(centre)
    result.check("dead-letter queues are empty", not dead_letters, str(dead_letters or "all empty"))


def _check_leftovers(result: DrillResult, centre: DataCentre) -> None:
    """Check that no wait, pointer, charge or lease remains."""
    deadline = time.monotonic() + FLEET_SECONDS
    while (leftovers := leftover_records(centre)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    text = "; ".join(leftovers) or "no open wait, pointer, charge or lease"
    result.check("no wait, pointer, charge or lease is left open", not leftovers, text)


def leftover_records(centre: DataCentre) -> list[str]:
    """Return the open waits, pointers to incidents, charges, leases and executions."""
    names = {name: centre.outputs[f"{name}TableName"] for name in ("Jobs", "Incidents", "Fleet", "Quotas")}
    leftovers = []
    for page in (
        page
        for table in names.values()
        for page in centre.deployer.client("dynamodb").get_paginator("scan").paginate(TableName=table)
    ):
        for item in page["Items"]:
            pk, sk = item["pk"]["S"], item["sk"]["S"]
            # A released charge is not a leftover: it names the owner of the quota until the job runs again.
            is_held = sk.startswith("CHARGE#") and not document_of(item).get("releasedAt")
            is_open = is_held or pk.startswith("OPEN#") or sk.startswith("WAIT#")
            holder = document_of(item).get("incidentId") if pk.startswith("LEASE#") else ""
            if is_open or holder:
                leftovers.append(f"{pk} {sk}")
    steps = centre.deployer.client("stepfunctions")
    for machine in ("RecoverNodeArn", "RunJobArn", "BurstCapacityArn"):
        running_executions = steps.list_executions(stateMachineArn=centre.outputs[machine], statusFilter="RUNNING")[
            "executions"
        ]
        leftovers += [str(execution["name"]) for execution in running_executions]
    return leftovers


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
