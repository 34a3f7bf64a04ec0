"""The writers of each row: the table in the docs, the table in the code, and the code agree."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.lifecycle import ATTEMPT_WRITERS, JOB_WRITERS
from evenkeel.ports import Ledger, Put, Table, Write
from tests.fakes import CrashPlan
from tests.state_writers import attempt_writers, job_writers
from tests.unit.services_jobs.test_crashes import JOB_EVENTS, CrashReplay

PROJECT = Path(__file__).resolve().parents[3]
SERVICES = PROJECT / "shared" / "evenkeel" / "services"
DOCUMENT = PROJECT / "docs" / "ownership.md"


# ---------------------------------------------------------------- what the code says


STEPS = {
    "commit_cycle": "schedule_jobs",
    "answer_burst_checks": "schedule_jobs",
    "commit_admissions": "schedule_jobs",
    "commit_stops": "schedule_jobs",
    "pending_reasons": "schedule_jobs",
    "pending_job_changes": "schedule_jobs",
}
"""Modules that are one step of a service: they write on its behalf, and no other service calls them."""

SHARED_STEPS = {"measure_restore": {"settle_attempt", "launch_job"}}
"""Modules that are a step of several services, and the services that call them."""


def writers_of(row: str) -> set[str]:
    """Return the services that build this kind of row to write it."""
    writers = set()
    for file in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr == row and ast.unparse(node.func.value).endswith("_rows"):  # type: ignore[attr-defined]
                writers |= SHARED_STEPS.get(file.stem, {STEPS.get(file.stem, file.stem)})
    return writers


def imported_names(file: Path) -> set[str]:
    """Return the last part of each module and name that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module).rpartition(".")[2], *(alias.name for alias in node.names)}
    return names


@pytest.mark.parametrize(
    ("step", "services"), [*((step, {service}) for step, service in STEPS.items()), *SHARED_STEPS.items()]
)
def test_inner_step_of_a_service_is_called_only_by_it(step: str, services: set[str]) -> None:
    importers = {file.stem for file in SERVICES.rglob("*.py") if step in imported_names(file)}
    callers = {STEPS.get(importer, importer) for importer in importers}

    assert callers == services


@pytest.mark.parametrize(("row", "table"), [("job_row", JOB_WRITERS), ("attempt_row", ATTEMPT_WRITERS)])
def test_only_listed_writers_write_states(row: str, table: Mapping[str, Any]) -> None:
    assert writers_of(row) == set(table)


def test_only_schedule_jobs_creates_charges() -> None:
    assert writers_of("charge_row") == {"schedule_jobs"}


def test_only_resolve_wait_answers_a_token() -> None:
    stems = {
        file.stem
        for file in SERVICES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "context.task_tokens.succeed"
    }

    assert stems == {"resolve_wait"}


# ---------------------------------------------------------------- what the code does


class AuditedLedger:
    """A ledger that refuses a change of a job's or attempt's state by a service that is not its writer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.seen: set[tuple[str, str, str]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        for write in writes:
            if isinstance(write, Put) and write.row.key.table is Table.JOBS:
                self._audit(write)
        self._ledger.commit(*writes, client_token=client_token)

    def _audit(self, write: Put) -> None:
        key, after = write.row.key, write.row.doc.get("state")
        row = self._ledger.get(key)
        before = row.doc.get("state") if row else None
        writer = calling_service()
        if key.sk == "META" and key.pk.startswith("JOB#"):
            allowed = job_writers(JobState(before) if before else None, JobState(str(after)))
        elif key.sk.startswith("ATTEMPT#"):
            allowed = attempt_writers(AttemptState(before) if before else None, AttemptState(str(after)))
        else:
            return
        assert writer in allowed, f"{writer} may not take {key.pk} {key.sk} from {before} to {after}: {allowed}"
        self.seen.add((key.sk[:4], str(before), str(after)))


def calling_service() -> str:
    """Return the innermost calling service that is a listed writer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        name = module.rpartition(".")[2]
        if module.startswith("evenkeel.services.") and name in {*JOB_WRITERS, *ATTEMPT_WRITERS}:
            return name
        frame = frame.f_back
    return "nobody"


@pytest.mark.parametrize("job_event", JOB_EVENTS)
@pytest.mark.parametrize("aborts", [False, True])
def test_every_job_state_is_written_by_its_listed_writer(job_event: str, aborts: bool) -> None:
    for at in (0, 5, 9):
        play = CrashReplay(CrashPlan(at), JOB_EVENTS[job_event], aborts=aborts)
        audited = AuditedLedger(play.scenario.ledger)
        play.scenario.ledger = audited  # type: ignore[assignment]

        play.run()

        assert ("META", "PENDING", "STARTING") in audited.seen


def test_unlisted_writer_is_refused() -> None:
    play = CrashReplay(CrashPlan(), JOB_EVENTS["succeeds"])
    job = play.scenario.submit()
    audited = AuditedLedger(play.scenario.ledger)

    from evenkeel.services.tables import job_rows

    row = play.scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    with pytest.raises(AssertionError, match="nobody may not take"):
        audited.commit(Put(job_rows.job_row(job.replace(state=JobState.RUNNING), row.version)))


# ---------------------------------------------------------------- what the docs say


def documented_table(table: Mapping[str, Any]) -> Iterator[str]:
    """Return the table in the format of the docs: a line for each change, followed by its writers."""
    states = [None, *(AttemptState if table is ATTEMPT_WRITERS else JobState)]
    writers = attempt_writers if table is ATTEMPT_WRITERS else job_writers
    for before in states:
        for after in states[1:]:
            names = [name for name in writers(before, after) if before is not after or name not in _ANY_STATE]
            if names:
                yield f"| {before or '(none)'} | {after} | {', '.join(f'`{name}`' for name in names)} |"


_ANY_STATE = ("drain_node", "plan_resume")
"""Services that add requests to a job in any state without changing the state. One sentence replaces eight lines."""


@pytest.mark.parametrize("table", [ATTEMPT_WRITERS, JOB_WRITERS], ids=["attempts", "jobs"])
def test_documented_writers_match_the_code(table: Mapping[str, Any]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")

    assert "\n".join(documented_table(table)) in text
