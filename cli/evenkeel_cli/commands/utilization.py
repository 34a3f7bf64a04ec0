"""`evenkeel utilization`."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import print_or_watch, write_csv
from evenkeel_cli.render import Column, OutputFormat, Printer, note, stdout_printer, warn
from evenkeel_cli.state_signs import NODE, count_of, plain

Json = dict[str, Any]

app = lookup.command_group("List the allocation and the measured utilization of pools and nodes.")

_MEASURES = ("gpu", "gpuMemory", "cpu", "memory")
_AMOUNTS = ("gpus", "gpusAllocated", "gpuMemoryGib", "vcpus", "vcpusAllocated", "memoryGib", "memoryGibAllocated")
_FIGURES = ("average", "lowest", "lowestNode", "highest", "measuredNodes", "unknownNodes")
_ENDS = ("measuredAt", "isStale", "lastSeenAt")


class UtilizationSubject(StrEnum):
    """Each row of the table shows one subject: a pool or a node."""

    POOL = "pool"
    NODE = "node"


_FIELDS = {
    UtilizationSubject.POOL: (
        *("pool", "cluster", "instanceTypes", "nodes", "running", "starting", "pendingRecovery", *_AMOUNTS),
        *(f"utilization.{measure}.{figure}" for measure in _MEASURES for figure in _FIGURES),
        *_ENDS,
    ),
    UtilizationSubject.NODE: (
        *("instanceId", "name", "pool", "cluster", "instanceType", "state", *_AMOUNTS),
        *(f"utilization.{measure}" for measure in _MEASURES),
        *_ENDS,
    ),
}


@app.command("ls")
def list_utilization(
    by: Annotated[
        UtilizationSubject, typer.Option(help="One row for each pool, or for each node.")
    ] = UtilizationSubject.POOL,
    cluster: Annotated[str, typer.Option(help="Only nodes of this Kubernetes cluster.")] = "",
    pool: Annotated[str, typer.Option(help="Only nodes of this instance group or NodePool.")] = "",
    watch: lookup.WatchOption = False,
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """List allocation and utilization over the last 15 minutes."""
    client = lookup.current_client()
    is_filtered = bool(cluster or pool)
    print_or_watch(
        lambda: client.get("/utilization", by=by.value, cluster=cluster, pool=pool),
        lambda document: _print_utilization(document, by, output, is_filtered=is_filtered, watch=watch),
        output,
        watch=watch,
    )


def _print_utilization(
    document: Json, by: UtilizationSubject, output: OutputFormat, *, is_filtered: bool, watch: bool
) -> None:
    printer = stdout_printer()
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            printer.document(document, output, is_part=watch)
        case OutputFormat.CSV:
            write_csv(printer, document["items"], _FIELDS[by])
        case OutputFormat.NAME:
            for item in document["items"]:
                printer.line(item[_FIELDS[by][0]])
        case _ if not document["items"]:
            note("No nodes match." if is_filtered else "No nodes are known yet. The first sweep adds them.")
        case form:
            _draw(printer, document, by, is_wide=form is OutputFormat.WIDE)
    for source in document["sources"]:
        if source["problem"]:
            warn(source["problem"])
    if document["isLowerBound"]:
        warn("The fleet has more nodes or open incidents than this list counts. The figures cover a part of the fleet.")


def _draw(out: Printer, document: Json, by: UtilizationSubject, *, is_wide: bool) -> None:
    totals, items = document["totals"], document["items"]
    if by is UtilizationSubject.NODE:
        out.table(_node_columns(out), items, is_wide=is_wide)
    else:
        every = [{"pool": "(all)", "cluster": "–", **totals}] if len(items) > 1 else []
        out.table(_pool_columns(out), [*items, *every], is_wide=is_wide)
    out.paragraph(
        f"GPU utilization over {document['windowMinutes']} min: {_extremes_text(totals['utilization']['gpu'])}."
    )
    if totals["measuredAt"]:
        out.line(f"Each reading is from {out.time_text(totals['measuredAt'])} or later.")
    if by is UtilizationSubject.POOL and any(total["unknownNodes"] for total in totals["utilization"].values()):
        out.line("–  unknown   *  average of the measured nodes only")


def _extremes_text(gpu: Json) -> str:
    """Return the least busy node, which an average hides, and the number of nodes without a figure."""
    texts = []
    if gpu["lowest"] is not None:
        texts += [f"lowest {gpu['lowest']:g}% on {gpu['lowestNode']}", f"highest {gpu['highest']:g}%"]
    if gpu["unknownNodes"]:
        texts.append(f"unknown for {count_of(gpu['unknownNodes'], 'node')}")
    return ", ".join(texts) or "no nodes have GPUs"


def _pool_columns(out: Printer) -> list[Column]:
    def utilization_column(measure: str) -> Column:
        def average_text(item: Json) -> str:
            figures = item["utilization"][measure]
            is_partial = figures["average"] is not None and figures["unknownNodes"]
            return _percent_text(figures["average"]) + ("*" if is_partial else "")

        return Column(_TITLES[measure], average_text, is_right=True)

    def measured_nodes_text(item: Json) -> str:
        gpu = item["utilization"]["gpu"]
        return f"{gpu['measuredNodes']}/{gpu['measuredNodes'] + gpu['unknownNodes']}"

    def extremes_text(item: Json) -> str:
        gpu = item["utilization"]["gpu"]
        return "–" if gpu["lowest"] is None else f"{gpu['lowest']:.0f}-{gpu['highest']:.0f}%"

    return [
        Column("POOL", "pool", may_shrink=True),
        Column("NODES", "nodes", is_right=True),
        Column("RUN", "running", is_right=True),
        Column("RECOVERY", "pendingRecovery", is_right=True),
        Column("GPUS", lambda item: _allocated_text(item, "gpus"), is_right=True),
        utilization_column("gpu"),
        Column("LOW-HIGH", extremes_text, is_right=True),
        *map(utilization_column, _MEASURES[1:]),
        Column("GPUS MEASURED ON", measured_nodes_text, is_right=True, is_wide=True),
        Column("STARTING", "starting", is_right=True, is_wide=True),
        *_wide_columns(out),
        Column("TYPES", lambda item: ", ".join(item["instanceTypes"]) or "–", is_wide=True),
        Column("CLUSTER", "cluster", is_wide=True),
    ]


def _node_columns(out: Printer) -> list[Column]:
    def utilization_column(measure: str) -> Column:
        return Column(_TITLES[measure], lambda item: _percent_text(item["utilization"][measure]), is_right=True)

    def state(item: Json) -> str:
        sign = "warn" if item.get("isStale") else NODE[item["state"]]
        return out.with_glyph(sign, plain(item["state"]) + out.last_seen_text(item))

    return [
        Column("NODE", "instanceId"),
        Column("POOL", "pool", may_shrink=True),
        Column("STATE", state),
        Column("GPUS", lambda item: _allocated_text(item, "gpus"), is_right=True),
        *map(utilization_column, _MEASURES),
        *_wide_columns(out),
        Column("TYPE", lambda item: item["instanceType"] or "–", is_wide=True),
        Column("NAME", lambda item: item["name"] or "–", is_wide=True),
        Column("CLUSTER", "cluster", is_wide=True),
    ]


def _wide_columns(out: Printer) -> list[Column]:
    return [
        Column("GPU MEM GIB", lambda item: _amount_text(item["gpuMemoryGib"]), is_right=True, is_wide=True),
        Column("VCPU", lambda item: _allocated_text(item, "vcpus"), is_right=True, is_wide=True),
        Column("MEM GIB", lambda item: _allocated_text(item, "memoryGib"), is_right=True, is_wide=True),
        Column("MEASURED", lambda item: out.time_text(item["measuredAt"]), is_right=True, is_wide=True),
    ]


_TITLES = {"gpu": "GPU", "gpuMemory": "GPU MEM", "cpu": "CPU", "memory": "MEM"}


def _allocated_text(item: Json, name: str) -> str:
    """Return the allocated part of an amount: `96/128`."""
    return f"{item[f'{name}Allocated']:g}/{_amount_text(item[name])}"


def _amount_text(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _percent_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}%"
