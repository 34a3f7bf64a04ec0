"""`evenkeel policy`."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import (
    print_change,
    print_list,
    print_object,
    print_or_watch,
    print_read,
    write_template,
)
from evenkeel_cli.render import Column, OutputFormat, Printer, note, stdout_printer
from evenkeel_cli.state_signs import count_of
from evenkeel_client.errors import Exit

Json = dict[str, Any]

app = lookup.command_group("Show, check and change the policy: limits, deadlines and faults.")

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML or JSON file with the site's changes to the shipped policy.")
]
BaseOption = Annotated[str, typer.Option("--base", metavar="NAME", help="Base policy.")]


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("policy.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write an example site policy with the shipped values. Nothing is applied."""
    write_template("policy_template.yaml", file, then=f"evenkeel policy check {file}", force=force)


@app.command("check")
def check(
    file: FileArgument, base: BaseOption = "production", output: lookup.ResultOption = OutputFormat.TABLE
) -> None:
    """Check a policy file without a fleet. Exit 2 if the service would refuse it. Warns of improbable values."""
    from evenkeel_cli.offline import policies

    policy = policies.load_policy(file, base)
    changes = policies.differences(policy, base)
    document = {
        "hash": policy.hash,
        "catalogueHash": policy.catalogue.hash,
        "changes": [{"field": name, "before": old_value, "after": new_value} for name, old_value, new_value in changes],
        "warnings": policies.value_warnings(policy, stdout_printer().now()),
    }
    print_object(document, output, lambda out: _print_check(out, document))


ValuesArgument = Annotated[
    Path, typer.Argument(metavar="VALUES", help="Values of a Helm chart with job templates; - is standard input.")
]


@app.command("lint")
def lint(values: ValuesArgument = Path("values.yaml"), output: lookup.ResultOption = OutputFormat.TABLE) -> None:
    """Check a values file without a fleet. Exit 1 if a value cannot work."""
    from evenkeel_cli.offline import values_files

    document = values_files.lint_values_file(values)
    print_object(document, output, lambda out: _print_findings(out, document["findings"]))
    if document["refused"]:
        raise typer.Exit(Exit.FAILED)


@app.command("import")
def import_(
    values: ValuesArgument,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="Output folder.")] = Path(),
    onto: Annotated[
        Path | None, typer.Option("--onto", metavar="FILE", help="The site's policy file; its other fields are kept.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Convert a values file to a policy, teams and Kubernetes classes.

    The policy file has the job types. The file for `teams apply` has the classes and flavors.
    """
    from evenkeel_cli.offline import values_files

    document = values_files.import_values_file(values, onto)
    if output.is_document:
        stdout_printer().document(document, output)
        return
    written_files = values_files.write_documents(document, into, force=force)

    def draw(out: Printer) -> None:
        _print_findings(out, document["findings"])
        for loss in document["losses"]:
            note(f"lost: {loss}")
        for addition in document["additions"]:
            note(f"added: {addition}")
        out.line(
            out.with_glyph(
                "ok", f"{', '.join(document['policy']['jobTypes']['types'])}: written to {' and '.join(written_files)}"
            )
        )
        out.next_command(f"kubectl apply -f {written_files[2]}")
        out.next_command(f"evenkeel policy apply {written_files[0]} --reason …")
        out.next_command(f"evenkeel teams apply -f {written_files[1]} --dry-run --reason …")

    print_object(document, output, draw)


@app.command("show")
def show(watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show the active policy and its last change."""
    client = lookup.current_client()
    print_read(lambda: client.get(f"/clusters/{client.fleet}/policy"), output, _draw_policy, watch=watch)


@app.command("history")
def history(
    limit: lookup.LimitOption = 1000,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List all policy changes, newest first."""
    client = lookup.current_client()
    path = f"/clusters/{client.fleet}/policy"

    def draw(page: tuple[list[Json], str | None]) -> None:
        changes, token = page
        print_list(
            changes,
            output,
            _columns,
            fields=("number", "at", "by", "reason", "changes"),
            empty_text="The policy is as shipped: it has no changes.",
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    fetch = partial(lookup.list_items_and_token, client, path, limit, within="history")
    print_or_watch(fetch, draw, output, watch=watch)


def _columns(out: Printer) -> list[Column]:
    return [
        Column("CHANGE", "number", is_right=True),
        Column("AT", lambda change: out.time_text(change["at"])),
        Column("BY", "by"),
        Column("BECAUSE", "reason", may_shrink=True),
        Column("CHANGES", _changes_text, may_shrink=True),
    ]


def _changes_text(change: Json) -> str:
    return json.dumps(change["changes"], ensure_ascii=False) if change["changes"] else "no changes"


@app.command("apply")
def apply(
    file: FileArgument,
    reason: Annotated[str, typer.Option(help="Reason; recorded and shown.")],
    based_on: Annotated[
        str, typer.Option("--based-on", metavar="HASH", help="Refuse unless the active policy has this hash.")
    ] = "",
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Activate a policy file instead of the current policy. Run `policy check` first."""
    from evenkeel_cli.offline import policies

    client = lookup.current_client()
    body = {"changes": policies.read_site_changes(file), "reason": reason} | ({"basedOn": based_on} if based_on else {})
    response = client.post(f"/clusters/{client.fleet}/policy", body, key=key)

    text = f"change {response['number']} takes effect everywhere within 30 seconds"
    print_change(response, output, text, then="policy show")


@app.command("test")
def try_(
    file: FileArgument,
    since: Annotated[str, typer.Option(metavar="WHEN", help="30d, 12h, 10m, or 2026-11-03T10:15:00Z.")] = "7d",
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Replay recorded decisions under a policy file. Shows the decisions that would differ."""
    from evenkeel_cli.offline import policies

    client = lookup.current_client()
    since_text = lookup.parse_instant("--since", since, stdout_printer().now())
    body = {"changes": policies.read_site_changes(file), "since": since_text}
    response = client.post_read_only(f"/clusters/{client.fleet}/policy/test", body)
    print_object(response, output, lambda out: _print_test(out, response))


def _print_test(out: Printer, document: Json) -> None:
    changed_decisions = document["changed"]
    examined_text = f"of {count_of(document['examined'], 'decision')} since {document['since'][:19]}Z"
    out.line(
        out.with_glyph("warn" if changed_decisions else "ok", f"{len(changed_decisions)} {examined_text} would differ")
    )
    if changed_decisions:
        columns = [
            Column("DECISION", "decisionId"),
            Column("KIND", "kind"),
            Column("ABOUT", "subject"),
            Column("RECORDED", lambda row: _answer_text(row["before"])),
            Column("WOULD BE", lambda row: _answer_text(row["after"])),
        ]
        out.table(columns, changed_decisions, indent="  ")
    if document["cannot"]:
        out.line(f"  {document['cannot']} cannot be replayed: another engine version made them")
    if unreadable_count := document.get("unreadableIncidents"):  # older stacks do not count them
        out.line(f"  {count_of(unreadable_count, 'incident')} cannot be read, and were not examined")
    if document["isLowerBound"]:
        out.line("  only the newest incidents and jobs were examined")
    out.paragraph(document["asRecorded"], indent="  ")


def _answer_text(decision: Json) -> str:
    return f"{decision['action']} in {decision['mode']}" if decision.get("mode") else str(decision["action"])


def _print_findings(out: Printer, findings: list[Json]) -> None:
    marks = {"refused": "failed", "changed": "next", "warning": "warn", "note": "idle"}
    for finding in findings:
        head = out.with_glyph(
            marks[finding["weight"]], f"{finding['trap'] or 'field':<5} {finding['weight']:<7} {finding['field']}"
        )
        out.line(head)
        out.paragraph(finding["message"], indent="    ")
    counts = Counter(finding["weight"] for finding in findings)
    total = ", ".join(f"{count} {weight}" for weight, count in sorted(counts.items()))
    out.line(f"{len(findings)} findings: {total}" if findings else out.with_glyph("ok", "no findings"))


def _draw_policy(out: Printer, document: Json) -> None:
    change = document["change"]
    if document["policy"] is None:
        out.line(out.with_glyph("failed", "no policy is active, so Evenkeel decides nothing:"))
        out.paragraph(document["refused"], indent="  ")
    else:
        _draw_active_policy(out, document)
    if change:
        pairs = [
            ("changed", f"{out.time_text(change['at'])} by {change['by']}, change {change['number']}"),
            ("because", change["reason"]),
            ("changes", _changes_text(change)),
        ]
        out.pairs(pairs, indent="  ")
    if document["policy"] is None:
        out.next_command("evenkeel policy apply FILE --reason …")


def _draw_active_policy(out: Printer, document: Json) -> None:
    change = document["change"]
    out.line(
        f"{out.bold(document['policy']['name'])}  policy {document['hash']}, catalogue {document['catalogueHash']}"
    )
    if document.get("refused"):
        instead = f"change {document['inForce']} is" if document["inForce"] else "the policy as shipped is"
        latest = f"change {change['number']}" if change else "the last change"
        out.line(out.with_glyph("warn", f"{latest} is invalid, so {instead} active:"))
        out.paragraph(document["refused"], indent="  ")
    elif not change:
        out.line("  as shipped")


def _print_check(out: Printer, document: Json) -> None:
    out.line(
        out.with_glyph("ok", f"The file is valid: policy {document['hash']}, catalogue {document['catalogueHash']}")
    )
    if document["changes"]:
        out.line()
        columns = [Column("FIELD", "field"), Column("SHIPPED", "before"), Column("HERE", "after", may_shrink=True)]
        out.table(columns, document["changes"], indent="  ")
    if document["warnings"]:
        out.line()
    for warning in document["warnings"]:
        out.line(out.with_glyph("warn", warning["field"]))
        out.paragraph(f"{warning['message']}.", indent="    ")
