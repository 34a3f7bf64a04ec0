"""Waiting for a job, watching its progress, and following its logs."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.job_pages import queue_position
from evenkeel_cli.commands.output import REFRESH_SECONDS
from evenkeel_cli.progress import MAX_LINES, Pace, TrainingProgress, read_progress, total_steps
from evenkeel_cli.render import duration, note, stderr_printer
from evenkeel_cli.state_signs import plain
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]
Write = Callable[[str], None]

_POLL_SECONDS = 1.0
_NOTE_SECONDS = 15.0
"""On a terminal, seconds between two notes about the progress of a job."""
_WATCHED_LINES = 5
"""Lines of the log, and of the timeline, that a watch of a job shows."""
_NOTE_SECONDS_IN_A_PIPE = 60.0
_MAX_LOG_LINES = 5000
"""Maximum number of lines of a log that the API gives."""
_POLL_NOTE = 200
"""Minimum number of lines that a poll of a log reads. A job should write fewer lines between two polls."""


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


class LogQuery(NamedTuple):
    """Which part of a log to read, and how to show it."""

    attempt: int | None = None
    """The only attempt to read. None = the latest; a follower also reads later attempts."""
    tail: int = 200
    """Number of lines from the end to begin with."""
    timestamps: bool = False
    """Whether each line begins with its time."""

    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters of the API's route."""
        return {"attempt": self.attempt, "tail": self.tail, "timestamps": "true" if self.timestamps else None}


class LogReading(NamedTuple):
    """The progress of a job, as read at one time."""

    progress: TrainingProgress = TrainingProgress()
    seconds_left: float | None = None
    log: str = ""
    """The last lines of rank 0 of the current attempt."""

    @property
    def text(self) -> str:
        """The progress as a phrase. Values that the log lacks are shown as unknown."""
        step, steps, loss = self.progress
        of = "" if steps is None else f" of {steps}"
        time_left = "time left unknown" if self.seconds_left is None else f"about {duration(self.seconds_left)} left"
        text = "step unknown" if step is None else f"step {step}{of}"
        return f"{text}, {'loss unknown' if loss is None else f'loss {loss:g}'}, {time_left}"

    def to_json(self) -> Json:
        """Return the values by name; unknown values are null."""
        seconds_left = self.seconds_left
        return self.progress.to_json() | {"secondsLeft": None if seconds_left is None else round(seconds_left, 1)}


class ProgressReader:
    """Reads the progress of a running job from the log of its rank 0."""

    def __init__(self, client: _RetryingClient) -> None:
        """Prepare; nothing is read yet."""
        self._client = client
        self._pace = Pace()

    def read(self, job: Json) -> LogReading:
        """Return the progress that the log of the current attempt states; empty if the log cannot be read."""
        if job["state"] not in ("RUNNING", "STOPPING"):
            return LogReading()
        try:
            log = self._client.get(f"/jobs/{job['jobId']}/logs", rank=0, tail=MAX_LINES)
        except CommandFailed as failed:
            # The log may be gone, or private to another team.
            if failed.exit_code not in (Exit.NOT_FOUND, Exit.NOT_ALLOWED, Exit.USAGE):
                raise
            return LogReading()
        text = log["text"] if log and log["attempt"] == job["currentAttempt"] else ""
        progress = read_progress(text)
        if progress.steps is None:
            progress = progress._replace(steps=total_steps([*job.get("command", ()), *job.get("args", ())]))
        seconds_left = self._pace.seconds_left(job["currentAttempt"], progress, time.monotonic())
        return LogReading(progress, seconds_left, _last_lines(text, _WATCHED_LINES))


def wait_for_job(client: ApiClient, job_id: str, until: str, timeout: float | None) -> Json:
    """Wait until a job has ended or runs. Notes report each change, and its progress from time to time.

    Raises:
        CommandFailed: the timeout is over, or the job cannot be read.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    noted, patience = "", _RetryingClient(client)
    progress, noted_at = ProgressReader(patience), time.monotonic()
    interval = _NOTE_SECONDS if sys.stderr.isatty() else _NOTE_SECONDS_IN_A_PIPE
    while True:
        job = patience.get(f"/jobs/{job_id}")
        if job is not None:
            line = f"{plain(job['state'])}{', attempt ' + str(job['currentAttempt']) if job['currentAttempt'] else ''}"
            if job["state"] in lookup.ENDED or (until == "running" and job["state"] == "RUNNING"):
                return job
            if line != noted:
                note(f"{job_id}  {line}  {job['reason']}".rstrip())
                noted, noted_at = line, time.monotonic()
            elif time.monotonic() - noted_at >= interval:
                note(f"{job_id}  {line}  {_interim_text(job, progress)}".rstrip())
                noted_at = time.monotonic()
        seconds_left = None if deadline is None else deadline - time.monotonic()
        if seconds_left is not None and seconds_left <= 0:
            stands = f"is still {noted}" if job is not None else f"cannot be read (last known state: {noted or 'none'})"
            raise CommandFailed(
                Exit.TIMED_OUT,
                f"{job_id} {stands} after {duration(timeout or 0)}.",
                code="TIMEOUT",
                hint=f"evenkeel why {job_id}",
            )
        time.sleep(_POLL_SECONDS if seconds_left is None else min(_POLL_SECONDS, max(0.0, seconds_left)))


def _interim_text(job: Json, progress: ProgressReader) -> str:
    if job["state"] == "RUNNING":
        return progress.read(job).text
    return queue_position(stderr_printer(), job.get("queue")) or str(job["reason"])


def watch_job(client: ApiClient, job_id: str, draw: Callable[[Json, LogReading, list[Json]], None]) -> Json:
    """Draw a job, its progress and the end of its timeline every two seconds until it ends. Return it.

    Raises:
        CommandFailed: the job cannot be read.
    """
    patience = _RetryingClient(client)
    progress = ProgressReader(patience)
    while True:
        job = patience.get(f"/jobs/{job_id}")
        timeline = patience.get(f"/jobs/{job_id}/timeline")
        if job is not None and timeline is not None:
            draw(job, progress.read(job), timeline["entries"][-_WATCHED_LINES:])
            if job["state"] in lookup.ENDED:
                return job
        time.sleep(REFRESH_SECONDS)


class _FollowedLog:
    """The log of one rank, attempt after attempt."""

    def __init__(self, client: _RetryingClient, job_id: str, rank: int, query: LogQuery, write: Write) -> None:
        self._client, self._job_id, self._rank, self._asked = client, job_id, rank, query
        self._write = write
        self._lines = max(query.tail, _POLL_NOTE)
        self._current, self._seen, self._is_awaited = 0, "", False

    def poll(self, job: Json | None) -> bool:
        """Print the new lines. Return whether the log is complete.

        Raises:
            CommandFailed: the job has ended without a log of this rank.
        """
        is_over = job is not None and _is_log_complete(job, self._asked.attempt)
        log = None
        try:
            if job is not None:
                log = self._read(self._asked.attempt, self._lines)
            if log and log["attempt"] != self._current and (self._current or self._is_awaited):
                log = self._read(log["attempt"], _MAX_LOG_LINES)
            is_over = is_over and log is not None
        except CommandFailed as failed:
            if failed.exit_code is not Exit.NOT_FOUND or (is_over and not self._current):
                raise
            log = None
            if not self._current and not self._is_awaited:
                note(f"{self._job_id} has no log yet. Waiting for its first line.")
                self._is_awaited = True
        if log:
            self._print(log)
        if is_over:
            self._write(missing_newline(self._seen))
        return is_over

    def _read(self, attempt: int | None, tail: int) -> Json | None:
        options = self._asked._replace(attempt=attempt, tail=tail)
        return self._client.get(f"/jobs/{self._job_id}/logs", rank=self._rank, **options.parameters())

    def _print(self, log: Json) -> None:
        if self._current and log["attempt"] != self._current:
            self._write(missing_newline(self._seen))
            note(f"Attempt {log['attempt']} of {self._job_id}, from its beginning:")
            self._seen = ""
        is_first = not self._current and not self._is_awaited
        # The stored log of an attempt that was followed repeats the printed lines.
        is_copy = self._current == log["attempt"] and bool(log.get("keptAt"))
        text = self._seen if is_copy else log["text"]
        self._write(_last_lines(text, self._asked.tail) if is_first else new_log_text(self._seen, text))
        self._current, self._seen = log["attempt"], _last_lines(text, self._lines)


def follow_logs(client: ApiClient, job_id: str, writers: Mapping[int, Write], query: LogQuery) -> None:
    """Print the logs of ranks and their new lines, attempt after attempt, until the job or the attempt ends.

    Between two attempts there is no log; that is not an error.

    Args:
        client: The client to read with.
        job_id: The job.
        writers: By rank: prints its text.
        query: The part to print.
    """
    patience = _RetryingClient(client)
    logs = [_FollowedLog(patience, job_id, rank, query, write) for rank, write in writers.items()]
    while True:
        job = patience.get(f"/jobs/{job_id}")
        logs = [log for log in logs if not log.poll(job)]
        if not logs:
            return
        time.sleep(_POLL_SECONDS)


def with_prefix(prefix: str, write: Write) -> Write:
    """Return a function that writes each complete line after a prefix, so that lines of several logs never mix."""
    begun = ""

    def write_lines(text: str) -> None:
        nonlocal begun
        full_lines, newline, begun = (begun + text).rpartition("\n")
        write("".join(f"{prefix}{line}" for line in (full_lines + newline).splitlines(keepends=True)))

    return write_lines


def _is_log_complete(job: Json, attempt: int | None) -> bool:
    """Whether the log is complete: the job has ended, or the requested attempt has ended."""
    is_settled = any(attempt_row["attempt"] == attempt and attempt_row["endedAt"] for attempt_row in job["attempts"])
    return job["state"] in lookup.ENDED or is_settled


def _last_lines(text: str, count: int) -> str:
    return "".join(text.splitlines(keepends=True)[-count:])


def new_log_text(earlier: str, now: str) -> str:
    """Return the lines of the newer tail that the older tail lacks; the whole newer tail if they do not overlap."""
    if now.startswith(earlier):
        return now[len(earlier) :]
    lines = earlier.splitlines(keepends=True)
    for start in range(1, len(lines)):
        remaining = "".join(lines[start:])
        if now.startswith(remaining):
            return now[len(remaining) :]
    return now


def missing_newline(text: str) -> str:
    """Return the newline that a text lacks at its end, else an empty string."""
    return "" if not text or text.endswith("\n") else "\n"
