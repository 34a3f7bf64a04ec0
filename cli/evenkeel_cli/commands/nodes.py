"""`evenkeel nodes`."""

import sys
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import answer, answer_list
from evenkeel_cli.render import Column, OutputFormat, Printer, note
from evenkeel_cli.state_labels import NODE, plain
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

app = lookup.group("List, show, cordon, uncordon and replace nodes.")

ReasonOption = Annotated[str, typer.Option(help="Reason; recorded.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Instance id, node name, or a unique prefix.")]


@app.command("ls")
def list_nodes(
    lemons: Annotated[
        bool, typer.Option("--lemons", help="Only lemons: nodes that returned to service too often recently.")
    ] = False,
    limit: lookup.LimitOption = 1000,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List nodes by pool."""
    found, token = lookup.listed(lookup.current_client(), "/nodes", limit)
    nodes = [node for node in found if node["state"] != "GONE" and (node["isLemon"] or not lemons)]
    nodes.sort(key=lambda node: (node["pool"], node["slot"]))
    nothing = "No node is a lemon." if lemons else "No nodes are known yet. The first sweep adds them."
    answer_list(nodes, output, name_key="instanceId", nothing=nothing, table=_table, page_token=token, ends_after=limit)


@app.command("show")
def show_node(node: NodeArgument, output: lookup.OutputOption = OutputFormat.TABLE) -> None:
    """Show one node."""
    client = lookup.current_client()
    found = client.get(f"/nodes/{lookup.find_node(client, node)}")
    answer(found, output, lambda out: _show(out, found), has_wide=True)


@app.command("cordon")
def cordon(
    node: NodeArgument,
    reason: ReasonOption = "",
    key: lookup.KeyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Cordon a node. No recovery removes this cordon."""
    _cordon_or_uncordon(node, "cordon", reason, key, output)


@app.command("uncordon")
def uncordon(
    node: NodeArgument,
    reason: ReasonOption = "",
    key: lookup.KeyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove a cordon that Evenkeel or one of its users set; holds do not prevent it. The node's recovery ends."""
    _cordon_or_uncordon(node, "uncordon", reason, key, output)


@app.command("replace")
def replace(
    node: NodeArgument,
    reason: Annotated[str, typer.Option(help="Reason; recorded.")],
    code: Annotated[str, typer.Option(help="Fault code, if known; list them with `evenkeel faults ls`.")] = "",
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Show and record the plan; change nothing.")] = False,
    is_sure: YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Replace a node. Its jobs are moved first, and every guardrail applies."""
    client = lookup.current_client()
    node_id = lookup.find_node(client, node)
    body = {"reason": reason, **({"code": code} if code else {})}
    if is_dry_run:
        planned = client.post(f"/nodes/{node_id}/replace", {**body, "dryRun": True}, key=key)
        answer(planned, output, lambda out: _print_plan(out, planned))
        return
    if not is_sure:
        _confirm(client.ask(f"/nodes/{node_id}/replace", {**body, "dryRun": True}))
    found = client.post(f"/nodes/{node_id}/replace", body, key=key)

    def draw(out: Printer) -> None:
        out.line(out.with_glyph("ok", f"{node_id}  replacement requested"))
        out.line(f"{out.dim('next')}  evenkeel nodes show {node_id}")

    answer(found, output, draw)


def _print_plan(out: Printer, planned: Json) -> None:
    out.line(f"{out.with_glyph('next', planned['instanceId'])}  {plain(planned['outcome'])}, in a dry run")
    jobs = ", ".join(planned["jobs"])
    refused = "; ".join(f"{each['option']}: {each['whyNot']}" for each in planned["alternatives"])
    out.pairs([("why", planned["reason"]), ("jobs", jobs), ("not", refused)], indent="  ")
    if planned["decisionId"]:
        out.line(f"{out.dim('next')}  evenkeel why {planned['decisionId']}")


def _confirm(planned: Json) -> None:
    """Print what will happen, and ask for confirmation."""
    if not sys.stdin.isatty():
        raise CommandFailed(
            Exit.USAGE, "Standard input is not a terminal: add --yes to replace without confirmation.", code="USAGE"
        )
    note(f"{planned['instanceId']}: {planned['reason']} ({planned['decisionId']})")
    note(f"Jobs that will be stopped and moved: {', '.join(planned['jobs']) or 'those that run there at that time'}.")
    note("Evenkeel checks every guardrail before it acts.")
    typer.confirm("Replace?", abort=True, err=True)


def _cordon_or_uncordon(typed: str, verb: str, reason: str, key: str | None, output: OutputFormat) -> None:
    client = lookup.current_client()
    node_id = lookup.find_node(client, typed)
    found = client.post(f"/nodes/{node_id}/{verb}", {"reason": reason} if reason else {}, key=key)

    def draw(out: Printer) -> None:
        out.line(out.with_glyph("ok", f"{found['instanceId']}  {plain(found['outcome'])}"))
        is_cordoned = found["outcome"] == "CORDONED"
        verb, ends = ("uncordon", " removes it") if is_cordoned else ("show", "")
        out.line(f"{out.dim('next')}  evenkeel nodes {verb} {found['instanceId']}{ends}")

    answer(found, output, draw)


def _show(out: Printer, found: Json) -> None:
    state = found["state"]
    out.line(f"{out.with_glyph(_sign(found), out.bold(found['instanceId']))}  {plain(state)}{out.last_seen(found)}")
    out.line()
    out.pairs(
        [
            ("incident", found["incidentId"] or ""),
            ("unhealthy", found["unhealthy"]["reason"] if found["unhealthy"] else ""),
            ("marks", ", ".join(found["marks"])),
            ("waits", f"{found['block']['rule']}: {found['block']['reason']}" if found["block"] else ""),
            ("cordoned", cordoned(out, found)),
            ("name", found["name"] or "has not joined its cluster"),
            ("cluster", found["cluster"]),
            ("pool", f"{found['pool']}, {found['instanceType']}, {found['zone'] or 'zone unknown'}"),
            ("node slot", found["slot"]),
            ("GPUs", f"{found['gpusInUse']} of {found['gpus']} in use"),
            ("unmanaged work", ", ".join(found["unmanagedWorkloads"])),
            ("lemon", "returned to service too often: its next fault replaces it" if found["isLemon"] else ""),
            ("HyperPod says", found["providerStatus"] or ""),
            ("launched", out.when(found["launchedAt"])),
            ("not ready", f"since {out.when(found['notReadySince'])}" if found["notReadySince"] else ""),
            ("changed", out.when(found["changedAt"])),
        ],
        indent="  ",
    )
    if found["incidentId"]:
        out.line()
        out.line(f"{out.dim('next')}  evenkeel why {found['incidentId']}")


def _sign(node: Json) -> str:
    return "warn" if node.get("isStale") else NODE[node["state"]]


def cordoned(out: Printer, node: Json) -> str:
    """Return who cordoned a node, why and when; empty if no person cordoned it through Evenkeel."""
    cordon = node.get("cordon")
    if not cordon:
        return ""
    why = f": {cordon['reason']}" if cordon["reason"] else ", without a reason"
    return f"{out.when(cordon['at'])} by {cordon['by']}{why}"


def _table(out: Printer, nodes: list[Json], is_wide: bool) -> None:
    columns = [
        Column("NODE"),
        Column("POOL", gives_way=True),
        Column("STATE"),
        Column("GPUS", is_right=True),
        Column(out.age_title("LAUNCHED"), is_right=True),
    ]
    if is_wide:
        columns += [Column("TYPE"), Column("ZONE"), Column("NAME"), Column("SLOT"), Column("HYPERPOD")]
        columns.append(Column("UNMANAGED WORK"))
    columns.append(Column("INCIDENT"))
    has_cordons = any(node.get("cordon") for node in nodes)
    if has_cordons:
        columns.append(Column("CORDONED BY", gives_way=True))
    rows = []
    for node in nodes:
        row = [
            node["instanceId"],
            node["pool"],
            out.with_glyph(_sign(node), plain(node["state"]) + out.last_seen(node)),
            f"{node['gpusInUse']}/{node['gpus']}",
            out.when(node["launchedAt"], ago=False),
        ]
        if is_wide:
            place = [node["zone"] or "–", node["name"] or "–", node["slot"], node["providerStatus"] or "–"]
            row += [node["instanceType"], *place, ", ".join(node["unmanagedWorkloads"]) or "–"]
        # Show the blocking rule next to the node.
        rule = f" ({plain(node['block']['rule'])})" if node["block"] else ""
        cordon = node.get("cordon")
        whose = f"{cordon['by']}{': ' + cordon['reason'] if cordon['reason'] else ''}" if cordon else "–"
        rows.append([*row, f"{node['incidentId'] or '–'}{rule}", *([whose] if has_cordons else [])])
    out.table(columns, rows, is_whole=is_wide)
