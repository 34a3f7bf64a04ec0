"""The formulas of `evenkeel economics`: each function calls documented functions of `evenkeel.domain.economics`."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from evenkeel.domain.economics import (
    checkpoint_copies,
    checkpoint_interval,
    effective_training_time,
    failure_rates,
    goodput,
    published_tables,
    spares,
)
from evenkeel.domain.economics.figure_checks import FigureDocument, WrongFigure
from evenkeel_cli import yaml_files
from evenkeel_cli.offline.quantities import parse_not_negative, parse_number, parse_share, usage_error
from evenkeel_cli.state_signs import count_of
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]
_Document = TypeVar("_Document", bound=FigureDocument)


@contextmanager
def name_options(**names: str) -> Iterator[None]:
    """Name the option in the error of a formula: `nodes` becomes `--nodes`, unless `names` has another option."""
    try:
        yield
    except WrongFigure as error:
        option = names.get(error.field, f"--{error.field.replace('_', '-')}")
        raise usage_error(option, error.problem) from error


def read_document(file: Path, kind: type[_Document]) -> _Document:
    """Read one YAML or JSON document.

    Raises:
        CommandFailed: the file cannot be read, or a field is wrong; names the field.
    """
    documents = yaml_files.load_all(file)
    if len(documents) != 1:
        raise CommandFailed(
            Exit.USAGE, f"{file} has {count_of(len(documents), 'document')}; it must have one.", code="DOCUMENT_REFUSED"
        )
    try:
        return kind.read(documents[0])
    except WrongFigure as error:
        raise usage_error(f"{file}: {error.field}", error.problem) from error


FailureRate = failure_rates.FailureRate


def rate_of(rate: str | None, failures: int | None, node_hours: str | None, confidence: float) -> FailureRate:
    """Return the stated rate, or the rate from counts with its interval.

    Raises:
        CommandFailed: the options state no rate, or two rates.
    """
    with name_options():
        if rate is not None and failures is None and node_hours is None:
            return failure_rates.stated_rate(parse_share("--rate", rate))
        if rate is None and failures is not None and node_hours is not None:
            return failure_rates.failure_rate(failures, parse_number("--node-hours", node_hours), confidence)
    if rate is not None:
        raise CommandFailed(Exit.USAGE, "--rate excludes --failures and --node-hours.", code="WRONG_FIGURE")
    raise CommandFailed(
        Exit.USAGE,
        "The failure rate is unknown: give --rate, or --failures with --node-hours.",
        code="WRONG_FIGURE",
    )


def known_rate_values(rate: FailureRate) -> tuple[tuple[str, float], ...]:
    """Return the estimate of a rate and its known bounds, each with its name."""
    return tuple((name, value) for name, value in rate.interval._asdict().items() if value is not None)


# ---------------------------------------------------------------- rates


def rates_from_file(file: Path, by: str, confidence: float) -> Json:
    """Return the rate of each group of a file of observations.

    Raises:
        CommandFailed: a field is wrong, or the file has no node-hours, so every rate is unknown.
    """
    observations = read_document(file, failure_rates.Observations)
    if not any(node_hour.node_hours for node_hour in observations.node_hours):
        raise usage_error(f"{file}: nodeHours", "has no node-hours, so every rate is unknown")
    return rates_by_group(observations, by, confidence)


def rates_of_document(observations: Json, by: str, confidence: float) -> Json:
    """Return the rate of each group of a document of observations."""
    return rates_by_group(failure_rates.Observations.read(observations), by, confidence)


def rates_by_group(observations: failure_rates.Observations, by: str, confidence: float) -> Json:
    """Return the rate of each group, in rows without nested objects.

    Raises:
        CommandFailed: there is no such grouping.
    """
    try:
        group_field = failure_rates.GroupedBy(by)
    except ValueError as error:
        groupings = ", ".join(failure_rates.GroupedBy)
        raise usage_error("--by", f"must be one of {groupings}, not {by!r}") from error
    rows = []
    with name_options():
        for rate in failure_rates.rates_by(observations, group_field, confidence):
            known_rate = rate.rate.to_json() if rate.rate else dict.fromkeys(_RATE_FIELDS)
            note = {"note": rate.note or (rate.rate.note if rate.rate else "")}
            rows.append(
                {"group": rate.group, "failures": rate.failures, "nodeHours": rate.node_hours}
                | {name: known_rate[name] for name in _RATE_FIELDS}
                | note
            )
    return {"by": by, "confidence": confidence, "groups": rows}


_RATE_FIELDS = (
    *("failuresPerNodeHour", "lowFailuresPerNodeHour", "highFailuresPerNodeHour"),
    *("percentPerNodeHour", "lowPercentPerNodeHour", "highPercentPerNodeHour"),
    *("failuresPerThousandNodeDays", "lowFailuresPerThousandNodeDays", "highFailuresPerThousandNodeDays"),
)


def mtbf(rate: FailureRate, nodes: int, downtime_seconds: float | None) -> Json:
    """Return the MTBF of a job, at each end of the rate."""
    with name_options():
        rows = [_mtbf_row(end, value, nodes, downtime_seconds) for end, value in known_rate_values(rate)]
    never = " At a rate of 0 the job never fails, so there is no MTBF (null)." if rows[0]["mtbfHours"] is None else ""
    if downtime_seconds is not None and rows[0]["smallestEndlessNodes"] is None:
        never += " A job of any size ends at this rate and downtime, so there is no smallest endless size (null)."
    return {
        "nodes": nodes,
        "downtimeSeconds": downtime_seconds,
        "rates": rows,
        "note": f"{rate.note}{never}",
    }


def _mtbf_row(end: str, rate: float, nodes: int, downtime_seconds: float | None) -> Json:
    hours = failure_rates.mtbf_hours(nodes, rate)
    row: Json = {
        "end": end,
        "failuresPerNodeHour": rate,
        "jobFailuresPerHour": failure_rates.job_failures_per_hour(nodes, rate),
        "jobFailuresPerDay": 24 * failure_rates.job_failures_per_hour(nodes, rate),
        "mtbfHours": hours,
        "mtbfSeconds": None if hours is None else hours * 3600,
    }
    if downtime_seconds is None:
        return row
    downtime_hours = downtime_seconds / 3600
    factor = effective_training_time.time_factor(
        row["jobFailuresPerHour"], downtime_hours, effective_training_time.DowntimeModel.SERIAL
    )
    return row | {
        "smallestEndlessNodes": failure_rates.smallest_endless_nodes(rate, downtime_hours),
        "endsWithSerialRecovery": factor < float("inf"),
    }


# ---------------------------------------------------------------- times


def effective_time(
    rate: FailureRate,
    nodes: int,
    downtime_seconds: float,
    run_values: Mapping[str, float],
    models: Sequence[str] = (),
) -> Json:
    """Return ETTR and the time of a run under each meaning of downtime.

    Args:
        rate: Failure rate of a node.
        nodes: Nodes of the job.
        downtime_seconds: From a failure until the job trains again.
        run_values: `failureFreeHours` of the run; `usdPerHour` of its nodes and `insteadOfSeconds` of downtime if
            known.
        models: Meanings of downtime; all if empty.
    """
    try:
        downtime_models = [effective_training_time.DowntimeModel(model) for model in models] or list(
            effective_training_time.DowntimeModel
        )
    except ValueError as error:
        raise usage_error("--model", f"must be one of {', '.join(effective_training_time.DowntimeModel)}") from error
    usd = run_values.get("usdPerHour")
    rows: list[Json] = []
    savings: list[Json] = []
    with name_options(failure_free_hours="--failure-free"):
        for end, value in known_rate_values(rate):
            for model in downtime_models:
                run_time = effective_training_time.run_time(
                    nodes, value, downtime_seconds, run_values["failureFreeHours"], model
                )
                lost_days = run_time.lost_days
                rows.append(
                    {"end": end, "failuresPerNodeHour": value}
                    | run_time.to_json()
                    | {"lostUsd": None if usd is None or lost_days is None else lost_days * 24 * usd}
                )
                if (longer_downtime := run_values.get("insteadOfSeconds")) is not None:
                    longer_run = effective_training_time.run_time(
                        nodes, value, longer_downtime, run_values["failureFreeHours"], model
                    )
                    saving_of_group = effective_training_time.saving(longer_run, run_time)
                    dollars = (
                        None
                        if usd is None or saving_of_group.saved_days is None
                        else saving_of_group.saved_days * 24 * usd
                    )
                    savings.append({"end": end} | saving_of_group.to_json() | {"savedUsd": dollars})
    return {
        "nodes": nodes,
        "downtimeSeconds": downtime_seconds,
        "failureFreeDays": run_values["failureFreeHours"] / 24,
        "runs": rows,
        "note": rate.note,
    } | ({"insteadOfSeconds": run_values["insteadOfSeconds"], "savings": savings} if savings else {})


def interval(write: float, restart: float, mtbf_seconds: float, present: float | None) -> Json:
    """Return the best checkpoint interval by each method."""
    with name_options(
        write_seconds="--write", restart_seconds="--restart", mtbf_seconds="--mtbf", interval_seconds="--interval"
    ):
        return checkpoint_interval.advise_interval(write, restart, mtbf_seconds, present).to_json()


def shrink(detect: float, reconfigure: float, lead: float, nodes: int, failures_per_hour: float | None) -> Json:
    """Return the downtime of a failure if the job continues with one node fewer; without a rate, ETTR is unknown."""
    with name_options():
        seconds = effective_training_time.shrink_downtime_seconds(detect, reconfigure, lead, nodes)
        figures: Json = {"nodes": nodes, "downtimeSeconds": seconds, "ettrRenewal": None}
        if failures_per_hour is not None:
            figures["ettrRenewal"] = effective_training_time.ettr(
                failures_per_hour, seconds / 3600, effective_training_time.DowntimeModel.RENEWAL
            )
        return figures


# ---------------------------------------------------------------- spares and copies


def spare_table(rate: FailureRate, terms: Mapping[str, Any], max_spares: int | None) -> Json:
    """Return the cost of a run by the number of spares, at each end of the rate."""
    rows, cheapest_spares = [], {}
    with name_options(
        **dict.fromkeys(("lead_seconds", "lead_hours"), "--lead"),
        wait_seconds="--wait",
        detect_seconds="--detect",
        resume_seconds="--resume",
    ):
        for end, value in known_rate_values(rate):
            case = spares.SpareInputs.model_validate({**terms, "failures_per_node_hour": value})
            cheapest_spares[end] = spares.best_spares(case)
            for count in range((cheapest_spares[end] + 2 if max_spares is None else max_spares) + 1):
                row = spares.spare_cost(count, case).to_json()
                rows.append(
                    {"end": end, "failuresPerNodeHour": value} | row | {"isBest": count == cheapest_spares[end]}
                )
    return {"bestSpares": cheapest_spares, "spares": rows, "note": rate.note}


def repair_shop(rate: FailureRate, terms: Mapping[str, Any], max_nodes: int) -> Json:
    """Return the steady state of a fleet with repairers, by the number of spares, at each end of the rate."""
    with name_options(repair_hours="--repair"):
        rows = [
            {"end": end, "failuresPerNodeHour": value}
            | spares.repair_shop(spares=count, failures_per_node_hour=value, **terms).to_json()
            for end, value in known_rate_values(rate)
            for count in range(max_nodes + 1)
        ]
    return {"fleets": rows, "note": rate.note}


def copy_survival(machines: int, group_size: int, lost_machines: int) -> Json:
    """Return the probability that every checkpoint in memory survives."""
    with name_options(group_size="--group", lost_machines="--lost"):
        return checkpoint_copies.copy_survival(machines, group_size, lost_machines).to_json()


# ---------------------------------------------------------------- goodput and tables


def goodput_from_file(file: Path) -> Json:
    """Return goodput from a file with the times of a job."""
    return goodput_of(read_document(file, goodput.TimeSpent), str(file))


def goodput_from_options(elapsed: str, productive: str, buckets: Sequence[str]) -> Json:
    """Return goodput from options; a bucket is `NAME=SECONDS`."""
    seconds_by_bucket: dict[str, float] = {}
    for bucket in buckets:
        name, _, value = bucket.partition("=")
        if name not in list(goodput.Bucket):
            raise usage_error("--bucket", f"must name one of {', '.join(goodput.Bucket)}, not {name!r}")
        if name in seconds_by_bucket:
            raise usage_error("--bucket", f"names {name} twice. Give each bucket once")
        seconds_by_bucket[name] = parse_not_negative(f"--bucket {name}", value)
    time_spent = goodput.TimeSpent(
        elapsed_seconds=parse_number("--elapsed", elapsed),
        productive_seconds=parse_number("--productive", productive),
        buckets={goodput.Bucket(name): value for name, value in seconds_by_bucket.items()},
    )
    return goodput_of(time_spent, "")


def goodput_of(time_spent: goodput.TimeSpent, document_name: str) -> Json:
    """Return goodput; an error names the field of the file, or the option."""
    if not document_name:
        with name_options(
            elapsed_seconds="--elapsed", productive_seconds="--productive", buckets="The values of --bucket"
        ):
            return goodput.goodput(time_spent).to_json()
    try:
        return goodput.goodput(time_spent).to_json()
    except WrongFigure as error:
        raise usage_error(f"{document_name}: {error.field}", error.problem) from error


def tables(seed: int, failures: int) -> Json:
    """Return the article's tables, each cell as printed, as correct, and simulated."""
    cells = published_tables.check_cells(lambda cell: random.Random(f"{seed}/{cell}").random, failures)  # noqa: S311 - a simulation
    wrong_cells = published_tables.misprints(cells)
    return {
        "source": published_tables.SOURCE,
        "seed": seed,
        "simulatedFailuresPerCell": failures,
        "cells": [cell.to_json() for cell in cells],
        "misprints": [
            f"Table {cell.table}, {cell.row}, {cell.column}: printed {cell.printed:g}, should say {cell.correct:g}"
            f" ({cell.exact:.2f})."
            for cell in wrong_cells
        ],
        "remarks": [remark.to_json() for remark in published_tables.list_remarks()],
    }
