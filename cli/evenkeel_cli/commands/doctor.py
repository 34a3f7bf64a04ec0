"""`evenkeel doctor`."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import Column, OutputFormat, Printer, require_format, stdout_printer
from evenkeel_client import context
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel_cli.doctor.checks import DoctorCheck
    from evenkeel_cli.doctor.findings import DoctorFinding
    from evenkeel_cli.doctor.site import BotocoreAws, InspectedSite

app = lookup.single_command("doctor")

_SIGNS = {"ok": "ok", "warning": "warn", "failed": "failed", "unknown": "next"}


@app.command("doctor")
def doctor(
    stack: Annotated[
        str, typer.Option("--stack", help="CloudFormation stack; default: the context's.", metavar="NAME")
    ] = "",
    before: Annotated[
        str,
        typer.Option("--before", help="Check this environment of samconfig.toml before its deployment.", metavar="ENV"),
    ] = "",
    skip: Annotated[str, typer.Option("--skip", help="Skip these checks (comma-separated).", metavar="CHECK,…")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; short for -o json.")] = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Check everything that Evenkeel needs, and print how to fix problems.

    It only reads. Exit 0: nothing failed. Exit 1: something failed. Exit 2: at least one check could not run.
    With --before it reads samconfig.toml of the current folder, and needs no stack.
    """
    from evenkeel_cli.doctor import checks, findings

    form = OutputFormat.JSON if as_json else require_format(output, (OutputFormat.TABLE, OutputFormat.JSON))
    if before:
        if stack:
            raise CommandFailed(
                Exit.USAGE, "--before and --stack exclude each other: the environment names the stack.", code="USAGE"
            )
        _check_before(before, skip, form)
    skipped_checks = _skipped_checks(skip, checks.CHECKS)
    site, _ = stack_site(stack)
    printer = stdout_printer()
    api_context = site.context
    doctor_findings = checks.run(site, printer.now(), skipped_checks)
    next_step = findings.next_step(doctor_findings, checks.ENABLE)
    if form.is_document:
        fleet, as_of = site.fleet(), printer.now().isoformat()
        document = findings.to_json(
            doctor_findings, fleet=fleet, stack=site.stack, region=api_context.region, as_of=as_of, then=next_step
        )
        printer.document(document, form)
    else:
        print_findings(
            printer, f"fleet {site.fleet()}  stack {site.stack}  {api_context.region}", doctor_findings, next_step
        )
    raise typer.Exit(findings.exit_code(doctor_findings))


def _skipped_checks(skip: str, table: "Sequence[DoctorCheck]") -> set[str]:
    skipped = {name.strip() for name in skip.split(",") if name.strip()}
    names = [check.name for check in table]
    if wrong := sorted(skipped - set(names)):
        raise CommandFailed(
            Exit.USAGE, f"There is no check {wrong[0]!r}.", code="USAGE", hint=f"The checks: {', '.join(names)}"
        )
    return skipped


def _check_before(environment: str, skip: str, form: OutputFormat) -> NoReturn:
    """Check the requirements of a deployment of an environment, and exit."""
    from evenkeel_cli.doctor import checks, findings, predeployment
    from evenkeel_cli.doctor.site import BotocoreAws
    from evenkeel_cli.offline import planned_stack

    folder = Path.cwd()
    try:
        skipped_checks = _skipped_checks(skip, predeployment.CHECKS_BEFORE_DEPLOYMENT)
        planned_stack_values = planned_stack.read_planned_stack(folder, environment)
    except CommandFailed as error:
        # Not the exit code of a usage error: doctor also exits with it if a check had no answer, and then `make deploy`
        # continues.
        raise CommandFailed(Exit.FAILED, error.text, code=error.code, hint=error.hint) from error
    profile = os.environ.get("EVENKEEL_PROFILE")
    api_context = context.ApiContext(
        "", "", planned_stack_values.region, profile=profile, stack=planned_stack_values.name, source="samconfig.toml"
    )
    site = predeployment.PlannedSite(
        BotocoreAws(api_context), planned_stack_values, planned_stack.read_sam_versions(folder)
    )
    out, fleet = stdout_printer(), planned_stack_values.parameters["FleetName"]
    doctor_findings = checks.run(site, out.now(), skipped_checks, predeployment.CHECKS_BEFORE_DEPLOYMENT)
    next_step = "" if findings.exit_code(doctor_findings) == 1 else f"Deploy: make deploy ENV={environment}"
    if form.is_document:
        as_of = out.now().isoformat()
        document = findings.to_json(
            doctor_findings,
            fleet=fleet,
            stack=planned_stack_values.name,
            region=planned_stack_values.region,
            as_of=as_of,
            then=next_step,
        )
        out.document(document, form)
    else:
        print_findings(
            out,
            f"before a deployment of {environment}  stack {planned_stack_values.name}  {planned_stack_values.region}",
            doctor_findings,
            next_step,
        )
    raise typer.Exit(findings.exit_code(doctor_findings))


def stack_site(stack: str) -> "tuple[InspectedSite, BotocoreAws]":
    """Return the site of a stack, and AWS with the caller's credentials. If `stack` is empty, the context names it."""
    from evenkeel_cli.doctor.site import BotocoreAws, InspectedSite
    from evenkeel_cli.offline import access

    api_context = _stack_context(stack)
    aws = BotocoreAws(api_context)
    site = InspectedSite(
        aws, _api_client(api_context) if api_context.url else None, api_context, stack or api_context.stack, access
    )
    _complete_site(site, aws)
    return site, aws


def _stack_context(stack: str) -> context.ApiContext:
    """Return the context in use. Without one, `--stack` is enough: the stack's outputs have the API's address."""
    try:
        return lookup.current_context()
    except CommandFailed as failure:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if failure.code != "NO_CONTEXT" or not stack or not region:
            raise
        profile = os.environ.get("EVENKEEL_PROFILE")
        return context.ApiContext(name="", url="", region=region, profile=profile, source=f"the stack {stack}")


def _api_client(api_context: context.ApiContext) -> ApiClient:
    return ApiClient(api_context, warn=None)  # the check `sources` reports stale facts


def _complete_site(site: "InspectedSite", aws: "BotocoreAws") -> None:
    """Complete the facts about the site from the stack's description, if it can be read."""
    from evenkeel_cli.doctor.findings import CouldNotCheck

    try:
        aws.endpoints = {"sagemaker": site.parameter("SageMakerEndpoint"), "eks": site.parameter("EksEndpoint")}
        if not site.context.url:
            site.context = replace(site.context, url=site.output("ApiUrl"))
            site.client = _api_client(site.context)
    except CouldNotCheck:
        pass  # the check `stack` reports it


def print_findings(out: Printer, head: str, findings: list["DoctorFinding"], next_step: str) -> None:
    """Print a line for each finding, with its fix below."""
    out.line(out.bold(f"evenkeel doctor  {head}"))
    rows = []
    previous_check = ""
    for finding in findings:
        name = finding.check if finding.check != previous_check else ""
        previous_check = finding.check
        status_text = out.with_glyph(_SIGNS[finding.status.value], f"{finding.status.value:<7}")
        rows.append((name, status_text, f"{finding.subject}: {finding.text}" if finding.subject else finding.text))
        if finding.fix:
            rows.append(("", "", out.dim(f"fix: {finding.fix}")))
    out.table([Column("", 0), Column("", 1), Column("", 2, wraps=True)], rows)
    counts = {name: sum(finding.status.value == name for finding in findings) for name in _SIGNS}
    out.line(out.bold(", ".join(f"{number} {name}" for name, number in counts.items())))
    if next_step:
        out.paragraph(f"next  {next_step}")
