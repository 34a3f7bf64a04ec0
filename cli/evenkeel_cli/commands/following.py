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
"""Minimum number of lines that each poll reads. If a job writes more lines between two polls, some are not shown."""


class _RetryingClient:
    """Retries at the next poll while the API throttles or cannot be reached."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._told: set[str] = set()

    def get(self, path: str, **query: str | int | None) -> Json | None:
        """Send a GET request. Return None if the API gives no answer now; print that once.

        Raises:
            CommandFailed: a retry cannot help.
        """
        try:
            return self._client.get(path, **query)
        except CommandFailed as failure:
            if failure.exit_code is not Exit.TRY_AGAIN:
                raise
            if failure.text not in self._told:
                note(f"{failure.text.rstrip('.')}: retrying until the API answers.")
            self._told.add(failure.text)
            return None


class LogQuery(NamedTuple):
    """The part of a log to read, and whether to show times."""

    attempt: int | None = None
    """The only attempt to read. None: the latest attempt, and later ones while the log is followed."""
    tail: int = 200
    """Number of lines before the end of the log at which reading begins."""
    timestamps: bool = False
    """Whether each line begins with its time."""

    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters of the API's route."""
        return {"attempt": self.attempt, "tail": self.tail, "timestamps": "true" if self.timestamps else None}


class ProgressReading(NamedTuple):
    """The progress in a job's log, the time left, and the last lines of the log."""

    progress: TrainingProgress = TrainingProgress()
    seconds_left: float | None = None
    log: str = ""
    """The last lines of rank 0 of the current attempt."""

    @property
    def text(self) -> str:
        """The progress in words. A value that the log lacks is shown as unknown."""
        step, steps, loss = self.progress
        total_text = "" if steps is None else f" of {steps}"
        time_left = "time left unknown" if self.seconds_left is None else f"about {duration(self.seconds_left)} left"
        text = "step unknown" if step is None else f"step {step}{total_text}"
        return f"{text}, {'loss unknown' if loss is None else f'loss {loss:g}'}, {time_left}"

    def to_json(self) -> Json:
        """Return the values by name; unknown values are null."""
        seconds_left = self.seconds_left
        return self.progress.to_json() | {"secondsLeft": None if seconds_left is None else round(seconds_left, 1)}


class ProgressReader:
    """Reads the progress of a running job from the log of its rank 0."""

    def __init__(self, client: _RetryingClient) -> None:
        """Create a reader; nothing is read yet."""
        self._client = client
        self._pace = Pace()

    def read(self, job: Json) -> ProgressReading:
        """Return the progress in the log of the current attempt; all values are unknown if the log cannot be read."""
        if job["state"] not in ("RUNNING", "STOPPING"):
            return ProgressReading()
        try:
            log = self._client.get(f"/jobs/{job['jobId']}/logs", rank=0, tail=MAX_LINES)
        except CommandFailed as failure:
            # The log may be gone, or private to another team.
            if failure.exit_code not in (Exit.NOT_FOUND, Exit.NOT_ALLOWED, Exit.USAGE):
                raise
            return ProgressReading()
        text = log["text"] if log and log["attempt"] == job["currentAttempt"] else ""
        progress = read_progress(text)
        if progress.steps is None:
            progress = progress._replace(steps=total_steps([*job.get("command", ()), *job.get("args", ())]))
        seconds_left = self._pace.seconds_left(job["currentAttempt"], progress, time.monotonic())
        return ProgressReading(progress, seconds_left, _last_lines(text, _WATCHED_LINES))


def wait_for_job(client: ApiClient, job_id: str, until: str, timeout: float | None) -> Json:
    """Wait until a job has ended or runs. Print each change of its state, and its progress from time to time.

    Raises:
        CommandFailed: the timeout is over, or the job cannot be read.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    noted_text, retrying_client = "", _RetryingClient(client)
    progress, noted_at = ProgressReader(retrying_client), time.monotonic()
    interval = _NOTE_SECONDS if sys.stderr.isatty() else _NOTE_SECONDS_IN_A_PIPE
    while True:
        job = retrying_client.get(f"/jobs/{job_id}")
        if job is not None:
            state_text = (
                f"{plain(job['state'])}{', attempt ' + str(job['currentAttempt']) if job['currentAttempt'] else ''}"
            )
            if job["state"] in lookup.ENDED or (until == "running" and job["state"] == "RUNNING"):
                return job
            if state_text != noted_text:
                note(f"{job_id}  {state_text}  {job['reason']}".rstrip())
                noted_text, noted_at = state_text, time.monotonic()
            elif time.monotonic() - noted_at >= interval:
                note(f"{job_id}  {state_text}  {_progress_or_reason(job, progress)}".rstrip())
                noted_at = time.monotonic()
        seconds_left = None if deadline is None else deadline - time.monotonic()
        if seconds_left is not None and seconds_left <= 0:
            problem = (
                f"is still {noted_text}"
                if job is not None
                else f"cannot be read (last known state: {noted_text or 'none'})"
            )
            raise CommandFailed(
                Exit.TIMED_OUT,
                f"{job_id} {problem} after {duration(timeout or 0)}.",
                code="TIMEOUT",
                hint=f"evenkeel why {job_id}",
            )
        time.sleep(_POLL_SECONDS if seconds_left is None else min(_POLL_SECONDS, max(0.0, seconds_left)))


def _progress_or_reason(job: Json, progress: ProgressReader) -> str:
    if job["state"] == "RUNNING":
        return progress.read(job).text
    return queue_position(stderr_printer(), job.get("queue")) or str(job["reason"])


def watch_job(client: ApiClient, job_id: str, draw: Callable[[Json, ProgressReading, list[Json]], None]) -> Json:
    """Draw a job, its progress and the end of its timeline every two seconds until it ends. Return it.

    Raises:
        CommandFailed: the job cannot be read.
    """
    retrying_client = _RetryingClient(client)
    progress = ProgressReader(retrying_client)
    while True:
        job = retrying_client.get(f"/jobs/{job_id}")
        timeline = retrying_client.get(f"/jobs/{job_id}/timeline")
        if job is not None and timeline is not None:
            draw(job, progress.read(job), timeline["entries"][-_WATCHED_LINES:])
            if job["state"] in lookup.ENDED:
                return job
        time.sleep(REFRESH_SECONDS)


class MissingLogs:
    """The ranks without a log. A rank that failed to start must not hide the logs of the other ranks."""

    def __init__(self, rank_count: int) -> None:
        """Count the ranks to read."""
        self._left = rank_count

    def add(self, failed: CommandFailed) -> None:
        """Note that a rank has no log.

        Raises:
            CommandFailed: no rank has a log, or the log cannot be read for another reason.
        """
        self._left -= 1
        if failed.exit_code is not Exit.NOT_FOUND or not self._left:
            raise failed
        note(str(failed))


class _FollowedLog:
    """The log of one rank, attempt after attempt."""

    def __init__(self, client: _RetryingClient, job_id: str, rank: int | None, query: LogQuery, write: Write) -> None:
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
        except CommandFailed as failure:
            if failure.exit_code is not Exit.NOT_FOUND or (is_over and not self._current):
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


def follow_logs(client: ApiClient, job_id: str, writers: Mapping[int | None, Write], query: LogQuery) -> None:
    """Print the logs of ranks and their new lines, attempt after attempt, until the job or the attempt ends.

    Between two attempts there is no log; that is not an error.

    Args:
        client: The client to read with.
        job_id: The job.
        writers: By rank: prints its text. None: the rank that the API chooses.
        query: The part to print.
    """
    patience = _RetryingClient(client)
    logs = [_FollowedLog(patience, job_id, rank, query, write) for rank, write in writers.items()]
    missing = MissingLogs(len(logs))
    while True:
        job = patience.get(f"/jobs/{job_id}")
        logs = [log for log in logs if not _is_read(log, job, missing)]
        if not logs:
            return
        time.sleep(_POLL_SECONDS)


def _is_read(log: _FollowedLog, job: Json | None, missing: MissingLogs) -> bool:
    """Print the new lines of a log. Return whether nothing more will follow."""
    try:
        return log.poll(job)
    except CommandFailed as failed:
        missing.add(failed)
        return True


def with_prefix(prefix: str, write: Write) -> Write:
    """Return a function that writes each complete line after a prefix, so that lines of several logs never mix."""
    unfinished_line = ""

    def write_lines(text: str) -> None:
        nonlocal unfinished_line
        full_lines, newline, unfinished_line = (unfinished_line + text).rpartition("\n")
        write("".join(f"{prefix}{line}" for line in (full_lines + newline).splitlines(keepends=True)))

    return write_lines


def _is_log_complete(job: Json, attempt: int | None) -> bool:
    """Whether the log is complete: the job has ended, or the requested attempt has ended."""
    is_settled = any(attempt_row["attempt"] == attempt and attempt_row["endedAt"] for attempt_row in job["attempts"])
    return job["state"] in lookup.ENDED or is_settled


def _last_lines(text: str, count: int) -> str:
    return "".join(text.splitlines(keepends=True)[-count:])


def new_log_text(earlier_text: str, later_text: str) -> str:
    """Return the lines that only the later text has; the whole later text if the texts do not overlap."""
    if later_text.startswith(earlier_text):
        return later_text[len(earlier_text) :]
    lines = earlier_text.splitlines(keepends=True)
    for start in range(1, len(lines)):
        new_text = "".join(lines[start:])
        if later_text.startswith(new_text):
            return later_text[len(new_text) :]
    return later_text


def missing_newline(text: str) -> str:
    """Return a newline if the text does not end with one, else an empty string."""
    return "" if not text or text.endswith("\n") else "\n"
