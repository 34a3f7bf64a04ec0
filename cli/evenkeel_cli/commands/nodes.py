"""`evenkeel nodes`."""

from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.change_plans import show_plan_or_confirm
from evenkeel_cli.commands.output import confirm, print_change, print_list, print_object, print_or_watch, print_read
from evenkeel_cli.render import Column, OutputFormat, Printer
from evenkeel_cli.state_signs import NODE, plain

Json = dict[str, Any]

_FIELDS = (
    *("instanceId", "name", "cluster", "pool", "instanceType", "zone", "slot", "state", "incidentId", "marks"),
    *("repairedBy", "unhealthy.reason", "block.guardrail", "block.reason", "providerStatus", "isReady", "isCordoned"),
    *("cordon.by", "cordon.reason", "cordon.at", "isLemon", "isAwaitingValidation", "gpus", "gpusInUse"),
    *("cpu", "cpuInUse", "memoryGib", "memoryGibInUse", "unmanagedWorkloads", "launchedAt", "notReadySince"),
    *("changedAt", "isStale", "lastSeenAt"),
)

app = lookup.command_group("List, show, cordon, uncordon and replace nodes.")

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Instance id, node name, or a unique prefix.")]


@app.command("ls")
def list_nodes(
    lemons: Annotated[
        bool, typer.Option("--lemons", help="Only lemons: nodes that returned to service too often recently.")
    ] = False,
    sort: lookup.SortOption = None,
    limit: lookup.LimitOption = 1000,
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List nodes by pool. `--sort state` lists problems first.

    `--sort` takes state, instanceId, pool, instanceType, gpusInUse, launchedAt or changedAt.
    """
    client = lookup.current_client()
    empty_text = "No node is a lemon." if lemons else "No nodes are known yet. The first sweep adds them."

    def draw(page: tuple[list[Json], str | None]) -> None:
        items, token = page
        nodes = [node for node in items if node["state"] != "GONE" and (node["isLemon"] or not lemons)]
        if not sort:
            nodes.sort(key=lambda node: (node["pool"], node["slot"]))
        has_cordons = any(node.get("cordon") for node in nodes)
        print_list(
            nodes,
            output,
            lambda out: _columns(out, has_cordons=has_cordons),
            fields=_FIELDS,
            empty_text=empty_text,
            page_token=token,
            ends_after=limit,
            watch=watch,
        )

    print_or_watch(lambda: lookup.list_items_and_token(client, "/nodes", limit, sort=sort), draw, output, watch=watch)


@app.command("show")
def show_node(
    node: NodeArgument, watch: lookup.WatchOption = False, output: lookup.OutputOption = OutputFormat.TABLE
) -> None:
    """Show one node."""
    client = lookup.current_client()
    node_id = lookup.find_node(client, node)
    print_read(lambda: client.get(f"/nodes/{node_id}"), output, _draw_node, watch=watch)


@app.command("cordon")
def cordon(
    node: NodeArgument,
    reason: lookup.ReasonOption = "",
    is_dry_run: lookup.DryRunOption = False,
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show what a cordon does, ask, and cordon the node. No recovery removes this cordon."""
    _cordon_or_uncordon(node, "cordon", reason, key, output, is_dry_run=is_dry_run, is_sure=is_sure)


@app.command("uncordon")
def uncordon(
    node: NodeArgument,
    reason: lookup.ReasonOption = "",
    is_dry_run: lookup.DryRunOption = False,
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show whose cordon it is, ask, and remove it, even during a hold. The node's recovery ends.

    Evenkeel or one of its users must have set the cordon.
    """
    _cordon_or_uncordon(node, "uncordon", reason, key, output, is_dry_run=is_dry_run, is_sure=is_sure)


@app.command("replace")
def replace(
    node: NodeArgument,
    reason: Annotated[str, typer.Option(help="Reason; recorded.")],
    code: Annotated[str, typer.Option(help="Fault code, if known; list them with `evenkeel faults ls`.")] = "",
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Show and record the plan; change nothing.")] = False,
    is_sure: lookup.YesOption = False,
    key: lookup.KeyOption = None,
    output: lookup.ResultOption = OutputFormat.TABLE,
) -> None:
    """Show the plan, ask, and replace a node. Its jobs are moved first, and every guardrail applies."""
    client = lookup.current_client()
    node_id = lookup.find_node(client, node)
    body = {"reason": reason, **({"code": code} if code else {})}
    if is_dry_run:
        replacement_plan = client.post(f"/nodes/{node_id}/replace", {**body, "dryRun": True}, key=key)
        print_object(replacement_plan, output, lambda out: _print_plan(out, replacement_plan))
        return
    if not is_sure:
        plan = client.post_read_only(f"/nodes/{node_id}/replace", {**body, "dryRun": True})
        confirm(
            "replace",
            f"{plan['instanceId']}: {plan['reason']} ({plan['decisionId']})",
            f"Jobs that will be stopped and moved: {', '.join(plan['jobs']) or 'the jobs on the node at that time'}.",
            "Evenkeel checks every guardrail before it acts.",
        )
    response = client.post(f"/nodes/{node_id}/replace", body, key=key)
    print_change(response, output, f"{node_id}  replacement requested", then=f"nodes show {node_id}")


def _print_plan(out: Printer, replacement_plan: Json) -> None:
    out.line(
        f"{out.with_glyph('next', replacement_plan['instanceId'])}  {plain(replacement_plan['outcome'])}, in a dry run"
    )
    jobs = ", ".join(replacement_plan["jobs"])
    refusals_text = "; ".join(
        f"{alternative['option']}: {alternative['whyNot']}" for alternative in replacement_plan["alternatives"]
    )
    out.pairs([("why", replacement_plan["reason"]), ("jobs", jobs), ("not", refusals_text)], indent="  ")
    if replacement_plan["decisionId"]:
        out.next_command(f"evenkeel why {replacement_plan['decisionId']}")


def _cordon_or_uncordon(
    typed_value: str, verb: str, reason: str, key: str | None, output: OutputFormat, *, is_dry_run: bool, is_sure: bool
) -> None:
    client = lookup.current_client()
    path = f"/nodes/{lookup.find_node(client, typed_value)}/{verb}"
    if show_plan_or_confirm(
        lambda: client.post_read_only(path, {"dryRun": True}),
        title=lambda plan: f"{plan['instanceId']}  {verb}",
        texts=lambda plan: plan["effects"],
        verb=f"{verb} the node",
        output=output,
        is_dry_run=is_dry_run,
        is_sure=is_sure,
    ):
        return
    response = client.post(path, {"reason": reason} if reason else {}, key=key)
    is_cordoned = response["outcome"] == "CORDONED"
    next_command = f"nodes {'uncordon' if is_cordoned else 'show'} {response['instanceId']}"
    print_change(response, output, f"{response['instanceId']}  {plain(response['outcome'])}", then=next_command)


def _draw_node(out: Printer, node: Json) -> None:
    state = node["state"]
    out.line(
        f"{out.with_glyph(_status_sign(node), out.bold(node['instanceId']))}  {plain(state)}{out.last_seen_text(node)}"
    )
    out.line()
    out.pairs(
        [
            ("incident", node["incidentId"] or ""),
            ("unhealthy", node["unhealthy"]["reason"] if node["unhealthy"] else ""),
            ("marks", ", ".join(node["marks"])),
            ("waits", f"{node['block']['guardrail']}: {node['block']['reason']}" if node["block"] else ""),
            ("repaired by", node.get("repairedBy") or ""),
            ("cordoned", cordon_text(out, node)),
            ("name", node["name"] or "has not joined its cluster"),
            ("cluster", node["cluster"]),
            ("pool", f"{node['pool']}, {node['instanceType']}, {node['zone'] or 'zone unknown'}"),
            ("node slot", node["slot"]),
            ("GPUs", f"{node['gpusInUse']} of {node['gpus']} in use"),
            ("CPU", requested_text(node, "cpu", "vCPU")),
            ("memory", requested_text(node, "memoryGib", "GiB")),
            ("unmanaged work", ", ".join(node["unmanagedWorkloads"])),
            ("lemon", "returned to service too often: its next fault replaces it" if node["isLemon"] else ""),
            ("HyperPod says", node["providerStatus"] or ""),
            ("launched", out.time_text(node["launchedAt"])),
            ("not ready", f"since {out.time_text(node['notReadySince'])}" if node["notReadySince"] else ""),
            ("changed", out.time_text(node["changedAt"])),
        ],
        indent="  ",
    )
    if node["incidentId"]:
        out.line()
        out.next_command(f"evenkeel why {node['incidentId']}")


def _status_sign(node: Json) -> str:
    return "warn" if node.get("isStale") else NODE[node["state"]]


def requested_text(node: Json, name: str, unit: str) -> str:
    """Return the requested part of a node's amount as text; `unknown` if the node does not state the amount."""
    return "unknown" if node.get(name) is None else f"{node[f'{name}InUse']:g} of {node[name]:g} {unit} requested"


def cordon_text(out: Printer, node: Json) -> str:
    """Return as text who cordoned a node, why and when; empty if no person cordoned it through Evenkeel."""
    cordon = node.get("cordon")
    if not cordon:
        return ""
    why = f": {cordon['reason']}" if cordon["reason"] else ", without a reason"
    return f"{out.time_text(cordon['at'])} by {cordon['by']}{why}"


def _share_text(node: Json, name: str) -> str:
    return "–" if node.get(name) is None else f"{node[f'{name}InUse']:g}/{node[name]:g}"


def _columns(out: Printer, *, has_cordons: bool) -> list[Column]:
    def incident(node: Json) -> str:
        # The blocking guardrail is shown next to the incident.
        return (node["incidentId"] or "–") + (f" ({plain(node['block']['guardrail'])})" if node["block"] else "")

    def cordoned_by(node: Json) -> str:
        cordon = node.get("cordon")
        return f"{cordon['by']}{': ' + cordon['reason'] if cordon['reason'] else ''}" if cordon else "–"

    return [
        Column("NODE", "instanceId"),
        Column("POOL", "pool", may_shrink=True),
        Column(
            "STATE", lambda node: out.with_glyph(_status_sign(node), plain(node["state"]) + out.last_seen_text(node))
        ),
        Column("GPUS", lambda node: f"{node['gpusInUse']}/{node['gpus']}", is_right=True),
        Column(out.age_title("LAUNCHED"), lambda node: out.time_text(node["launchedAt"], ago=False), is_right=True),
        Column("VCPU", lambda node: _share_text(node, "cpu"), is_right=True, is_wide=True),
        Column("MEMORY GIB", lambda node: _share_text(node, "memoryGib"), is_right=True, is_wide=True),
        Column("TYPE", "instanceType", is_wide=True),
        Column("ZONE", lambda node: node["zone"] or "–", is_wide=True),
        Column("NAME", lambda node: node["name"] or "–", is_wide=True),
        Column("SLOT", "slot", is_wide=True),
        Column("HYPERPOD", lambda node: node["providerStatus"] or "–", is_wide=True),
        Column("UNMANAGED WORK", lambda node: ", ".join(node["unmanagedWorkloads"]) or "–", is_wide=True),
        Column("INCIDENT", incident),
        *([Column("CORDONED BY", cordoned_by, goes_below=True)] if has_cordons else []),
    ]
