"""Pages about jobs: the list, one job, and the scheduler's decision about a job."""

import json
from typing import Any

from evenkeel_cli.render import Column, Printer, duration
from evenkeel_cli.state_signs import ATTEMPT, JOB, count_of, plain

Json = dict[str, Any]


def size_text(job: Json) -> str:
    """Return the size of a job as text: its nodes, its elastic limits, and the GPUs of each node."""
    current_nodes, requested_nodes = job.get("currentNodes") or job["nodes"], job["nodes"]
    sizes = job.get("elastic")
    elastic = f", elastic {sizes['minNodes']} to {sizes['maxNodes']}" if sizes else ""
    current_text = f"{current_nodes} of " if current_nodes != requested_nodes else ""
    return f"{current_text}{count_of(requested_nodes, 'node')}{elastic} × {count_of(job['gpusPerNode'], 'GPU')}"


def list_columns(out: Printer) -> list[Column]:
    """Return the columns of a list of jobs."""
    return [
        Column("JOB", "jobId"),
        Column("NAME", "name", may_shrink=True),
        Column("STATE", lambda job: out.with_glyph(_status_sign(job), plain(job["state"]) + out.last_seen_text(job))),
        Column("NODES", "nodes", is_right=True),
        Column("TRY", "currentAttempt", is_right=True),
        Column(out.age_title("SUBMITTED"), lambda job: out.time_text(job["submittedAt"], ago=False), is_right=True),
        Column("TEAM", "team", is_wide=True),
        Column("CLASS", lambda job: job["priorityClass"] or "(unset)", is_wide=True),
        Column("GPUS", lambda job: job["nodes"] * job["gpusPerNode"], is_right=True, is_wide=True),
        Column("BY", "submittedBy", is_wide=True),
        Column("REASON", "reason", goes_below=True),
    ]


def unmanaged_columns(*, is_wide: bool) -> list[Column]:
    """Return the columns of a list of workloads that Evenkeel did not start."""
    return [
        Column("WORKLOAD", lambda workload: f"{workload['kind'] or 'pod'} {workload['namespace']}/{workload['name']}"),
        Column("PODS", "pods", is_right=True),
        Column("GPUS", "accelerators", is_right=True),
        Column("NODES", lambda workload: ",".join(workload["nodeNames"]) if is_wide else len(workload["nodeNames"])),
        Column("ON NODE FAULT", "says", goes_below=True),
    ]


def draw_job(out: Printer, job: Json) -> None:
    """Draw one job; of another team's job only the public fields."""
    state = plain(job["state"]) + out.last_seen_text(job)
    out.line(f"{out.with_glyph(_status_sign(job), out.bold(job['jobId']))}  {job['name']}  {state}")
    if job["reason"]:
        out.paragraph(job["reason"], indent="  ")
    out.line()
    is_redacted = job.get("isRedacted")
    withheld = f"Only team {job['team']} and operators see its command, logs, checkpoints and failures."
    out.pairs(
        [
            ("size", f"{size_text(job)}{' on ' + ', '.join(job['instanceTypes']) if job['instanceTypes'] else ''}"),
            ("requests", _amounts_text(job)),
            ("team", f"{job['team']}, class {job['priorityClass'] or '(unset)'}"),
            ("type", "" if is_redacted else job["jobType"] or ""),
            ("kind", job["kind"] if job["kind"] != "Job" else ""),
            ("pools", ", then ".join(choice["name"] for choice in job.get("pools", ()))),
            ("requires", _requirements_text(job["requires"])),
            ("runs", " ".join([*job.get("command", ()), *job.get("args", ())])),
            ("image", job.get("image", "")),
            ("checkpoints", _checkpoints_text(job["checkpoint"]) if "checkpoint" in job else ""),
            ("submitted", f"{out.time_text(job['submittedAt'])} by {job['submittedBy']}"),
            ("deadline", out.time_text(job["deadline"], ago=False) if job.get("deadline") else ""),
            ("ended", out.time_text(job["endedAt"]) if job["endedAt"] else ""),
            ("queue", queue_position(out, job["queue"])),
            ("size", _size_text(job)),
            ("rented nodes", _mixed_text(job)),
            ("stop requested", job["stopRequest"]["reason"] if job.get("stopRequest") else ""),
            ("withheld", withheld if is_redacted else ""),
            ("unreadable", _unreadable_text(job)),
        ],
        indent="  ",
    )
    if job["attempts"]:
        out.line()
        out.table(_attempt_columns(out), job["attempts"], indent="  ")
    if job.get("rentals"):
        out.line()
        out.table(_RENTAL_COLUMNS, job["rentals"], indent="  ")
    out.pairs([("result", json.dumps(job["result"]) if job.get("result") else "")], indent="  ")
    if not is_redacted:
        out.line()
        out.next_command(f"evenkeel why {job['jobId']}")


def _unreadable_text(job: Json) -> str:
    unreadable_count = job.get("unreadableRecords", 0)
    if not unreadable_count:
        return ""
    return f"{count_of(unreadable_count, 'record')} of attempts or rentals cannot be read"


def draw_progress(out: Printer, job: Json, progress: str) -> None:
    """Draw the head of a job that a person watches: its state, its progress, and where it runs."""
    state = plain(job["state"]) + out.last_seen_text(job)
    attempt = f", attempt {job['currentAttempt']}" if job["currentAttempt"] else ""
    out.line(f"{out.with_glyph(_status_sign(job), out.bold(job['jobId']))}  {job['name']}  {state}{attempt}")
    if job["reason"]:
        out.paragraph(job["reason"], indent="  ")
    newest_attempt = job["attempts"][0] if job["attempts"] else None
    resume_point = newest_attempt.get("resumeFrom") if newest_attempt else None
    nodes = (
        ", ".join(node["instanceId"] for node in newest_attempt["nodes"])
        if newest_attempt and not newest_attempt["endedAt"]
        else ""
    )
    out.line()
    out.pairs(
        [
            ("progress", progress),
            (
                "resumed from",
                f"step {resume_point['step']} of attempt {resume_point['attempt']}" if resume_point else "",
            ),
            (
                "runs for",
                _run_duration_text(out, newest_attempt) if newest_attempt and newest_attempt["runningAt"] else "",
            ),
            ("nodes", nodes),
            ("queue", queue_position(out, job["queue"])),
            ("stop requested", job["stopRequest"]["reason"] if job.get("stopRequest") else ""),
        ],
        indent="  ",
    )


def draw_plan(out: Printer, job_plan: Json, arguments: str) -> None:
    """Draw what the next scheduling cycle would decide about a job. `arguments` submit the same job."""
    decision = job_plan["decision"]
    would_start = decision["action"] == "ADMIT"
    # A job admitted without a node is placed by Kueue, and has no queue position in Evenkeel.
    is_handed_over = would_start and not decision["nodes"]
    status = "ok" if would_start else "working" if decision["action"] == "PREEMPT" else "next"
    starts = "would be submitted to Kueue" if is_handed_over else "would start"
    outcome = starts if would_start else f"would wait: {plain(decision['action'])}"
    position_text = "" if is_handed_over else f", position {job_plan['position']} in its queue"
    out.line(f"{out.with_glyph(status, outcome)}, team {job_plan['team']}{position_text}")
    out.paragraph(decision["reason"], indent="  ")
    out.pairs(
        [
            ("nodes", ", ".join(decision["nodes"])),
            (
                "would stop",
                ", ".join(f"{victim['jobId']}: {victim['says']}" for victim in decision["victims"]),
            ),
        ],
        indent="  ",
    )
    for alternative in decision["considered"]:
        out.paragraph(f"{alternative['option']}: {alternative['whyNot'] or 'taken'}", indent="  ")
    placement = job_plan.get("placement")
    if placement and placement["pools"]:
        out.line()
        out.table(_pool_columns(out), placement["pools"], indent="  ")
    if placement:
        out.paragraph(placement["reason"], indent="  ")
    mixed_plan = placement.get("mixed") if placement else None
    if mixed_plan:
        out.line()
        base_text = count_of(mixed_plan["baseNodes"], "committed node")
        out.line(f"  Rented nodes that could join {base_text} of {mixed_plan['basePool']}:")
        if mixed_plan["options"]:
            out.table(_mixed_columns(out), mixed_plan["options"], indent="  ")
        out.paragraph(mixed_plan["reason"], indent="  ")
    out.next_command(f"evenkeel jobs submit {arguments}")


def _pool_columns(out: Printer) -> list[Column]:
    """Return the columns of the pools where a job could run, with the cost or the reason against each pool."""

    def pool(pool: Json) -> str:
        return out.with_glyph("ok" if pool["isChosen"] else "failed" if pool["whyNot"] else "idle", pool["pool"])

    def usd(title: str, name: str) -> Column:
        return Column(title, lambda pool: f"${pool['usd'][name]:,.2f}", is_right=True)

    return [
        Column("POOL", pool),
        Column("MARKET", "market"),
        Column("STARTS", lambda pool: duration(pool["startsAfterSeconds"]), is_right=True),
        Column("ENDS", lambda pool: duration(pool["endsAfterSeconds"]), is_right=True),
        *(
            usd("RENT", "rent"),
            usd("DELAY", "delay"),
            usd("OPPORTUNITY COST", "opportunityCost"),
            usd("IN ALL", "total"),
        ),
        Column("CUTS", lambda pool: f"{pool['interruptions']:g}", is_right=True),
        Column(
            "WHY NOT",
            lambda pool: pool["whyNot"] or ("chosen" if pool["isChosen"] else "dearer"),
            goes_below=True,
        ),
    ]


def _mixed_columns(out: Printer) -> list[Column]:
    """Return the columns of the rented nodes that could join a job, with their price and their gain."""

    def pool(option: Json) -> str:
        return out.with_glyph("ok" if option["isChosen"] else "failed" if option["whyNot"] else "idle", option["pool"])

    return [
        Column("POOL", pool),
        Column("MARKET", "market"),
        Column("NODES", lambda option: f"{option['nodes']} ({option['rentedNodes']} rented)", is_right=True),
        Column("ENDS SOONER", lambda option: duration(max(0, option["savedSeconds"])), is_right=True),
        Column("RENT", lambda option: f"${option['usd']['rent']:,.2f}", is_right=True),
        Column("GAIN", lambda option: f"${option['usd']['gain']:,.2f}", is_right=True),
        Column("CUTS", lambda option: f"{option['interruptions']:g}", is_right=True),
        Column(
            "WHY NOT",
            lambda option: option["whyNot"] or ("chosen" if option["isChosen"] else "gains less"),
            goes_below=True,
        ),
    ]


def _amounts_text(job: Json) -> str:
    """Return the CPU and memory of the newest attempt; empty if it states none."""
    newest_attempt = job["attempts"][0] if job["attempts"] else {}
    amounts = [(newest_attempt.get("cpu"), "vCPU"), (newest_attempt.get("memoryGib"), "GiB of memory")]
    amounts_text = " and ".join(f"{amount:g} {unit}" for amount, unit in amounts if amount is not None)
    return f"{amounts_text} in attempt {newest_attempt['attempt']}, over all its nodes" if amounts_text else ""


def _size_text(job: Json) -> str:
    """Return the size of the current attempt, if Kueue admitted fewer nodes than requested."""
    newest_attempt = job["attempts"][0] if job["attempts"] else {}
    size, requested_size = newest_attempt.get("size", 0), newest_attempt.get("requestedSize") or 0
    if size >= requested_size or newest_attempt["endedAt"]:
        return ""
    return f"{size} of {requested_size} requested nodes in attempt {newest_attempt['attempt']}, as Kueue admitted"


def _mixed_text(job: Json) -> str:
    """Return the rented part of the current attempt, or why no rented nodes join the job."""
    newest_attempt = job["attempts"][0] if job["attempts"] else {}
    rented_part = newest_attempt.get("rentedPart")
    if rented_part and not newest_attempt["endedAt"]:
        nodes = count_of(len(rented_part["nodes"]), "node")
        return (
            f"{nodes} of {rented_part['pool']} in attempt {newest_attempt['attempt']}, by rental "
            f"{rented_part['rental']}"
        )
    return str(job["mixedGrowth"]["reason"]) if job.get("mixedGrowth") and not job["endedAt"] else ""


def _attempt_columns(out: Printer) -> list[Column]:
    def resume_text(attempt: Json) -> str:
        resume_point = attempt.get("resumeFrom")
        return f"step {resume_point['step']}" if resume_point else "start" if attempt.get("isPinned") else "–"

    return [
        Column("TRY", "attempt", is_right=True),
        Column("STATE", lambda attempt: out.with_glyph(ATTEMPT[attempt["state"]], plain(attempt["state"]))),
        Column("FROM", resume_text),
        Column("RAN", lambda attempt: _run_duration_text(out, attempt), is_right=True),
        Column(
            "NODES", lambda attempt: ",".join(node["instanceId"][-5:] for node in attempt["nodes"]), may_shrink=True
        ),
        Column("REASON", lambda attempt: attempt.get("reason", ""), goes_below=True),
    ]


_RENTAL_COLUMNS = (
    Column("RENTAL", "rental", is_right=True),
    Column("STATE", lambda rental: plain(rental["state"])),
    Column("POOLS", lambda rental: ",".join(offer["pool"] for offer in rental["offers"])),
    Column("NODES", "nodes", is_right=True),
    Column("COST", lambda rental: f"${rental['costUsd']}" if rental["costUsd"] else "–", is_right=True),
    Column("REASON", "reason", goes_below=True),
)


def _run_duration_text(out: Printer, attempt: Json) -> str:
    if not attempt["runningAt"]:
        return "–"
    seconds_since_end = out.seconds_since(attempt["endedAt"]) if attempt["endedAt"] else 0.0
    return duration(max(0.0, out.seconds_since(attempt["runningAt"]) - seconds_since_end))


def _status_sign(job: Json) -> str:
    return "warn" if job.get("isStale") else JOB[job["state"]]


def _requirements_text(requires: Json) -> str:
    texts = [" or ".join(requires["architectures"]), " or ".join(requires["gpuModels"]), requires["fabric"]]
    if requires["gpuMemoryGib"]:
        texts.append(f"{requires['gpuMemoryGib']:g} GiB on each GPU")
    return ", ".join(text for text in texts if text)


def _checkpoints_text(checkpoint: Json) -> str:
    if not checkpoint["uri"]:
        return "none: a restart begins at step 0"
    claim = checkpoint.get("claim")
    return f"{checkpoint['uri']} on {claim}" if claim else str(checkpoint["uri"])


def queue_position(out: Printer, queue: Json | None) -> str:
    """Return the queue position of a job, and when it is expected to start; empty if it has no position."""
    if not queue or queue["position"] is None:
        return ""
    text, estimate = f"position {queue['position']} in its queue", queue["estimate"]
    if not estimate or not estimate["startsAt"]:
        return text
    latest_text = out.time_text(estimate["latestAt"]) if estimate["latestAt"] else "no known latest time"
    band = f"{out.time_text(estimate['earliestAt'])} to {latest_text}"
    return f"{text}; expected to start {out.time_text(estimate['startsAt'])} ({band})"
