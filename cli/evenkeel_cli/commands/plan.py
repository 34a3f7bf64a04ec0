"""`evenkeel plan`."""

from pathlib import Path
from typing import Annotated

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_model
from evenkeel_cli.render import OutputFormat, note

app = lookup.single_command("plan")


@app.command("plan")
def plan(  # noqa: PLR0913, PLR0917 - options, each given by its name
    quota: Annotated[
        list[Path],
        typer.Option("--quota", "-q", metavar="FILE", help="Queues: Kueue YAML, HyperPod JSON or the short form."),
    ],
    jobs: Annotated[
        list[Path] | None,
        typer.Option("--jobs", "-j", metavar="FILE", help="Jobs: Kueue Workloads or the short form."),
    ] = None,
    events: Annotated[
        Path | None, typer.Option("--events", "-e", metavar="FILE", help="Events, in order of time.")
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Scheduler rules: kueue, hyperpod or evenkeel.")
    ] = "evenkeel",
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Kueue configuration file.")] = None,
    now: Annotated[
        str, typer.Option(metavar="WHEN", help="Start time. Default: the latest admission in the job files.")
    ] = "",
    cycles: Annotated[
        int | None, typer.Option(min=1, help="Maximum cycles between two instants. Default: until nothing changes.")
    ] = None,
    evictions: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Quota of evicted jobs: `held` until a podsGone event, or `released` before the next cycle.",
        ),
    ] = "held",
    why: Annotated[str, typer.Option(metavar="JOB", help="Explain this job instead of printing the plan.")] = "",
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the scheduler on files: admissions, preemptions and their reasons. Needs no fleet and no AWS."""
    from evenkeel_cli.offline import kueue_plan as offline
    from evenkeel_cli.offline import quota_files

    quota_documents = quota_files.read_quotas(offline.parse_profile(profile), quota, config)
    releases_quota = offline.parse_evictions(evictions)
    start_seconds = offline.parse_instant(now)
    replay = offline.replay_files(
        quota_documents, jobs or [], events, begins=start_seconds, cycles=cycles, releases_at_once=releases_quota
    )
    for warning in quota_documents.read_warnings.warnings:
        note(f"warning: {warning}")
    if why:
        reasons = offline.explain_job(replay, why)
        print_model(reasons, output, lambda out: offline.draw_why(out, reasons))
        return
    answer = replay.answer()
    print_model(answer, output, lambda out: offline.draw_plan(out, answer))
