"""Result of a check: a status, a sentence, and the fix."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1


class Status(StrEnum):
    """Status of one finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, but a person should know about it."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The check could not run, so its result is unknown."""


@dataclass(frozen=True)
class DoctorFinding:
    """One result of a check."""

    status: Status
    text: str
    """The finding, in one or two sentences."""
    fix: str = ""
    """An exact command, or the page that says what to do. Every finding that is not ok has a fix."""
    subject: str = ""
    """Part that this finding is about; empty if the check has only one part."""
    check: str = ""
    """Name of the check; the table fills it in."""


class CouldNotCheck(Exception):
    """Facts could not be read. Its text gives the reason and the fix."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def ok(text: str, subject: str = "") -> DoctorFinding:
    return DoctorFinding(Status.OK, text, subject=subject)


def warning(text: str, fix: str, subject: str = "") -> DoctorFinding:
    return DoctorFinding(Status.WARNING, text, fix, subject)


def failed(text: str, fix: str, subject: str = "") -> DoctorFinding:
    return DoctorFinding(Status.FAILED, text, fix, subject)


def unknown(text: str, fix: str = "", subject: str = "") -> DoctorFinding:
    return DoctorFinding(Status.UNKNOWN, text, fix, subject)


def exit_code(findings: Iterable[DoctorFinding]) -> int:
    """Return the exit code: 1 if a check failed, 2 if a check could not run, else 0. Warnings do not count."""
    statuses = {finding.status for finding in findings}
    if Status.FAILED in statuses:
        return 1
    return 2 if Status.UNKNOWN in statuses else 0


def merge_equal_findings(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """Join findings that differ only in their subject. The joined finding replaces the first of them."""
    subjects: dict[DoctorFinding, list[str]] = {}
    for finding in findings:
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return [replace(finding, subject=", ".join(filter(None, names))) for finding, names in subjects.items()]


def next_step(findings: Sequence[DoctorFinding], enable: str) -> str:
    """Return the next step if the schedules are off: turn them on once no other check fails.

    Args:
        findings: All findings.
        enable: How to turn the schedules on.
    """
    are_off = any(finding.check == "schedules" and finding.status is Status.WARNING for finding in findings)
    if not are_off:
        return ""
    doctor_findings = [finding for finding in findings if finding.check != "schedules"]
    if any(finding.status is Status.FAILED for finding in doctor_findings):
        return "Fix the failed checks, run evenkeel doctor again, then turn the schedules on."
    if any(finding.status is Status.UNKNOWN for finding in doctor_findings):
        return f"Investigate the unknown checks. If they show no problem, turn the schedules on: {enable}"
    return f"All other checks passed. Turn the schedules on: {enable}"


def to_json(findings: Sequence[DoctorFinding], *, fleet: str, stack: str, region: str, as_of: str, then: str) -> Any:
    """Return the report as docs/schemas/doctor.schema.json describes it."""
    counts = Counter(finding.status for finding in findings)
    return {
        "schemaVersion": SCHEMA_VERSION,
        "asOf": as_of,
        "fleet": fleet,
        "stack": stack,
        "region": region,
        "exitCode": exit_code(findings),
        "summary": {status.value: counts[status] for status in Status},
        "findings": [
            {name: str(value) for name, value in asdict(finding).items() if name != "status"}
            | {"status": finding.status.value}
            for finding in findings
        ],
        "next": then,
    }
