"""`evenkeel access`."""

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import confirm, print_object
from evenkeel_cli.render import OutputFormat, Printer, note, stdout_printer
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel_cli.access_entries import ClusterChanges, EksAccess, EntryChange

app = lookup.command_group("Create, update and remove the functions' EKS access entries.")

StackOption = Annotated[
    str, typer.Option("--stack", help="CloudFormation stack; default: the context's.", metavar="NAME")
]
ClustersOption = Annotated[
    list[str] | None, typer.Option("--cluster", help="Only this cluster; may be repeated.", metavar="NAME")
]


@app.command("apply")
def apply(
    stack: StackOption = "",
    clusters: ClustersOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes; change nothing.")] = False,
    yes: lookup.YesOption = False,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show the changes to each cluster's access entries, and apply them.

    It removes only entries and groups that an earlier run created. If one cluster fails, the others are still changed.
    """
    eks, names = _entries_and_clusters(stack, clusters)
    plans = [eks.plan(name) for name in names]
    if not dry_run:
        change_count = sum(len(changes.pending_entries) for changes in plans)
        if change_count and not yes:
            _print_changes(Printer(sys.stderr, os.environ), plans, is_done=False)
            confirm(f"make {change_count} changes")
        plans = [eks.apply(changes) if changes.pending_entries else changes for changes in plans]
    document = {"isDryRun": dry_run, "stack": eks.stack, "clusters": [changes.to_json() for changes in plans]}
    print_object(document, output, lambda out: _print_changes(out, plans, is_done=not dry_run))
    if any(changes.has_failed for changes in plans):
        raise typer.Exit(Exit.FAILED)


@app.command("print")
def print_commands(stack: StackOption = "", clusters: ClustersOption = None) -> None:
    """Print AWS CLI commands that create the entries. Another identity can run them."""
    eks, names = _entries_and_clusters(stack, clusters)
    for cluster in names:
        for line in eks.commands(cluster):
            stdout_printer().line(shlex.join(line))


def _entries_and_clusters(stack: str, chosen_clusters: list[str] | None) -> tuple["EksAccess", list[str]]:
    """Return the access entries of the stack's functions, and the names of the selected clusters.

    Raises:
        CommandFailed: the stack cannot be read, does not match this release, or has no such cluster.
    """
    from evenkeel_cli.access_entries import EksAccess, WantedEntry
    from evenkeel_cli.commands.doctor import stack_site
    from evenkeel_cli.doctor.findings import CouldNotCheck
    from evenkeel_cli.offline import access

    site, aws = stack_site(stack)
    try:
        site.read_stack()
        roles, names = site.roles(), site.clusters()
    except CouldNotCheck as error:
        raise CommandFailed(Exit.FAILED, str(error), code="NO_STACK", hint=error.fix) from error
    if differing_functions := sorted(set(roles) ^ set(access.functions_with_access())):
        text = f"The stack {site.stack} and this command have different releases: only one has {differing_functions[0]}"
        raise CommandFailed(
            Exit.FAILED,
            text,
            code="OTHER_RELEASE",
            hint="Install the release of the command that the stack has, then repeat it.",
        )
    if unknown_clusters := sorted(set(chosen_clusters or ()) - set(names)):
        text = f"The stack {site.stack} has no cluster {unknown_clusters[0]!r}."
        hint = f"KubernetesClusters: {', '.join(names) or 'none'}"
        raise CommandFailed(Exit.NOT_FOUND, text, code="NOT_FOUND", hint=hint)
    if not names:
        note(f"The stack {site.stack} has no Kubernetes clusters.")
    wanted_entries = tuple(WantedEntry(name, role, frozenset(access.groups_of(name))) for name, role in roles.items())
    return EksAccess(aws.client("eks"), site.stack, wanted_entries), [
        name for name in names if not chosen_clusters or name in chosen_clusters
    ]


def _print_changes(out: Printer, clusters: list["ClusterChanges"], *, is_done: bool) -> None:
    for changes in clusters:
        if changes.problem:
            out.line(out.with_glyph("failed", f"{changes.cluster}  failed: {changes.problem}"))
            continue
        current = len(changes.entries) - len(changes.pending_entries)
        pending_text = f"{len(changes.pending_entries)} {'changed' if is_done else 'to change'}"
        out.line(out.bold(f"{changes.cluster}  {pending_text}, {current} current"))
        for entry in changes.entries:
            if entry in changes.pending_entries or entry.problem:
                out.line(f"  {_change_text(out, entry, is_done=is_done)}")
    if is_done:
        out.next_command("evenkeel doctor")


def _change_text(out: Printer, entry: "EntryChange", *, is_done: bool) -> str:
    if entry.problem:
        return out.with_glyph("failed", f"{entry.function or entry.role}  {entry.action} failed: {entry.problem}")
    groups = [f"+{name}" for name in entry.added_groups] + [f"-{name}" for name in entry.removed_groups]
    status = "ok" if is_done else "next"
    return out.with_glyph(status, f"{entry.function or entry.role}  {entry.action}  {' '.join(groups)}")
