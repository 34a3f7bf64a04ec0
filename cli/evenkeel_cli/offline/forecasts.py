"""`evenkeel economics forecast` and `commitment`: documents read, checked and calculated."""

import csv
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from evenkeel.domain.economics import commitment
from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.fleet_forecast import forecast_fleet
from evenkeel.domain.economics.fleet_request import FleetRequest
from evenkeel_cli import yaml_files
from evenkeel_cli.offline import fleet_history
from evenkeel_cli.offline.economics import name_options, rates_of_document
from evenkeel_cli.offline.quantities import parse_not_negative, parse_number, usage_error
from evenkeel_cli.report_page import NO_COMMITMENTS, endless_text
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]
_UNITS = ("units", "demand", "gpus", "nodes", "maximum", "average")
_INSTANTS = ("at", "hour", "time", "timestamp", "date")
_LONGEST_INDEX = 6
"""Maximum number of digits of an hour number; a longer number is a date."""


# ---------------------------------------------------------------- forecast


def read_request(file: Path) -> Json:
    """Read the fleet's file.

    Raises:
        CommandFailed: the file is not one object.
    """
    documents = yaml_files.load_all(file)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise usage_error(str(file), "must have one document, an object")
    return dict(documents[0])


def forecast(request: Mapping[str, Any], document_name: str, notes: Iterable[str] = ()) -> Json:
    """Return the cost of the fleet's failures.

    Args:
        request: The document.
        document_name: Name of the document in messages.
        notes: Further assumptions.

    Raises:
        CommandFailed: a field is wrong; names it.
    """
    try:
        document = forecast_fleet(FleetRequest.read(dict(request))).to_json()
    except WrongFigure as error:
        raise usage_error(f"{document_name}: {error.field}", error.problem) from error
    document["assumptions"] += notes
    return document


def with_price(request: Json, usd_per_gpu_hour: str) -> Json:
    """Return the request with a price for the groups that state none."""
    usd = parse_not_negative("--usd-per-gpu-hour", usd_per_gpu_hour)
    groups = request.get("groups")
    if not isinstance(groups, list):
        return request  # reading it names the field
    return {
        **request,
        "groups": [{"usdPerGpuHour": usd} | group if isinstance(group, dict) else group for group in groups],
    }


def fleet_rates(history: fleet_history.History, by: str, confidence: float) -> Json:
    """Return the rates of a fleet by fault class, pool or instance type."""
    return rates_of_document(history.observations, by, confidence) | {"notes": history.notes}


NO_JOB_SIZES = "Failures by job size are unknown: the stack is older than this command and does not record job sizes."
JOB_SIZE_NOTE = (
    "An interruption by infrastructure is one failure of its job, and node-hours are the time in which all pods ran. "
    "Failures of the application do not count."
)


def job_size_rates(report: Json, confidence: float) -> Json:
    """Return the rates by job size from the cost report.

    Raises:
        CommandFailed: no job ran in the window, or the stack is too old to report job sizes.
    """
    sizes = _known_job_sizes(report)
    if not any(size["nodeHours"] for size in sizes):
        raise CommandFailed(
            Exit.NOT_FOUND, "No job ran in this window, so rates by job size are unknown.", code="NOT_FOUND"
        )
    rows = [(size["smallestNodes"] or 0, size) for size in sizes if size["group"] != "all"]
    observations = {
        "failures": [{"jobNodes": nodes, "failures": size["failures"]} for nodes, size in rows],
        "nodeHours": [{"jobNodes": nodes, "nodeHours": size["nodeHours"]} for nodes, size in rows],
    }
    return rates_of_document(observations, "job-size", confidence) | {
        "notes": [f"Observed from {report['since'][:16]}Z to {report['until'][:16]}Z. {JOB_SIZE_NOTE}"]
    }


def with_job_sizes(document: Json, report: Json) -> Json:
    """Add the observed failures by job size to a forecast, and the size at which a job never ends."""
    if "jobSizes" not in report:
        return {**document, "assumptions": [*document["assumptions"], NO_JOB_SIZES]}
    texts = [JOB_SIZE_NOTE, f"A job {endless_text(report['endlessSize'])}."]
    return {
        **document,
        "jobSizes": [_job_size_figures(size) for size in report["jobSizes"]],
        "assumptions": [*document["assumptions"], *texts],
    }


def _known_job_sizes(report: Json) -> list[Json]:
    if "jobSizes" not in report:
        raise CommandFailed(Exit.NOT_FOUND, NO_JOB_SIZES, code="OLDER_STACK", hint="Update the stack: make deploy")
    sizes: list[Json] = report["jobSizes"]
    return sizes


def _job_size_figures(size: Json) -> Json:
    """Return the figures of a size class, without nested objects."""
    rate = size["rate"] or {}
    fields = (
        "group",
        "failures",
        "otherFailures",
        "jobHours",
        "nodeHours",
        "mtbfHours",
        "lowMtbfHours",
        "highMtbfHours",
    )
    rates = ("failuresPerNodeHour", "lowFailuresPerNodeHour", "highFailuresPerNodeHour")
    return {field: size[field] for field in fields} | {field: rate.get(field) for field in rates}


# ---------------------------------------------------------------- commitment


def read_demand(file: Path) -> commitment.HourlyDemand:
    """Read hourly demand.

    A file is a list of numbers, a CSV with a header, or JSON or YAML with rows. The figure of a row is its field in
    `_UNITS`, or else its only other field. A row may have an instant or the number of an hour: one of `_INSTANTS`. An
    instant without a time zone is UTC. `aws cloudwatch get-metric-statistics` writes such a file (`Datapoints`).

    Raises:
        CommandFailed: the file has no hour, or a row is wrong; names the row.
    """
    raw_rows = _csv_rows(file) if file.suffix.lower() == ".csv" else _document_rows(file)
    rows = [_instant_and_figure(row) for row in raw_rows]
    if not rows:
        raise usage_error(f"{file}: demand", "has no hour")
    undated = [index for index, (at, _) in enumerate(rows) if at is None]
    if undated and len(undated) < len(rows):
        raise usage_error(f"{file}: demand[{undated[0]}]", "must have an hour, because other rows have one")
    try:
        if not undated:
            return commitment.hourly_demand(
                commitment.DemandHour(at=_parse_instant(file, index, str(at)), units=_parse_units(file, index, figure))
                for index, (at, figure) in enumerate(rows)
            )
        return commitment.HourlyDemand(
            hours=tuple(_parse_units(file, index, figure) for index, (_, figure) in enumerate(rows))
        )
    except WrongFigure as error:
        raise usage_error(f"{file}: {error.field}", error.problem) from error


def _csv_rows(file: Path) -> list[Any]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(Exit.USAGE, f"{file}: {error}", code="USAGE") from error
    if lines and "," not in lines[0]:
        return lines[1:] if lines[0].strip().lower() in _UNITS else lines
    return list(csv.DictReader(lines))


def _document_rows(file: Path) -> list[Any]:
    documents = yaml_files.load_all(file)
    rows: Any = documents[0] if len(documents) == 1 else None
    if isinstance(rows, dict):
        rows = next((rows[name] for name in ("demand", "hours", "Datapoints") if name in rows), None)
    if not isinstance(rows, list):
        raise usage_error(f"{file}: demand", "must be a list of hours")
    return rows


def _instant_and_figure(row: Any) -> tuple[Any, Any]:
    """Return the instant and the figure of a row; None for a missing value."""
    if not isinstance(row, dict):
        return None, row
    fields = {str(name).strip().lower(): value for name, value in row.items()}
    figures = [name for name in fields if name not in _INSTANTS]
    figure = next((name for name in _UNITS if name in fields), figures[0] if len(figures) == 1 else "")
    return next((fields[name] for name in _INSTANTS if name in fields), None), fields.get(figure)


def _parse_units(file: Path, index: int, figure: Any) -> float:
    where = f"{file}: demand[{index}]"
    if figure is None or isinstance(figure, bool | list | dict) or not str(figure).strip():
        raise usage_error(where, f"must have a figure, not {json.dumps(figure)}; leave out hours that are unknown")
    value = parse_number(where, str(figure))
    if value < 0:
        raise usage_error(where, f"must not be negative, not {figure}")
    return value


def _parse_instant(file: Path, index: int, text: str) -> datetime:
    if text.strip().isdigit() and len(text.strip()) <= _LONGEST_INDEX:
        return datetime.fromtimestamp(3600 * int(text), UTC)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        problem = f"must have an instant such as 2026-11-03T10:00:00Z, not {text!r}"
        raise usage_error(f"{file}: demand[{index}]", problem) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def advise_commitment(
    demand: commitment.HourlyDemand, terms: Mapping[str, float], committed: int | None, per_unit: int
) -> Json:
    """Return how many units to commit.

    Raises:
        CommandFailed: a price is missing, or a figure is wrong; names it.
    """
    for name in ("reserved_usd_per_hour", "on_demand_usd_per_hour"):
        if name not in terms:
            raise usage_error(f"--{name.replace('_', '-')}", "is required, because this price is unknown")
    with name_options(
        **{"demand": "the demand", "peak demand": "the highest demand"},
        accelerators_per_unit="--gpus-per-node",
        committed_units="--committed",
    ):
        prices = commitment.CommitmentPrices(**terms)
        return commitment.advise_commitment(demand, prices, committed, per_unit).to_json()


class RecordedDemand(NamedTuple):
    """The demand for one instance type that the fleet recorded, in nodes."""

    entry: Json
    """The entry of the cost report."""
    demand: commitment.HourlyDemand


def read_recorded_demand(report: Json, instance_type: str, *, with_waiting: bool) -> RecordedDemand:
    """Return the recorded demand for an instance type.

    Raises:
        CommandFailed: the type is not named, or has no demand that is known; or the stack is too old to report demand.
    """
    if "commitments" not in report:
        raise CommandFailed(Exit.NOT_FOUND, NO_COMMITMENTS, code="OLDER_STACK", hint="Update the stack: make deploy")
    entries = {entry["instanceType"]: entry for entry in report["commitments"]}
    names = ", ".join(sorted(filter(None, entries)))
    chosen_type = instance_type.removeprefix("ml.") or (next(iter(entries)) if len(entries) == 1 else "")
    if not entries:
        raise CommandFailed(
            Exit.NOT_FOUND, "The window has no demand and no committed nodes, so there is no advice.", code="NOT_FOUND"
        )
    if not instance_type and len(entries) > 1:
        raise usage_error("--instance-type", f"is required: the fleet has {names}")
    if chosen_type not in entries:
        raise usage_error("--instance-type", f"must be one of {names}, not {instance_type!r}")
    entry = entries[chosen_type]
    hours = entry["demandWithWaiting" if with_waiting else "demand"]
    if not hours:
        raise CommandFailed(Exit.NOT_FOUND, f"The demand is unknown. {entry['whyUnknown']}", code="NOT_FOUND")
    unknown_hours = entry["unknownHours"]
    text = (
        f"Hours without a record: {unknown_hours}. They are left out, and do not count as 0." if unknown_hours else ""
    )
    demand = commitment.HourlyDemand(
        hours=tuple(row["nodes"] for row in hours for _ in range(row["hours"])), unknown_hours=unknown_hours, note=text
    )
    return RecordedDemand(entry, demand)


def advise_from_records(recorded_demand: RecordedDemand, terms: Mapping[str, float], committed: int | None) -> Json:
    """Return how many nodes to commit, at the recorded prices unless the terms state others.

    Raises:
        CommandFailed: a price is neither recorded nor stated, or a figure is wrong; names it.
    """
    entry, notes = recorded_demand.entry, list[str]()
    prices: dict[str, float] = {}
    for name, option in (("reserved", "reserved_usd_per_hour"), ("onDemand", "on_demand_usd_per_hour")):
        if option not in terms and (price := entry[name]):
            prices[option] = price["usdPerHour"]
            notes.append(f"--{option.replace('_', '-')} {price['usdPerHour']:g}: {price['origin']}.")
    units = entry["committedNodes"] if committed is None else committed
    response = advise_commitment(recorded_demand.demand, {**prices, **terms}, units, 1)
    return {"instanceType": entry["instanceType"]} | response | {"notes": [*notes, *response["notes"]]}
