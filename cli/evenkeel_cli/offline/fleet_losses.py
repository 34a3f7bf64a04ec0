"""The losses of a fleet by past failures, from its incidents and the attempts of the jobs that they affected."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from evenkeel.domain.economics.losses import Interruption, losses_by
from evenkeel_cli.offline import fleet_history
from evenkeel_cli.offline.economics import options
from evenkeel_cli.offline.quantities import wrong

Json = dict[str, Any]

_INTERRUPTED = ("LOST", "STOPPED", "FAILED")
"""States of an attempt that ended with its incident. An attempt that succeeded was not interrupted."""
_GROUPS = {"fault-class": "fault_class", "pool": "pool"}
NOTES = [
    "Only jobs that Evenkeel runs are counted. Their standstill and lost work count on all their GPUs.",
    "Unknown times are not in the sums, so the sums are lower bounds. A standstill that still lasts counts until now.",
]


def counted(incidents: Iterable[Json], end: datetime, days: float) -> list[Json]:
    """Return the incidents of the window that count as failures, oldest first, each once."""
    found = {incident["incidentId"]: incident for incident in fleet_history.counted_incidents(incidents, end, days)}
    return sorted(found.values(), key=lambda each: (each["firstSignalAt"], each["incidentId"]))


def interruptions(incidents: Iterable[Json], jobs: Mapping[str, Json], end: datetime) -> list[Interruption]:
    """Return the attempts that the incidents interrupted.

    Args:
        incidents: Items of `GET /incidents` that count, oldest first.
        jobs: Answers of `GET /jobs/{id}` by id. A job that is no longer kept is missing: its losses are unknown.
        end: Until when a standstill that still lasts counts.
    """
    return [
        interruption
        for incident in incidents
        for affected in incident["affectedJobs"]
        if (interruption := _interruption(incident, affected, jobs.get(affected["jobId"]), end)) is not None
    ]


def _interruption(incident: Json, affected: Json, job: Json | None, end: datetime) -> Interruption | None:
    number = affected["attempt"]
    known: Json = {
        "incident_id": incident["incidentId"],
        "fault_class": fleet_history.fault_class(incident),
        "pool": incident["node"]["pool"],
        "job_id": affected["jobId"],
        "attempt": number,
    }
    attempts = {attempt["attempt"]: attempt for attempt in job["attempts"]} if job else {}
    ended = attempts.get(number)
    if job is None or ended is None:
        return Interruption(**known, gpus=0, standstill_seconds=None, lost_work_seconds=None)
    later = [attempt for attempt in attempts.values() if attempt["attempt"] > number]
    if ended["state"] not in _INTERRUPTED or not ended["endedAt"] or (not later and job["endedAt"]):
        return None
    stopped_at = fleet_history.instant(ended["endedAt"])
    running = next((each for each in sorted(later, key=_number) if each["runningAt"]), None)
    until = fleet_history.instant(running["runningAt"]) if running else end
    return Interruption(
        **known,
        gpus=ended["gpus"],
        standstill_seconds=max(0.0, (until - stopped_at).total_seconds()),
        lost_work_seconds=_lost_work(ended, running, stopped_at),
        is_over=running is not None,
    )


def _number(attempt: Json) -> int:
    return int(attempt["attempt"])


def _lost_work(ended: Json, running: Json | None, stopped_at: datetime) -> float | None:
    """Return the seconds of the ended attempt that the next one repeats; None if its resume point is unknown."""
    if not ended["runningAt"]:
        return 0.0
    began = fleet_history.instant(ended["runningAt"])
    if running is None or not running.get("isPinned"):
        return None
    if running["resumeFrom"] is None:
        kept = began
    elif running.get("resumedWorkFrom"):
        kept = max(began, fleet_history.instant(running["resumedWorkFrom"]))
    else:
        return None
    return max(0.0, (stopped_at - kept).total_seconds())


def document(found: list[Interruption], by: str, usd_per_gpu_hour: float | None, days: float) -> Json:
    """Return the losses by group and in total.

    Raises:
        CommandFailed: there is no such grouping.
    """
    if by not in _GROUPS:
        raise wrong("--by", f"must be one of {', '.join(_GROUPS)}, not {by!r}")
    with options():
        groups, total = losses_by(found, _GROUPS[by], usd_per_gpu_hour)
    return {
        "by": by,
        "days": days,
        "groups": [group.to_json() for group in (*groups, total)],
        "interruptions": [interruption.to_json() for interruption in found],
        "notes": NOTES,
    }
