"""`evenkeel economics`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenkeel_cli.commands import economics_fleet, lookup
from evenkeel_cli.figure_output import FigureFormat, FigureOption, print_figures
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel_cli.offline.economics import FailureRate

Json = dict[str, Any]

app = lookup.command_group("Calculate what failures cost and what to change: rates, checkpoints, spares, commitments.")
app.command("forecast")(economics_fleet.forecast)
app.command("commitment")(economics_fleet.commitment)

FailuresOption = Annotated[int | None, typer.Option(metavar="N", help="Observed failures.")]
NodeHoursOption = Annotated[
    str | None, typer.Option(metavar="H", help="Observed nodes times the hours of observation.")
]
RateOption = Annotated[str | None, typer.Option(metavar="R", help="Failures per node-hour: 0.0005 or 0.05%.")]
ConfidenceOption = Annotated[str, typer.Option(metavar="P", help="Confidence of the interval.")]
NodesOption = Annotated[int, typer.Option(metavar="N", help="Nodes of the job.")]
_DURATION = "90s, 40min, 4.5h, 12d"


def _parse_rate(rate: str | None, failures: int | None, node_hours: str | None, confidence: str) -> "FailureRate":
    from evenkeel_cli.offline import economics as offline
    from evenkeel_cli.offline.quantities import parse_share

    return offline.rate_of(rate, failures, node_hours, parse_share("--confidence", confidence))


def _parse_seconds(option: str, typed_value: str) -> float:
    from evenkeel_cli.offline.quantities import parse_seconds

    return parse_seconds(option, typed_value)


def _parse_optional_seconds(option: str, typed_value: str | None) -> float | None:
    return None if typed_value is None else _parse_seconds(option, typed_value)


# ---------------------------------------------------------------- rates


@app.command("rate")
def rate(  # noqa: PLR0913, PLR0917 - options, each given by its name
    failures: FailuresOption = None,
    node_hours: NodeHoursOption = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Observations: failures and node-hours.")] = None,
    by: Annotated[str, typer.Option(metavar="GROUP", help="fault-class, pool, instance-type or job-size.")] = "pool",
    fleet: economics_fleet.FleetOption = False,
    days: economics_fleet.DaysOption = 30.0,
    confidence: ConfidenceOption = "0.95",
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Failure rate per node-hour, with its exact Poisson interval. Needs no fleet without --fleet."""
    from evenkeel_cli.offline import economics as offline
    from evenkeel_cli.offline import forecasts
    from evenkeel_cli.offline.quantities import parse_share

    if (fleet or file is not None) and (failures is not None or node_hours is not None):
        option = "--fleet" if fleet else "--file"
        raise CommandFailed(Exit.USAGE, f"{option} excludes --failures and --node-hours.", code="WRONG_FIGURE")
    if fleet and by == "job-size":
        report = economics_fleet.read_fleet_report(days)
        print_figures(forecasts.job_size_rates(report, parse_share("--confidence", confidence)), output, main="groups")
        return
    if fleet:
        history = economics_fleet.read_fleet_history(days)
        rates = forecasts.fleet_rates(history, by, parse_share("--confidence", confidence))
        print_figures(rates, output, main="groups")
        return
    if file is not None:
        print_figures(offline.rates_from_file(file, by, parse_share("--confidence", confidence)), output, main="groups")
        return
    print_figures(_parse_rate(None, failures, node_hours, confidence).to_json(), output)


@app.command("mtbf")
def mtbf(
    nodes: NodesOption,
    rate: RateOption = None,
    failures: FailuresOption = None,
    node_hours: NodeHoursOption = None,
    downtime: Annotated[
        str | None,
        typer.Option(metavar="D", help=f"Downtime of a failure ({_DURATION}), to show the job size that never ends."),
    ] = None,
    confidence: ConfidenceOption = "0.95",
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Mean time between failures of a job. Also shows the job size above which a job never ends. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    failure_rate = _parse_rate(rate, failures, node_hours, confidence)
    print_figures(
        offline.mtbf(failure_rate, nodes, _parse_optional_seconds("--downtime", downtime)), output, main="rates"
    )


# ---------------------------------------------------------------- times


@app.command("ettr")
def ettr(  # noqa: PLR0913, PLR0917 - options, each given by its name
    nodes: NodesOption,
    downtime: Annotated[str, typer.Option(metavar="D", help=f"Time from a failure until the job trains: {_DURATION}.")],
    instead_of: Annotated[
        str | None, typer.Option(metavar="D", help="A longer downtime, to show how much the shorter downtime saves.")
    ] = None,
    rate: RateOption = None,
    failures: FailuresOption = None,
    node_hours: NodeHoursOption = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="renewal, parallel, restart or serial; all if omitted."),
    ] = None,
    failure_free: Annotated[str | None, typer.Option(metavar="T", help="Duration of the run without failures.")] = None,
    gpu_hours: Annotated[
        str | None, typer.Option(metavar="H", help="GPU-hours of the run, instead of --failure-free.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs of a node.")] = 8,
    usd_per_gpu_hour: Annotated[
        str | None, typer.Option(metavar="USD", help="Price; without it, dollars are unknown.")
    ] = None,
    confidence: ConfidenceOption = "0.95",
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Effective training time ratio, and duration of a run. Compares four meanings of downtime. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline
    from evenkeel_cli.offline.quantities import parse_not_negative, parse_positive

    failure_rate = _parse_rate(rate, failures, node_hours, confidence)
    if gpu_hours is not None and failure_free is not None:
        raise CommandFailed(Exit.USAGE, "--gpu-hours and --failure-free exclude each other.", code="USAGE")
    run_hours = {
        "failureFreeHours": _parse_seconds("--failure-free", "30d" if failure_free is None else failure_free) / 3600
    }
    if gpu_hours is not None:
        run_hours["failureFreeHours"] = parse_positive("--gpu-hours", gpu_hours) / (max(1, nodes) * gpus_per_node)
    if usd_per_gpu_hour is not None:
        run_hours["usdPerHour"] = parse_not_negative("--usd-per-gpu-hour", usd_per_gpu_hour) * nodes * gpus_per_node
    if instead_of is not None:
        run_hours["insteadOfSeconds"] = _parse_seconds("--instead-of", instead_of)
    time = offline.effective_time(failure_rate, nodes, _parse_seconds("--downtime", downtime), run_hours, model or ())
    print_figures(time, output, main="runs" if instead_of is None else "")


@app.command("interval")
def interval(
    write: Annotated[str, typer.Option(metavar="W", help=f"Time that a save blocks training: {_DURATION}.")],
    restart: Annotated[str, typer.Option(metavar="R", help="Time from a failure until training resumes.")] = "0",
    mtbf: Annotated[str | None, typer.Option(metavar="M", help="Mean time between failures of the job.")] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes, with --rate instead of --mtbf.")] = None,
    rate: RateOption = None,
    present: Annotated[
        str | None, typer.Option("--interval", metavar="TAU", help="Current interval, for comparison.")
    ] = None,
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Best time between two checkpoints: exact, Young, Daly. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    if mtbf is not None and (nodes is not None or rate is not None):
        raise CommandFailed(Exit.USAGE, "--mtbf excludes --nodes and --rate.", code="WRONG_FIGURE")
    if mtbf is None and (nodes is None or rate is None):
        raise CommandFailed(
            Exit.USAGE, "The MTBF is unknown: give --mtbf, or --nodes with --rate.", code="WRONG_FIGURE"
        )
    if mtbf is not None:
        mtbf_seconds = _parse_seconds("--mtbf", mtbf)
    else:
        (row,) = offline.mtbf(_parse_rate(rate, None, None, "0.95"), nodes or 0, None)["rates"]
        if row["mtbfSeconds"] is None:
            raise CommandFailed(Exit.USAGE, "--rate is 0: without failures no interval is best.", code="WRONG_FIGURE")
        mtbf_seconds = row["mtbfSeconds"]
    now = _parse_optional_seconds("--interval", present)
    document = offline.interval(
        _parse_seconds("--write", write), _parse_seconds("--restart", restart), mtbf_seconds, now
    )
    print_figures(document, output)


@app.command("shrink")
def shrink(
    nodes: NodesOption,
    detect: Annotated[str, typer.Option(metavar="D", help=f"Time until the failure is detected: {_DURATION}.")],
    reconfigure: Annotated[str, typer.Option(metavar="D", help="Time until the job runs on one node fewer.")],
    lead: Annotated[str, typer.Option(metavar="L", help="Time until the replacement is Ready.")],
    rate: RateOption = None,
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Downtime if an elastic job continues with one node fewer. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    per_hour = (
        None
        if rate is None
        else offline.mtbf(_parse_rate(rate, None, None, "0.95"), nodes, None)["rates"][0]["jobFailuresPerHour"]
    )
    document = offline.shrink(
        _parse_seconds("--detect", detect),
        _parse_seconds("--reconfigure", reconfigure),
        _parse_seconds("--lead", lead),
        nodes,
        per_hour,
    )
    print_figures(document, output)


# ---------------------------------------------------------------- spares and copies


@app.command("spares")
def spares(  # noqa: PLR0913, PLR0917 - options, each given by its name
    nodes: NodesOption,
    lead: Annotated[str, typer.Option(metavar="L", help=f"Time from an order until the node is a spare: {_DURATION}.")],
    rate: RateOption = None,
    failures: FailuresOption = None,
    node_hours: NodeHoursOption = None,
    wait: Annotated[
        str | None, typer.Option(metavar="W", help="Time until a node arrives if there is no spare. Default: --lead.")
    ] = None,
    detect: Annotated[str, typer.Option(metavar="D", help="Time until the failure is detected.")] = "0",
    resume: Annotated[str, typer.Option(metavar="D", help="Time from the node's arrival until the job trains.")] = "0",
    run_cost_usd: Annotated[str | None, typer.Option(metavar="USD", help="Cost of the run without failures.")] = None,
    max_spares: Annotated[int | None, typer.Option(metavar="N", min=0, max=1000, help="Rows to show.")] = None,
    confidence: ConfidenceOption = "0.95",
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Number of spare nodes with the lowest cost. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline
    from evenkeel_cli.offline.quantities import parse_not_negative

    lead_seconds = _parse_seconds("--lead", lead)
    terms = {
        "nodes": nodes,
        "lead_seconds": lead_seconds,
        "wait_seconds": lead_seconds if wait is None else _parse_seconds("--wait", wait),
        "detect_seconds": _parse_seconds("--detect", detect),
        "resume_seconds": _parse_seconds("--resume", resume),
        "run_cost_usd": None if run_cost_usd is None else parse_not_negative("--run-cost-usd", run_cost_usd),
    }
    table = offline.spare_table(_parse_rate(rate, failures, node_hours, confidence), terms, max_spares)
    print_figures(table, output, main="spares")


@app.command("repair-shop")
def repair_shop(  # noqa: PLR0913, PLR0917 - options, each given by its name
    nodes: NodesOption,
    repair: Annotated[str, typer.Option(metavar="D", help=f"Mean time of one repair: {_DURATION}.")],
    rate: RateOption = None,
    failures: FailuresOption = None,
    node_hours: NodeHoursOption = None,
    repairers: Annotated[
        int | None, typer.Option(metavar="N", help="Repairs at the same time; no limit if omitted.")
    ] = None,
    max_spares: Annotated[int, typer.Option(metavar="N", min=0, max=1000, help="Rows to show.")] = 4,
    fails_while_stopped: Annotated[
        bool, typer.Option("--fails-while-stopped", help="Nodes also fail while the job lacks a node.")
    ] = False,
    confidence: ConfidenceOption = "0.95",
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Spares for machines with a limited number of repairers. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    terms = {
        "nodes": nodes,
        "repair_hours": _parse_seconds("--repair", repair) / 3600,
        "repairers": repairers,
        "fails_while_stopped": fails_while_stopped,
    }
    figures = offline.repair_shop(_parse_rate(rate, failures, node_hours, confidence), terms, max_spares)
    print_figures(figures, output, main="fleets")


@app.command("copies")
def copies(
    machines: Annotated[int, typer.Option(metavar="N", help="Machines with checkpoints in memory.")],
    group: Annotated[int, typer.Option(metavar="M", help="Machines that hold the same checkpoint.")],
    lost: Annotated[int, typer.Option(metavar="K", help="Number of machines lost at the same time.")],
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Probability that checkpoints in memory survive. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    print_figures(offline.copy_survival(machines, group, lost), output)


# ---------------------------------------------------------------- goodput and tables


@app.command("goodput")
def goodput(
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Times of a job, in seconds.")] = None,
    elapsed: Annotated[str | None, typer.Option(metavar="S", help="Seconds since the job started.")] = None,
    productive: Annotated[
        str | None, typer.Option(metavar="S", help="Seconds of training steps whose result was kept.")
    ] = None,
    bucket: Annotated[
        list[str] | None, typer.Option(metavar="NAME=S", help="Seconds in a bucket; may be repeated.")
    ] = None,
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Goodput, and where the other seconds went, by bucket. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    if file is not None:
        print_figures(offline.goodput_from_file(file), output)
        return
    if elapsed is None or productive is None:
        raise CommandFailed(Exit.USAGE, "Give --file, or --elapsed and --productive.", code="WRONG_FIGURE")
    print_figures(offline.goodput_from_options(elapsed, productive, bucket or ()), output)


@app.command("tables")
def tables(
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the simulation.")] = 1,
    simulated_failures: Annotated[
        int, typer.Option(metavar="N", min=100, max=10_000_000, help="Simulated failures for each cell.")
    ] = 20_000,
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Tables 1 to 6 of the AWS article on training costs. Shows them as printed, and corrected. Needs no fleet."""
    from evenkeel_cli.offline import economics as offline

    print_figures(offline.tables(seed, simulated_failures), output, main="cells")
