"""`evenkeel jobs`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import job_changes, lookup
from evenkeel_cli.commands.following import (
    LogQuery,
    MissingLogs,
    ProgressReading,
    follow_logs,
    missing_newline,
    wait_for_job,
    watch_job,
    with_prefix,
)
from evenkeel_cli.commands.job_changes import JobArgument
from evenkeel_cli.commands.job_pages import (
    draw_job,
    draw_plan,
    draw_progress,
    list_columns,
    size_text,
    unmanaged_columns,
)
from evenkeel_cli.commands.output import (
    draw_timeline,
    draw_timeline_document,
    print_list,
    print_object,
    print_or_watch,
    print_read,
    write_template,
)
from evenkeel_cli.commands.submission import explain_missing_fields, takes_a_job
from evenkeel_cli.receipt_page import draw_job_receipt
from evenkeel_cli.render import OutputFormat, note, require_format, stdout_printer
from evenkeel_cli.state_signs import JOB, plain
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

_FIELDS = (
    *("jobId", "name", "team", "jobType", "kind", "priorityClass", "priority", "state", "isSuspended", "reason"),
    *(
        "nodes",
        "currentNodes",
        "gpusPerNode",
        "cluster",
        "currentAttempt",
        "applicationFailures",
        "submittedAt",
        "submittedBy",
    ),
    *("startedAt", "endedAt", "isStale", "lastSeenAt"),
)
_UNMANAGED_FIELDS = (
    *("name", "namespace", "kind", "cluster", "pods", "accelerators", "nodeNames", "recreation", "consent", "claims"),
    *("says", "isStale", "lastSeenAt"),
)

app = lookup.command_group("Submit, list, show, follow, suspend and cancel training jobs.")


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("job.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write an example job file to edit. Nothing is submitted."""
    write_template("job_template.yaml", file, then=f"evenkeel jobs plan {file}", force=force)


@app.command("submit")
@takes_a_job
def submit(body: Json, key: lookup.KeyOption = None, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Submit a job from a file, from options, or from both. Options override the file."""
    client = lookup.current_client()
    try:
        job = client.post("/jobs", body, key=key)
    except CommandFailed as failure:
        raise explain_missing_fields(failure, body) from None
    printer = stdout_printer()
    match require_format(output, (OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.NAME)):
        case OutputFormat.JSON | OutputFormat.YAML:
            printer.document(job, output)
        case OutputFormat.NAME:
            printer.line(job["jobId"])
        case _:
            printer.line(
                f"{printer.with_glyph(JOB[job['state']], job['jobId'])}  {plain(job['state'])}, {size_text(job)}"
            )
            printer.next_command(f"evenkeel jobs wait {job['jobId']}")


@app.command("plan")
@takes_a_job
def plan(body: Json, arguments: str, output: lookup.ResultOption = OutputFormat.TABLE) -> None:
    """Preview the next scheduling cycle's decision about a job.

    The job is not submitted. Takes the options of `submit`.
    """
    client = lookup.current_client()
    try:
        response = client.post_read_only("/jobs/plan", body)
    except CommandFailed as failure:
        raise explain_missing_fields(failure, body) from None
    print_object(response, output, lambda out: draw_plan(out, response, arguments))


@app.command("ls")
def list_jobs(  # noqa: PLR0913, PLR0917 - options, each given by its name
    state: lookup.StateOption = None,
    team: Annotated[str | None, typer.Option("--team", help="Only jobs of this team.")] = None,
    priority_class: Annotated[
        str | None, typer.Option("--class", help="Only this priority class; (unset) lists jobs without a class.")
    ] = None,
    sort: lookup.SortOption = None,
    unmanaged: Annotated[bool, typer.Option("--unmanaged", help="List unmanaged workloads instead.")] = False,
    limit: lookup.LimitOption = 50,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List jobs, newest first. `--state pending` lists them in the order of the queues.

    `--sort` takes state, name, team, priority, nodes, submittedAt, startedAt or endedAt.
    """
    client = lookup.current_client()

    def draw_unmanaged(workloads: list[Json]) -> None:
        print_list(
            workloads,
            output,
            lambda _: unmanaged_columns(is_wide=output is OutputFormat.WIDE),
            fields=_UNMANAGED_FIELDS,
            empty_text="No GPUs are used by workloads outside Evenkeel.",
            watch=watch,
        )

    if unmanaged:
        print_or_watch(lambda: client.get("/jobs", unmanaged="true")["items"], draw_unmanaged, output, watch=watch)
        return
    # An empty class is a filter, too: it selects jobs without a class.
    path = "/jobs?class=" if priority_class == "(unset)" else "/jobs"
    class_filter = None if priority_class == "(unset)" else priority_class
    document: Json = {"state": state and state.upper(), "team": team, "class": class_filter, "sort": sort}
    empty_text = "No jobs." if not state else f"No jobs are {state.lower()}."

    def draw(page: tuple[list[Json], str | None]) -> None:
        jobs, token = page
        print_list(
            jobs,
            output,
            list_columns,
            fields=_FIELDS,
            empty_text=empty_text,
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    print_or_watch(lambda: lookup.list_items_and_token(client, path, limit, **document), draw, output, watch=watch)


@app.command("show")
def show_job(
    job: JobArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show a job and its attempts."""
    client = lookup.current_client()
    job_id = lookup.find_job(client, job)
    print_read(lambda: client.get(f"/jobs/{job_id}"), output, draw_job, watch=watch)


@app.command("receipt")
def receipt(
    job: JobArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show where a job's time went, and what interruptions cost."""
    client = lookup.current_client()
    job_id = lookup.find_job(client, job)
    print_read(lambda: client.get(f"/jobs/{job_id}/receipt"), output, draw_job_receipt, watch=watch)


@app.command("timeline")
def timeline(
    job: JobArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show the timeline of a job."""
    client = lookup.current_client()
    path = f"/jobs/{lookup.find_job(client, job)}/timeline"
    print_read(lambda: client.get(path), output, draw_timeline_document, watch=watch, items="entries")


@app.command("logs")
def logs(  # noqa: PLR0913, PLR0917 - options, each given by its name
    job: JobArgument,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Rank of the pod. Default: 0, or the lowest rank that left a log.")
    ] = None,
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", "-a", help="Print the logs of all ranks; each line begins with its rank.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Attempt number; the latest if omitted.")] = None,
    tail: Annotated[int, typer.Option(min=1, max=5000, help="Number of lines from the end.")] = 200,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Begin each line with its time, in UTC.")] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the log until the job ends.")] = False,
    is_raw: Annotated[
        bool, typer.Option("--raw", help="Print the log unchanged, with its control characters.")
    ] = False,
) -> None:
    """Print the log of one rank or of all ranks. `?` replaces control characters."""
    printer = stdout_printer()
    write = printer.raw if is_raw else printer.text
    client = lookup.current_client()
    job_id = lookup.find_job(client, job)
    writers: dict[int | None, Callable[[str], None]] = {rank: write}
    if all_ranks:
        count = _rank_count(client.get(f"/jobs/{job_id}"), attempt)
        writers = {number: with_prefix(f"[{number}] ", write) for number in range(count)}
    log_query = LogQuery(attempt, tail, timestamps)
    if follow:
        try:
            follow_logs(client, job_id, writers, log_query)
        except KeyboardInterrupt:
            raise CommandFailed(Exit.INTERRUPTED, "Stopped following the log. The job continues.") from None
        return
    missing = MissingLogs(len(writers))
    for number, write_rank in writers.items():
        try:
            document = client.get(f"/jobs/{job_id}/logs", rank=number, **log_query.parameters())
        except CommandFailed as failed:
            if failed.exit_code is Exit.NOT_FOUND:
                failed.hint = f"evenkeel jobs show {job_id}"
            missing.add(failed)
            continue
        write_rank(document["text"] + missing_newline(document["text"]))
        if document.get("note"):
            sys.stdout.flush()
            note(document["note"])


def _rank_count(job: Json, attempt: int | None) -> int:
    """Return the number of pods of an attempt, by default of the latest; at least one."""
    nodes = (
        attempt_document["nodes"]
        for attempt_document in job["attempts"]
        if attempt in (None, attempt_document["attempt"])
    )
    return max(1, len(next(nodes, ())))


@app.command("watch")
def watch(job: JobArgument, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show a job's progress until it ends. Exit 0 if it succeeded, 3 if not.

    Shows state, step, loss, time left, timeline and log.
    """
    client = lookup.current_client()
    job_id = lookup.find_job(client, job)
    form = require_format(output, (OutputFormat.TABLE, OutputFormat.JSON))
    printer = stdout_printer()

    def draw(shown_job: Json, reading: ProgressReading, entries: list[Json]) -> None:
        if form.is_document:
            printer.document({"job": shown_job, "progress": reading.to_json()}, form, is_part=True)
            return
        printer.clear()
        draw_progress(printer, shown_job, reading.text if shown_job["state"] == "RUNNING" else "")
        if entries:
            printer.line()
            draw_timeline(printer, entries)
        if reading.log:
            printer.line()
            printer.text(reading.log + missing_newline(reading.log))
        printer.stream.flush()

    try:
        latest_job = watch_job(client, job_id, draw)
    except KeyboardInterrupt:
        raise CommandFailed(
            Exit.INTERRUPTED, "Stopped watching. The job continues.", hint=f"evenkeel jobs watch {job_id}"
        ) from None
    if latest_job["state"] != "SUCCEEDED":
        raise typer.Exit(Exit.UNSUCCESSFUL_END)


@app.command("wait")
def wait(
    job: JobArgument,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Maximum wait; after it, the command exits with 124.", metavar="SECONDS"),
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
        document = wait_for_job(client, job_id, until, timeout)
    except KeyboardInterrupt:
        raise CommandFailed(
            Exit.INTERRUPTED, "Stopped watching. The job continues.", hint=f"evenkeel jobs wait {job_id}"
        ) from None
    printer = stdout_printer()
    if output.is_document:
        printer.document(document, output)
    else:
        state, reason = document["state"], document["reason"]
        printer.line(f"{printer.with_glyph(JOB[state], job_id)}  {plain(state)}  {printer.dim(reason)}")
    if document["state"] in ("FAILED", "CANCELLED"):
        raise typer.Exit(Exit.UNSUCCESSFUL_END)


job_changes.register(app)
