"""`evenkeel jobs`."""

import json
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import answer, answer_list
from evenkeel_cli.commands.submission import takes_a_job
from evenkeel_cli.render import Column, OutputFormat, Printer, duration, note, only, page
from evenkeel_cli.state_labels import ATTEMPT, JOB, counted, plain
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.group("Submit, list, show, follow, suspend and cancel training jobs.")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id, unique prefix of an id, name, or @latest.")]
ReasonOption = Annotated[str, typer.Option(help="Reason; recorded.")]
_POLL_SECONDS = 1.0
_MAX_LOG_LINES = 5000
"""Lines: as much of a log as the API gives."""
_POLL_NOTE = 200
"""Lines that a look at a log takes at least: what is added between two looks should not be more."""


@app.command("submit")
@takes_a_job
def submit(body: Json, key: lookup.KeyOption = None, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Submit a job, from a file or from options (which win)."""
    job = lookup.current_client().post("/jobs", body, key=key)
    out = page()
    match only(output, (OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.NAME)):
        case OutputFormat.JSON:
            out.json(job)
        case OutputFormat.NAME:
            out.line(job["jobId"])
        case _:
            out.line(f"{out.with_glyph(JOB[job['state']], job['jobId'])}  {plain(job['state'])}, {_node_count(job)}")
            out.line(f"{out.dim('next')}  evenkeel jobs wait {job['jobId']}")


@app.command("plan")
@takes_a_job
def plan(body: Json, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show what the next scheduling cycle would decide about a job, without submitting it.

    Takes the options of `submit`.
    """
    found = lookup.current_client().ask("/jobs/plan", body)
    answer(found, output, lambda out: _print_plan(out, found))


def _print_plan(out: Printer, found: Json) -> None:
    decision = found["decision"]
    would_start = decision["action"] == "ADMIT"
    # Admitted without a node: Kueue places the job, so it has no queue position here.
    is_handed_over = would_start and not decision["nodes"]
    status = "ok" if would_start else "working" if decision["action"] == "PREEMPT" else "next"
    starts = "would be submitted to Kueue" if is_handed_over else "would start"
    said = starts if would_start else f"would wait: {plain(decision['action'])}"
    place = "" if is_handed_over else f", position {found['position']} in its queue"
    out.line(f"{out.with_glyph(status, said)}, team {found['team']}{place}")
    out.paragraph(decision["reason"], indent="  ")
    out.pairs(
        [
            ("nodes", ", ".join(decision["nodes"])),
            ("would stop", ", ".join(f"{each['jobId']} ({each['reason']})" for each in decision["victims"])),
        ],
        indent="  ",
    )
    for each in decision["considered"]:
        out.paragraph(f"{each['option']}: {each['whyNot'] or 'taken'}", indent="  ")
    placement = found.get("placement")
    if placement and placement["pools"]:
        out.line()
        _print_pools(out, placement["pools"])
    if placement:
        out.paragraph(placement["reason"], indent="  ")
    out.line(f"{out.dim('next')}  evenkeel jobs submit")


def _print_pools(out: Printer, pools: list[Json]) -> None:
    """Print where the job could run: the chosen row marked, the others with why not or what they would cost."""
    columns = [Column("POOL"), Column("MARKET")]
    columns += [Column(name, is_right=True) for name in ("STARTS", "ENDS", "RENT", "DELAY", "SHADOW", "IN ALL", "CUTS")]
    columns.append(Column("WHY NOT", gives_way=True))
    rows = []
    for each in pools:
        usd = each["usd"]
        row = [
            out.with_glyph("ok" if each["isChosen"] else "failed" if each["whyNot"] else "idle", each["pool"]),
            each["market"],
            duration(each["startsAfterSeconds"]),
            duration(each["endsAfterSeconds"]),
        ]
        row += [f"${usd[name]:,.2f}" for name in ("rent", "delay", "shadow", "total")]
        rows.append(
            [*row, f"{each['interruptions']:g}", each["whyNot"] or ("chosen" if each["isChosen"] else "dearer")]
        )
    out.table(columns, rows, indent="  ")


@app.command("ls")
def list_jobs(
    state: lookup.StateOption = None,
    team: Annotated[str | None, typer.Option("--team", help="Only of this team.")] = None,
    priority_class: Annotated[
        str | None, typer.Option("--class", help="Only of this priority class; (unset) for none.")
    ] = None,
    unmanaged: Annotated[bool, typer.Option("--unmanaged", help="List unmanaged workloads instead.")] = False,
    limit: lookup.LimitOption = 50,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List jobs, newest first; `--state pending` in the order of the queues."""
    if unmanaged:
        others = lookup.current_client().get("/jobs", unmanaged="true")["items"]
        answer_list(
            others,
            output,
            name_key="name",
            nothing="No GPUs are used by workloads outside Evenkeel.",
            table=_print_unmanaged,
        )
        return
    # An empty class is a filter, too: those without one.
    path = "/jobs?class=" if priority_class == "(unset)" else "/jobs"
    given = None if priority_class == "(unset)" else priority_class
    found = {"state": state and state.upper(), "team": team, "class": given}
    jobs, token = lookup.listed(lookup.current_client(), path, limit, **found)
    nothing = "No jobs." if not state else f"No jobs are {state.lower()}."
    answer_list(jobs, output, name_key="jobId", nothing=nothing, table=_table, page_token=token, ends_after=limit)


@app.command("show")
def show_job(job: JobArgument, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show a job and its attempts."""
    client = lookup.current_client()
    found = client.get(f"/jobs/{lookup.find_job(client, job)}")
    answer(found, output, lambda out: _show(out, found), has_wide=True)


@app.command("timeline")
def timeline(job: JobArgument, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show the timeline of a job."""
    client = lookup.current_client()
    found = client.get(f"/jobs/{lookup.find_job(client, job)}/timeline")
    answer(found, output, lambda out: print_notes(out, found["entries"]), has_wide=True)


@app.command("logs")
def logs(
    job: JobArgument,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the pod in the gang.")] = 0,
    attempt: Annotated[int | None, typer.Option(min=1, help="Attempt number; the latest if omitted.")] = None,
    tail: Annotated[int, typer.Option(min=1, max=5000, help="Number of lines from the end.")] = 200,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the log until the job ends.")] = False,
    is_raw: Annotated[bool, typer.Option("--raw", help="Print the bytes unchanged, with escapes.")] = False,
) -> None:
    """Print one rank's log; `?` replaces control characters."""
    out = page()
    write = out.raw if is_raw else out.text
    client = lookup.current_client()
    job_id = lookup.find_job(client, job)
    if follow:
        try:
            _follow(client, job_id, rank, attempt, tail, write)
        except KeyboardInterrupt:
            raise CommandFailed(Exit.INTERRUPTED, "Stopped following the log. The job continues.") from None
        return
    said = client.get(f"/jobs/{job_id}/logs", rank=rank, attempt=attempt, tail=tail)
    write(said["text"] + _missing_newline(said["text"]))
    if said.get("note"):
        sys.stdout.flush()
        note(said["note"])


@app.command("wait")
def wait(
    job: JobArgument,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Exit 124 if the job does not reach the state in this time.", metavar="SECONDS"),
    ] = None,
    until: Annotated[
        str, typer.Option("--for", help="State to wait for: `ended` or `running`.", metavar="WHAT")
    ] = "ended",
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Wait until a job ends: exit 0 if it succeeded, 3 if not."""
    if until not in ("ended", "running"):
        raise CommandFailed(Exit.USAGE, "--for takes `ended` or `running`.", code="USAGE")
    client = lookup.current_client()
    job_id = lookup.find_job(client, job)
    try:
        found = _wait_for_job(client, job_id, until, timeout)
    except KeyboardInterrupt:
        raise CommandFailed(
            Exit.INTERRUPTED, "Stopped watching. The job continues.", hint=f"evenkeel jobs wait {job_id}"
        ) from None
    out = page()
    if output is OutputFormat.JSON:
        out.json(found)
    else:
        out.line(f"{out.with_glyph(JOB[found['state']], job_id)}  {plain(found['state'])}  {out.dim(found['reason'])}")
    if found["state"] in ("FAILED", "CANCELLED"):
        raise typer.Exit(Exit.UNSUCCESSFUL_END)


@app.command("cancel")
def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Reason; recorded.")] = "",
    key: lookup.KeyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Cancel a job. Its pods get their grace period for a last checkpoint."""
    client = lookup.current_client()
    job_id = lookup.find_job(client, job, is_to_change=True)
    found = client.post(f"/jobs/{job_id}/cancel", {"reason": reason} if reason else {}, key=key)

    def draw(out: Printer) -> None:
        out.line(f"{out.with_glyph(JOB[found['state']], job_id)}  {plain(found['state'])}")
        if found["state"] not in lookup.ENDED:
            out.line(f"{out.dim('next')}  evenkeel jobs wait {job_id}")

    answer(found, output, draw)


@app.command("suspend")
def suspend(
    job: JobArgument,
    reason: ReasonOption = "",
    key: lookup.KeyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Suspend a job. If it runs, its pods get their grace period for a last checkpoint."""
    _suspend_or_resume(job, "suspend", reason, key, output, follows="evenkeel jobs resume")


@app.command("resume")
def resume(
    job: JobArgument,
    reason: ReasonOption = "",
    key: lookup.KeyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Queue a suspended job again, at its old position."""
    _suspend_or_resume(job, "resume", reason, key, output, follows="evenkeel jobs wait")


@app.command("priority")
def priority(
    job: JobArgument,
    priority_class: Annotated[str, typer.Argument(metavar="CLASS", help='Priority class; "" for none.')],
    reason: ReasonOption = "",
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Change the priority class of a job: its queue position, and which jobs it may preempt."""
    client = lookup.current_client()
    job_id = lookup.find_job(client, job, is_to_change=True)
    body = {"priorityClass": priority_class} | ({"reason": reason} if reason else {})
    for tries_left in (2, 1, 0):
        version = client.get(f"/jobs/{job_id}")["version"]
        try:
            found = client.change("PATCH", f"/jobs/{job_id}", body, version=version)
            break
        except CommandFailed as failed:
            # A job changes often, by passes alone: what was asked for is no less wanted.
            if failed.code != "STALE_VERSION" or not tries_left:
                raise
    answer(found, output, lambda out: _print_priority(out, found))


def _print_priority(out: Printer, job: Json) -> None:
    out.line(f"{out.with_glyph(JOB[job['state']], job['jobId'])}  class {job['priorityClass'] or '(unset)'}")
    out.line(f"{out.dim('next')}  evenkeel why {job['jobId']}")


def _suspend_or_resume(
    job: str, verb: str, reason: str, key: str | None, output: OutputFormat, *, follows: str
) -> None:
    client = lookup.current_client()
    job_id = lookup.find_job(client, job, is_to_change=True)
    found = client.post(f"/jobs/{job_id}/{verb}", {"reason": reason} if reason else {}, key=key)

    def draw(out: Printer) -> None:
        is_stopping = found["isSuspended"] and found["state"] != "SUSPENDED"
        said = "stopping; suspended as soon as it has stopped" if is_stopping else plain(found["state"])
        out.line(f"{out.with_glyph(JOB[found['state']], job_id)}  {said}")
        out.line(f"{out.dim('next')}  {follows} {job_id}")

    answer(found, output, draw)


def _requirements(requires: Json) -> str:
    parts = [" or ".join(requires["architectures"]), " or ".join(requires["gpuModels"]), requires["fabric"]]
    if requires["gpuMemoryGib"]:
        parts.append(f"{requires['gpuMemoryGib']:g} GiB on each GPU")
    return ", ".join(part for part in parts if part)


def _checkpoints(checkpoint: Json) -> str:
    if not checkpoint["uri"]:
        return "none: a restart begins at step 0"
    claim = checkpoint.get("claim")
    return f"{checkpoint['uri']} on {claim}" if claim else str(checkpoint["uri"])


def _node_count(job: Json) -> str:
    has, wanted = job.get("currentNodes") or job["nodes"], job["nodes"]
    sizes = job.get("elastic")
    elastic = f", elastic {sizes['minNodes']} to {sizes['maxNodes']}" if sizes else ""
    now = f"{has} of " if has != wanted else ""
    return f"{now}{counted(wanted, 'node')}{elastic} × {counted(job['gpusPerNode'], 'GPU')}"


def _print_unmanaged(out: Printer, workloads: list[Json], is_wide: bool) -> None:
    columns = [Column("WORKLOAD"), Column("PODS", is_right=True), Column("GPUS", is_right=True)]
    columns += [Column("NODES"), Column("ON NODE FAULT", gives_way=True)]
    rows = [
        [
            f"{each['kind'] or 'pod'} {each['namespace']}/{each['name']}",
            str(each["pods"]),
            str(each["accelerators"]),
            ",".join(each["nodeNames"]) if is_wide else str(len(each["nodeNames"])),
            each["says"],
        ]
        for each in workloads
    ]
    out.table(columns, rows)


def _sign(job: Json) -> str:
    return "warn" if job.get("isStale") else JOB[job["state"]]


def _table(out: Printer, jobs: list[Json], is_wide: bool) -> None:
    columns = [
        Column("JOB"),
        Column("NAME", gives_way=True),
        Column("STATE"),
        Column("NODES", is_right=True),
        Column("TRY", is_right=True),
        Column(out.age_title("SUBMITTED"), is_right=True),
    ]
    if is_wide:
        columns += [Column("TEAM"), Column("CLASS"), Column("GPUS", is_right=True), Column("BY")]
    columns.append(Column("REASON", gives_way=True))
    rows = []
    for job in jobs:
        row = [
            job["jobId"],
            job["name"],
            out.with_glyph(_sign(job), plain(job["state"]) + out.last_seen(job)),
            str(job["nodes"]),
            str(job["currentAttempt"]),
            out.when(job["submittedAt"], ago=False),
        ]
        if is_wide:
            gpus = job["nodes"] * job["gpusPerNode"]
            row += [job["team"], job["priorityClass"] or "(unset)", str(gpus), job["submittedBy"]]
        rows.append([*row, job["reason"]])
    out.table(columns, rows, is_whole=is_wide)


def _show(out: Printer, job: Json) -> None:
    state = plain(job["state"]) + out.last_seen(job)
    out.line(f"{out.with_glyph(_sign(job), out.bold(job['jobId']))}  {job['name']}  {state}")
    if job["reason"]:
        out.paragraph(job["reason"], indent="  ")
    out.line()
    if job.get("isRedacted"):
        _show_redacted(out, job)
        return
    out.pairs(
        [
            ("size", f"{_node_count(job)}{' on ' + ', '.join(job['instanceTypes']) if job['instanceTypes'] else ''}"),
            ("team", f"{job['team']}, class {job['priorityClass'] or '(unset)'}"),
            ("type", job["jobType"] or ""),
            ("pools", ", then ".join(choice["name"] for choice in job["pools"])),
            ("requires", _requirements(job["requires"])),
            ("runs", " ".join([*job["command"], *job["args"]])),
            ("image", job["image"]),
            ("checkpoints", _checkpoints(job["checkpoint"])),
            ("submitted", f"{out.when(job['submittedAt'])} by {job['submittedBy']}"),
            ("deadline", out.when(job["deadline"], ago=False) if job.get("deadline") else ""),
            ("ended", out.when(job["endedAt"]) if job["endedAt"] else ""),
            ("queue", _queue_position(out, job["queue"])),
            ("stop requested", job["stopRequest"]["reason"] if job["stopRequest"] else ""),
        ],
        indent="  ",
    )
    if job["attempts"]:
        out.line()
        _print_attempts(out, job["attempts"])
    if job.get("rentals"):
        out.line()
        _print_rentals(out, job["rentals"])
    result = json.dumps(job["result"]) if job["result"] else ""
    out.pairs([("result", result)], indent="  ")
    out.line()
    out.line(f"{out.dim('next')}  evenkeel why {job['jobId']}")


def _show_redacted(out: Printer, job: Json) -> None:
    """Print the public fields of another team's job."""
    out.pairs(
        [
            ("size", f"{_node_count(job)}{' on ' + ', '.join(job['instanceTypes']) if job['instanceTypes'] else ''}"),
            ("team", f"{job['team']}, class {job['priorityClass'] or '(unset)'}"),
            ("requires", _requirements(job["requires"])),
            ("submitted", f"{out.when(job['submittedAt'])} by {job['submittedBy']}"),
            ("ended", out.when(job["endedAt"]) if job["endedAt"] else ""),
            ("queue", _queue_position(out, job["queue"])),
            ("withheld", f"Only team {job['team']} and operators see its command, logs, checkpoints and failures."),
        ],
        indent="  ",
    )
    if job["attempts"]:
        out.line()
        _print_attempts(out, job["attempts"])


def _queue_position(out: Printer, queue: Json | None) -> str:
    if not queue or queue["position"] is None:
        return ""
    text, estimate = f"position {queue['position']} in its queue", queue["estimate"]
    if not estimate or not estimate["startsAt"]:
        return text
    late = out.when(estimate["latestAt"]) if estimate["latestAt"] else "no known latest time"
    band = f"{out.when(estimate['earliestAt'])} to {late}"
    return f"{text}; expected to start {out.when(estimate['startsAt'])} ({band})"


def _print_attempts(out: Printer, attempts: list[Json]) -> None:
    columns = [
        Column("TRY", is_right=True),
        Column("STATE"),
        Column("FROM"),
        Column("RAN", is_right=True),
        Column("NODES", gives_way=True),
        Column("REASON", gives_way=True),
    ]
    rows = []
    for attempt in attempts:
        point = attempt.get("resumeFrom")
        rows.append(
            [
                str(attempt["attempt"]),
                out.with_glyph(ATTEMPT[attempt["state"]], plain(attempt["state"])),
                f"step {point['step']}" if point else "start" if attempt.get("isPinned") else "–",
                _run_duration(out, attempt),
                ",".join(node["instanceId"][-5:] for node in attempt["nodes"]),
                attempt.get("reason", ""),
            ]
        )
    out.table(columns, rows, indent="  ")


def _print_rentals(out: Printer, rentals: list[Json]) -> None:
    columns = [
        Column("RENTAL", is_right=True),
        Column("STATE"),
        Column("POOLS"),
        Column("NODES", is_right=True),
        Column("COST", is_right=True),
        Column("REASON", gives_way=True),
    ]
    rows = [
        [
            str(rental["rental"]),
            plain(rental["state"]),
            ",".join(offer["pool"] for offer in rental["offers"]),
            str(rental["nodes"]),
            f"${rental['costUsd']}" if rental["costUsd"] else "–",
            rental["reason"],
        ]
        for rental in rentals
    ]
    out.table(columns, rows, indent="  ")


def _run_duration(out: Printer, attempt: Json) -> str:
    if not attempt["runningAt"]:
        return "–"
    end = out.seconds_since(attempt["endedAt"]) if attempt["endedAt"] else 0.0
    return duration(max(0.0, out.seconds_since(attempt["runningAt"]) - end))


def print_notes(out: Printer, entries: list[Json]) -> None:
    """Print a story, one line a step, aligned; long texts wrap under themselves."""
    widest = max((len(entry["kind"]) for entry in entries), default=0)
    for entry, at in zip(entries, out.clocks(entry["at"] for entry in entries), strict=True):
        status = _KINDS.get(entry["kind"], "ok")
        head = f"{out.dim(at)} {out.glyph(status)} {entry['kind']:<{widest}}  "
        room = len(at) + widest + 5
        first, *others = out.wrapped(entry["text"] + (f" [{entry['decisionId']}]" if entry["decisionId"] else ""), room)
        out.line(head + first)
        for text in others:
            out.line(" " * room + text)
    if not entries:
        note("Nothing has happened yet.")


_KINDS = {"sickened": "warn", "failed": "failed", "paged": "failed", "held": "warn", "lost": "warn", "planned": "next"}


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


def _wait_for_job(client: ApiClient, job_id: str, until: str, timeout: float | None) -> Json:
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


def _follow(
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
                write(_missing_newline(seen))
                note(f"Attempt {found['attempt']} of {job_id}, from its beginning:")
                seen = ""
            is_first = not current and not is_awaited
            # Kept lines of an attempt that was followed are a copy of what was printed.
            is_copy = current == found["attempt"] and bool(found.get("keptAt"))
            text = seen if is_copy else found["text"]
            write(_last_lines(text, tail) if is_first else new_log_text(seen, text))
            current, seen = found["attempt"], _last_lines(text, lines)
        if is_over:
            write(_missing_newline(seen))
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


def _missing_newline(text: str) -> str:
    """Return the newline that a text lacks at its end, else an empty string."""
    return "" if not text or text.endswith("\n") else "\n"
