"""`evenkeel plan`."""

from pathlib import Path
from typing import Annotated

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import answer_model
from evenkeel_cli.render import OutputFormat, note

app = lookup.single("plan")


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
        str, typer.Option(metavar="HOW", help="`held` until a podsGone event, or `released` before the next cycle.")
    ] = "held",
    why: Annotated[str, typer.Option(metavar="JOB", help="Explain this job instead of printing the plan.")] = "",
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the scheduler on files: admissions, preemptions and their reasons. Needs no fleet and no AWS."""
    from evenkeel_cli.offline import kueue_plan as offline
    from evenkeel_cli.offline import quota_files

    declared = quota_files.declared(offline.profile_of(profile), quota, config)
    released = offline.releases(evictions)
    begins = offline.instant(now)
    replay = offline.run(declared, jobs or [], events, begins=begins, cycles=cycles, releases_at_once=released)
    for warning in declared.read_warnings.warnings:
        note(f"warning: {warning}")
    if why:
        reasons = offline.explain(replay, why)
        answer_model(reasons, output, lambda out: offline.draw_why(out, reasons))
        return
    answer = replay.answer()
    answer_model(answer, output, lambda out: offline.draw(out, answer))
