"""`evenkeel economics forecast` and `commitment`, and the history of the fleet for them."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.figure_output import FigureFormat, FigureOption, print_figures
from evenkeel_cli.render import note, stdout_printer
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from evenkeel_cli.offline.fleet_history import History

Json = dict[str, Any]

_MAX_READ = 20_000
_SINCE = "30d"
_MAX_MEASURED = 40
FleetOption = Annotated[bool, typer.Option("--fleet", help="Count failures and node-hours of the fleet itself.")]
DaysOption = Annotated[float, typer.Option(metavar="N", help="Length of the window; at most 30.")]


def read_fleet_history(days: float) -> "History":
    """Return failures and node-hours from the API.

    Raises:
        CommandFailed: the window is not possible.
    """
    from evenkeel_cli.offline import fleet_history

    _check_days(days)
    client = lookup.current_client()
    nodes, more_nodes = lookup.list_items_and_token(client, "/nodes", _MAX_READ, gone="true")
    incidents, more_incidents = lookup.list_items_and_token(client, "/incidents", _MAX_READ)
    history = fleet_history.read_history(nodes, incidents, stdout_printer().now(), days)
    if more_nodes or more_incidents:
        text = (
            f"The fleet has more than {_MAX_READ} nodes or incidents. The rest is not counted: the rates are not exact."
        )
        history.notes.append(text)
        note(text)
    return history


def read_fleet_report(days: float) -> Json:
    """Return the cost report of the last days.

    Raises:
        CommandFailed: the window is not possible.
    """
    _check_days(days)
    since = stdout_printer().now() - timedelta(days=days)
    return lookup.read_cost_report(f"{since:%Y-%m-%dT%H:%M:%SZ}", None)


def _check_days(days: float) -> None:
    from evenkeel_cli.offline import fleet_history

    if not 0 < days <= fleet_history.MAX_DAYS:
        text = f"--days must be above 0 and at most {fleet_history.MAX_DAYS}, not {days:g}."
        raise CommandFailed(Exit.USAGE, text, code="WRONG_FIGURE")


def with_measured_downtime(request: Json) -> tuple[Json, list[str]]:
    """Return the request with the measured downtime, unless it states how Evenkeel recovers."""
    from evenkeel_cli.offline import fleet_history

    if "configured" in request:
        return request, []
    client = lookup.current_client()
    settled_incidents = [
        item for item in lookup.list_items(client, "/incidents", 200) if item["affectedJobs"] and not item["isDrill"]
    ]
    downtime = fleet_history.measured_downtime(
        client.get(f"/incidents/{document['incidentId']}") for document in settled_incidents[:_MAX_MEASURED]
    )
    if downtime is None:
        return request, ["Too few recoveries are measured, so evenkeel-configured uses HyperPod's stages."]
    seconds, cases = downtime
    text = f"evenkeel-configured: {seconds:g} s from the signal until jobs ran, the median of {cases} recoveries."
    return {**request, "configured": {"replaceSeconds": 0, "resumeSeconds": seconds}}, [text]


def forecast(
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="The fleet: groups, failures, prices.")] = None,
    fleet: FleetOption = False,
    days: DaysOption = 30.0,
    usd_per_gpu_hour: Annotated[
        str | None, typer.Option(metavar="USD", help="Price for groups that state none; otherwise unknown.")
    ] = None,
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Forecast the monthly cost of failures of your fleet. Shows what each change is worth."""
    from evenkeel_cli.offline import fleet_history, forecasts

    if file is None and not fleet:
        raise CommandFailed(Exit.USAGE, "The fleet is unknown: give --file, --fleet, or both.", code="WRONG_FIGURE")
    request, notes = forecasts.read_request(file) if file else {}, list[str]()
    report: Json = {}
    if fleet:
        history = read_fleet_history(days)
        request, notes = with_measured_downtime(fleet_history.with_fleet_counts(request, history))
        notes = [*history.notes, *notes]
        if request.get("groups") == []:
            raise CommandFailed(
                Exit.NOT_FOUND, "The fleet has no nodes with GPUs, so there is nothing to forecast.", code="NOT_FOUND"
            )
        report = read_fleet_report(days)
    if usd_per_gpu_hour is not None:
        request = forecasts.with_price(request, usd_per_gpu_hour)
    document = forecasts.forecast(request, str(file or "fleet"), notes)
    print_figures(forecasts.with_job_sizes(document, report) if report else document, output, main="totals")


def commitment(  # noqa: PLR0913, PLR0917 - options, each given by its name
    demand: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hourly demand: CSV, JSON or YAML. Needs no fleet.")
    ] = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="Use the demand and prices that the fleet recorded.")] = False,
    since: Annotated[str, typer.Option(metavar="WHEN", help="With --fleet: begin of the window.")] = _SINCE,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="With --fleet: end of the window; if omitted, now.")
    ] = None,
    instance_type: Annotated[str, typer.Option(metavar="TYPE", help="Required if the fleet has several.")] = "",
    waiting: Annotated[
        bool, typer.Option("--waiting", help="With --fleet: also count the nodes that jobs waited for.")
    ] = False,
    reserved_usd_per_hour: Annotated[
        str | None, typer.Option(metavar="USD", help="Price of a committed unit per hour.")
    ] = None,
    on_demand_usd_per_hour: Annotated[
        str | None, typer.Option(metavar="USD", help="Price of a rented unit per hour.")
    ] = None,
    committed: Annotated[int | None, typer.Option(metavar="N", help="Units that are committed now.")] = None,
    gpus_per_node: Annotated[
        int, typer.Option(metavar="N", help="If the demand is in GPUs and a unit is a node: GPUs of a node.")
    ] = 1,
    reserved_availability: Annotated[
        str, typer.Option(metavar="P", help="Share of time in which a committed unit works.")
    ] = "1",
    on_demand_availability: Annotated[
        str, typer.Option(metavar="P", help="Share of paid time in which a rented unit works.")
    ] = "1",
    output: FigureOption = FigureFormat.TABLE,
) -> None:
    """Advise how many GPUs or nodes to commit. Shows use, saving and idle cost of each further unit."""
    from evenkeel_cli.offline import forecasts
    from evenkeel_cli.offline.quantities import parse_number, parse_share

    if (demand is None) == (not fleet):
        raise CommandFailed(Exit.USAGE, "Give either --demand or --fleet.", code="WRONG_FIGURE")
    if fleet and gpus_per_node != 1:
        raise CommandFailed(Exit.USAGE, "--fleet excludes --gpus-per-node.", code="WRONG_FIGURE")
    only_fleet = {
        "--since": since != _SINCE,
        "--until": until is not None,
        "--instance-type": instance_type,
        "--waiting": waiting,
    }
    if demand is not None and (fleet_options := " and ".join(name for name, value in only_fleet.items() if value)):
        raise CommandFailed(Exit.USAGE, f"--demand excludes {fleet_options}: only --fleet has it.", code="WRONG_FIGURE")
    prices = {
        "reserved_usd_per_hour": reserved_usd_per_hour,
        "on_demand_usd_per_hour": on_demand_usd_per_hour,
    }
    terms = {
        name: parse_number(f"--{name.replace('_', '-')}", typed_value)
        for name, typed_value in prices.items()
        if typed_value is not None
    } | {
        "reserved_availability": parse_share("--reserved-availability", reserved_availability),
        "on_demand_availability": parse_share("--on-demand-availability", on_demand_availability),
    }
    if demand is not None:
        response = forecasts.advise_commitment(forecasts.read_demand(demand), terms, committed, gpus_per_node)
    else:
        recorded_demand = forecasts.read_recorded_demand(
            lookup.read_cost_report(since, until), instance_type, with_waiting=waiting
        )
        response = forecasts.advise_from_records(recorded_demand, terms, committed)
    print_figures(response, output, main="units")
