"""Waiting for a job, and following its log."""

import time
from collections.abc import Callable
from typing import Any

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import duration, note
from evenkeel_cli.state_labels import plain
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

_POLL_SECONDS = 1.0
_MAX_LOG_LINES = 5000
"""Maximum number of lines of a log that the API gives."""
_POLL_NOTE = 200
"""Minimum number of lines that a poll of a log reads. Fewer lines should be added between two polls."""


class _RetryingClient:
    """Retries at the next poll while the API throttles or cannot be reached."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._told: set[str] = set()

    def get(self, path: str, **query: str | int | None) -> Json | None:
        """Read; None = no answer yet, which is printed once.

        Raises:
            CommandFailed: a retry cannot help.
        """
        try:
            return self._client.get(path, **query)
        except CommandFailed as failed:
            if failed.exit_code is not Exit.TRY_AGAIN:
                raise
            if failed.text not in self._told:
                note(f"{failed.text.rstrip('.')}: retrying until the API answers.")
            self._told.add(failed.text)
            return None


def wait_for_job(client: ApiClient, job_id: str, until: str, timeout: float | None) -> Json:
    deadline = None if timeout is None else time.monotonic() + timeout
    said, patience = "", _RetryingClient(client)
    while True:
        job = patience.get(f"/jobs/{job_id}")
        if job is not None:
            line = f"{plain(job['state'])}{', attempt ' + str(job['currentAttempt']) if job['currentAttempt'] else ''}"
            if job["state"] in lookup.ENDED or (until == "running" and job["state"] == "RUNNING"):
                return job
            if line != said:
                note(f"{job_id}  {line}  {job['reason']}".rstrip())
                said = line
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            stands = f"is still {said}" if job is not None else f"cannot be read (last known state: {said or 'none'})"
            raise CommandFailed(
                Exit.TIMED_OUT,
                f"{job_id} {stands} after {duration(timeout or 0)}.",
                code="TIMEOUT",
                hint=f"evenkeel why {job_id}",
            )
        time.sleep(_POLL_SECONDS if left is None else min(_POLL_SECONDS, max(0.0, left)))


def follow_log(
    client: ApiClient, job_id: str, rank: int, attempt: int | None, tail: int, write: Callable[[str], None]
) -> None:
    """Print a log and its new lines, attempt after attempt, until the job or the requested attempt ends.

    Between two attempts there is no log; that is not an error.
    """
    path, patience, lines = f"/jobs/{job_id}/logs", _RetryingClient(client), max(tail, _POLL_NOTE)
    current, seen, is_awaited = 0, "", False
    while True:
        job = patience.get(f"/jobs/{job_id}")
        is_over = job is not None and _is_log_complete(job, attempt)
        found = None
        try:
            if job is not None:
                found = patience.get(path, rank=rank, attempt=attempt, tail=lines)
            if found and found["attempt"] != current and (current or is_awaited):
                found = patience.get(path, rank=rank, attempt=found["attempt"], tail=_MAX_LOG_LINES)
            is_over = is_over and found is not None
        except CommandFailed as failed:
            if failed.exit_code is not Exit.NOT_FOUND or (is_over and not current):
                raise
            found = None
            if not current and not is_awaited:
                note(f"{job_id} has no log yet. Waiting for its first line.")
                is_awaited = True
        if found:
            if current and found["attempt"] != current:
                write(missing_newline(seen))
                note(f"Attempt {found['attempt']} of {job_id}, from its beginning:")
                seen = ""
            is_first = not current and not is_awaited
            # Kept lines of an attempt that was followed are a copy of what was printed.
            is_copy = current == found["attempt"] and bool(found.get("keptAt"))
            text = seen if is_copy else found["text"]
            write(_last_lines(text, tail) if is_first else new_log_text(seen, text))
            current, seen = found["attempt"], _last_lines(text, lines)
        if is_over:
            write(missing_newline(seen))
            return
        time.sleep(_POLL_SECONDS)


def _is_log_complete(job: Json, attempt: int | None) -> bool:
    """Whether the log is complete: the job has ended, or the requested attempt has ended."""
    is_settled = any(each["attempt"] == attempt and each["endedAt"] for each in job["attempts"])
    return job["state"] in lookup.ENDED or is_settled


def _last_lines(text: str, count: int) -> str:
    return "".join(text.splitlines(keepends=True)[-count:])


def new_log_text(seen: str, now: str) -> str:
    """Return the lines of the newer tail that the older tail lacks; all of it if the two do not overlap."""
    if now.startswith(seen):
        return now[len(seen) :]
    lines = seen.splitlines(keepends=True)
    for start in range(1, len(lines)):
        rest = "".join(lines[start:])
        if now.startswith(rest):
            return now[len(rest) :]
    return now


def missing_newline(text: str) -> str:
    """Return the newline that a text lacks at its end, else an empty string."""
    return "" if not text or text.endswith("\n") else "\n"
