"""`evenkeel jobs cancel`, `suspend`, `resume` and `priority`: the plan of the change, then the change."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.change_plans import show_plan_or_confirm
from evenkeel_cli.commands.output import print_change
from evenkeel_cli.render import OutputFormat
from evenkeel_cli.state_signs import JOB, plain
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed

Json = dict[str, Any]

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id, unique prefix of an id, name, or @latest.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `evenkeel jobs`."""
    for name, command in (("cancel", _cancel), ("suspend", _suspend), ("resume", _resume), ("priority", _priority)):
        app.command(name)(command)


def _cancel(
    job: JobArgument,
    reason: lookup.ReasonOption = "",
    is_dry_run: lookup.DryRunOption = False,
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show what a cancel stops, ask, and cancel the job. Its pods get their grace period for a last checkpoint."""
    client, job_id = _find(job)
    if _show_plan_or_confirm(client, job_id, "cancel", {}, output, is_dry_run=is_dry_run, is_sure=is_sure):
        return
    response = client.post(f"/jobs/{job_id}/cancel", _body(reason), key=key)
    next_command = "" if response["state"] in lookup.ENDED else f"jobs wait {response['jobId']}"
    _print_job_change(response, output, plain(response["state"]), next_command)


def _suspend(
    job: JobArgument,
    reason: lookup.ReasonOption = "",
    is_dry_run: lookup.DryRunOption = False,
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show what stops, ask, and suspend the job. If it runs, its pods get their grace period for a last checkpoint."""
    client, job_id = _find(job)
    if _show_plan_or_confirm(client, job_id, "suspend", {}, output, is_dry_run=is_dry_run, is_sure=is_sure):
        return
    _print_suspension(client.post(f"/jobs/{job_id}/suspend", _body(reason), key=key), output, "resume")


def _resume(
    job: JobArgument,
    reason: lookup.ReasonOption = "",
    is_dry_run: lookup.DryRunOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Queue a suspended job again, at its old position."""
    client, job_id = _find(job)
    if _show_plan_or_confirm(client, job_id, "resume", {}, output, is_dry_run=is_dry_run, is_sure=True):
        return
    _print_suspension(client.post(f"/jobs/{job_id}/resume", _body(reason), key=key), output, "wait")


def _priority(
    job: JobArgument,
    priority_class: Annotated[str, typer.Argument(metavar="CLASS", help='Priority class; "" for none.')],
    reason: lookup.ReasonOption = "",
    is_dry_run: lookup.DryRunOption = False,
    is_sure: lookup.YesOption = False,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show the new queue position, ask, and change the priority class. It decides which jobs the job may preempt."""
    client, job_id = _find(job)
    class_field = {"priorityClass": priority_class}
    if _show_plan_or_confirm(client, job_id, "priority", class_field, output, is_dry_run=is_dry_run, is_sure=is_sure):
        return
    for tries_left in (2, 1, 0):
        version = client.get(f"/jobs/{job_id}")["version"]
        try:
            response = client.change("PATCH", f"/jobs/{job_id}", class_field | _body(reason), version=version)
            break
        except CommandFailed as failure:
            # Scheduling cycles change a job's version often. The request still applies: try again with the new version.
            if failure.code != "STALE_VERSION" or not tries_left:
                raise
    _print_job_change(response, output, f"class {response['priorityClass'] or '(unset)'}", f"why {job_id}")


def _find(job: str) -> tuple[ApiClient, str]:
    client = lookup.current_client()
    return client, lookup.find_job(client, job, is_to_change=True)


def _body(reason: str) -> Json:
    return {"reason": reason} if reason else {}


def _read_plan(client: ApiClient, job_id: str, change: str, fields: Json) -> Json:
    body = {**fields, "dryRun": True}
    if change == "priority":
        return client.change("PATCH", f"/jobs/{job_id}", body)
    return client.post_read_only(f"/jobs/{job_id}/{change}", body)


def _show_plan_or_confirm(
    client: ApiClient, job_id: str, change: str, fields: Json, output: OutputFormat, *, is_dry_run: bool, is_sure: bool
) -> bool:
    return show_plan_or_confirm(
        lambda: _read_plan(client, job_id, change, fields),
        title=lambda plan: f"{plan['jobId']}  {change}: {_states_text(plan)}",
        texts=lambda plan: [
            *plan["effects"],
            *filter(None, (_queue_text(plan["queue"]), _decision_text(plan["decision"]))),
        ],
        verb="change the priority class" if change == "priority" else f"{change} the job",
        output=output,
        is_dry_run=is_dry_run,
        is_sure=is_sure,
    )


def _states_text(plan: Json) -> str:
    state_before, state_after = plain(plan["state"]), plain(plan["nextState"])
    return state_before if state_before == state_after else f"{state_before}, then {state_after}"


def _queue_text(queue: Json | None) -> str:
    if queue is None:
        return ""
    position_before, position_after = (queue[name] or "none" for name in ("position", "positionAfter"))
    return f"Queue position: {position_before} now, {position_after} after the change."


def _decision_text(decision: Json | None) -> str:
    if decision is None:
        return ""
    victims = ", ".join(victim["jobId"] for victim in decision["victims"])
    return f"The next scheduling cycle: {decision['reason']}" + (f" It preempts {victims}." if victims else "")


def _print_job_change(job: Json, output: OutputFormat, text: str, then: str) -> None:
    print_change(job, output, f"{job['jobId']}  {text}", status=JOB[job["state"]], then=then)


def _print_suspension(job: Json, output: OutputFormat, verb: str) -> None:
    is_stopping = job["isSuspended"] and job["state"] != "SUSPENDED"
    text = "stopping; suspended as soon as it has stopped" if is_stopping else plain(job["state"])
    _print_job_change(job, output, text, f"jobs {verb} {job['jobId']}")
