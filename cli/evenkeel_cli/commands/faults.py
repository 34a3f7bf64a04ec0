"""`evenkeel faults`."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_change, print_list, print_read
from evenkeel_cli.render import OutputFormat
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.command_group("List and explain known faults, and report a fault.")

_INSTANCE_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})", re.ASCII)


PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy", metavar="FILE", help="Site policy file; its values replace the values of the shipped policy."
    ),
]


@app.command("ls")
@app.command("list", hidden=True)
def list_faults(
    family: Annotated[str, typer.Option(metavar="FAMILY", help="Only this family: xid, sxid, hp, eks, ec2, …")] = "",
    policy: PolicyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List known faults. Needs no fleet. The catalogue belongs to the release, so there is no `--watch`."""
    from evenkeel_cli.offline import faults, policies

    documents = faults.list_faults(policies.load_policy(policy).catalogue, family)
    print_list(documents, output, lambda _: faults.COLUMNS, fields=faults.FIELDS, empty_text="")


@app.command("explain")
def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="xid:79, 79, NvidiaErrorReboot, DCGMError, …")],
    policy: PolicyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a fault and the recovery plan that it leads to. Needs no fleet, so there is no `--watch`."""
    from evenkeel_cli.offline import faults, policies

    preview = faults.explain_fault(code, policies.load_policy(policy))
    document = faults.preview_document(preview)
    print_read(lambda: document, output, lambda out, _: faults.draw_fault(out, preview))


@app.command("report")
def report(  # noqa: PLR0913, PLR0917 - options, each given by its name
    node: Annotated[str, typer.Argument(metavar="NODE", help="Instance id or full node name.")],
    code: Annotated[str, typer.Argument(help="xid:79, 79, gpu:driver_hang, …; use - if --line names the fault.")],
    line: Annotated[str, typer.Option(help="Line of the kernel log, or of HyperPod's agent.")] = "",
    gpu: Annotated[str, typer.Option(help="UUID or PCI address of the device.")] = "",
    detail: Annotated[str, typer.Option(help="Description of the fault, in your words.")] = "",
    at: Annotated[
        str, typer.Option(help="Time of the observation, such as 2026-11-03T10:15:00Z; now if omitted.")
    ] = "",
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Report a fault of a node, as your own detectors do. Needs only the permission to report."""
    fault = {
        # The API resolves the node's name, because a caller who may report may not be allowed to list nodes.
        "instanceId" if _INSTANCE_ID.fullmatch(node) else "nodeName": node,
        "code": "" if code == "-" else code,
        "line": line,
        "gpu": gpu,
        "detail": detail,
        "observedAt": at or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    if code == "-" and not line:
        raise CommandFailed(Exit.USAGE, "CODE is -, so --line is required.", code="USAGE")
    body = {"faults": [{name: value for name, value in fault.items() if value}]}
    response = lookup.current_client().post(
        "/faults", body, key=key, repeat="" if at else f" --at {fault['observedAt']}"
    )

    text = f"{response['accepted']} reported" if response["accepted"] else "the log line names no fault of the node"
    print_change(response, output, text, status="ok" if response["accepted"] else "warn", then="incidents ls")
