"""The cost report as sections: the same figures for a terminal, Markdown and CSV."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from evenkeel_cli.receipt_page import UNKNOWN, seconds_text, usd_text
from evenkeel_cli.render import Column, Printer
from evenkeel_cli.state_signs import count_of, plain

Json = dict[str, Any]

_PER_THOUSAND_NODE_DAYS = "failuresPerThousandNodeDays"
_HELD_USES = {
    "PRODUCTIVE": "USED",
    "CHECKPOINTING": "SAVE",
    "RESTORING": "RESTORE",
    "LOST": "LOST",
    "INTERRUPTED": "STOPPED",
    "STARTING": "START",
    "UNKNOWN": "UNKNOWN",
}
"""Uses by jobs, with their titles."""
_FREE_USES = {"IN_REPAIR": "REPAIR", "WAITING": "JOBS WAIT", "NO_JOB": "NO JOB"}
"""Uses without a job."""
_SHOWN_SHARE = 0.0005
"""A smaller share is left out, because it would be shown as 0.0 %."""
NO_COMMITMENTS = (
    "How many nodes to commit is unknown: the stack is older than this command and reports no hourly demand."
)


class ReportSection(NamedTuple):
    """A table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: int = 1
    """Columns with text. All other columns hold figures."""
    wraps: bool = False
    """Whether the first column wraps instead of being cut."""


def gpu_hours(value: float | None) -> str:
    """Return GPU-hours as text; without decimals from 1,000."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}"


def dollars(micros: int | None) -> str:
    """Return dollars as text; without cents from $1,000."""
    if micros is None or abs(micros) < 1_000_000_000:
        return usd_text(micros)
    return usd_text(round(micros / 1e6) * 1_000_000).removesuffix(".00")


def hours_and_cost(hours: float | None, micros: int | None) -> str:
    """Return GPU-hours and their cost as text."""
    return f"{gpu_hours(hours)} GPU-hours, {dollars(micros)}"


def summary(report: Json) -> list[tuple[str, str]]:
    """Return the most important figures, which fit on one screen."""
    failures, recovery, rent = report["failures"], report["recovery"], report["rent"]
    nodes, lost_time, effective = report["allNodes"], report["lost"], report["effective"]
    hyperpod_saving = next(saving for saving in report["saved"] if saving["insteadOf"] == "HYPERPOD_UNCHANGED")
    return [
        ("window", f"{report['since'][:16]}Z to {report['until'][:16]}Z"),
        ("GPU time", f"{gpu_hours(nodes['gpuHours'])} GPU-hours of {count_of(nodes['nodes'], 'node')}"),
        (
            "",
            ", ".join(
                f"{plain(use['use'])} {percent_text(use['share'])}"
                for use in nodes["uses"]
                if (use["share"] or 0) >= _SHOWN_SHARE
            ),
        ),
        ("failures", f"{failures['count']}; {rate_text(failures['rate'])} per 1,000 node-days"),
        ("recovery", duration_text(recovery)),
        (
            "lost",
            f"at least {hours_and_cost(lost_time['gpuHours'], lost_time['usdMicros'])}, by failures"
            if nodes["nodes"]
            else f"{UNKNOWN}: no node is recorded",
        ),
        ("ETTR", _ettr_text(effective["ratio"])),
        ("idle", _idle_text(report)),
        ("rented", _rent_text(rent) + _idle_rented_text(report)),
        ("lemons", _lemons_text(report.get("lemons"))),
        ("job size", endless_text(report.get("endlessSize"))),
        ("saved", _saved_text(hyperpod_saving)),
    ]


def sections(report: Json) -> Iterator[ReportSection]:
    """Yield the tables of the report, without empty tables."""
    yield _improvements_section(report["improvements"])
    yield _stages_section(report["stages"])
    for title, name in (
        ("Lost by cause", "byCause"),
        ("Lost by pool", "byPool"),
        ("Lost by instance type", "byInstanceType"),
    ):
        yield _losses_section(title, report[name])
    if report["requested"]["interruptions"]:
        yield _losses_section("Stopped on request (no failures)", [report["requested"]])
    yield _reliability_section(report.get("reliability", []))
    yield _job_sizes_section(report.get("jobSizes", []))
    yield _failures_section("Failures by instance type", report["failures"]["byInstanceType"])
    yield _nodes_section(report["failures"]["nodes"])
    yield ReportSection(
        "GPU time of jobs by pool",
        ("POOL", "GPU-HOURS", *_HELD_USES.values()),
        [
            (pool["pool"] or UNKNOWN, gpu_hours(pool["gpuHours"]), *_shares(pool, _HELD_USES))
            for pool in report["pools"]
        ],
    )
    yield ReportSection(
        "GPU time without a job by pool",
        ("POOL", "GPU-HOURS", *_FREE_USES.values(), "IDLE COST"),
        [
            (pool["pool"] or UNKNOWN, gpu_hours(pool["gpuHours"]), *_shares(pool, _FREE_USES), _idle_cost(pool))
            for pool in report["pools"]
        ],
    )
    yield _rented_section(report["rent"]["pools"])
    yield _commitments_section(report.get("commitments", []))
    yield _teams_section(report["teams"])
    yield _quotas_section(report["teams"])


def _improvements_section(improvements: list[Json]) -> ReportSection:
    rows = [
        (
            f"{index}. {improvement['change']}",
            gpu_hours(improvement["worthGpuHours"]),
            dollars(improvement["worthUsdMicros"]),
        )
        for index, improvement in enumerate(improvements, 1)
    ]
    return ReportSection("What to change first", ("CHANGE", "GPU-HOURS", "WORTH AT MOST"), rows, wraps=True)


def _stages_section(stages: list[Json]) -> ReportSection:
    rows = [
        (
            plain(stage["stage"]),
            *(seconds_text(stage["time"][f"{figure}Seconds"]) for figure in ("p50", "p99", "max")),
            str(stage["time"]["count"]),
            str(stage["time"]["unknown"]),
            gpu_hours(stage["gpuHours"]) if stage["time"]["count"] else UNKNOWN,
            dollars(stage["usdMicros"]),
        )
        for stage in stages
        if stage["time"]["count"] or stage["time"]["unknown"]
    ]
    titles = ("STAGE", "P50", "P99", "MAX", "KNOWN", "UNKNOWN", "GPU-HOURS", "COST")
    return ReportSection("Downtime by stage", titles, rows)


def _losses_section(title: str, groups: list[Json]) -> ReportSection:
    titles = ("GROUP", "TIMES", "OPEN", "GPU-HOURS", "COST", "UNKNOWN WORK")
    return ReportSection(title, titles, [_loss_cells(group) for group in groups])


def _reliability_section(groups: list[Json]) -> ReportSection:
    titles = ("POOL / CLASS", "FAILURES", "NODE MTBF", "95% INTERVAL", "NODE MTTR", "JOB MTTR")
    rows = [_reliability_cells(row) for row in groups]
    return ReportSection("MTBF and MTTR by pool and fault class", titles, rows, wraps=True)


def _reliability_cells(row: Json) -> tuple[str, ...]:
    return (
        row["group"],
        str(row["failures"]),
        *_mtbf_cells(row),
        *(seconds_text(row[name]["meanSeconds"]) for name in ("nodeRepair", "jobRecovery")),
    )


def _mtbf_cells(row: Json) -> tuple[str, str]:
    """Return the mean time between failures, and its interval."""
    low_text, high_text = (_hours_text(row[f"{end}MtbfHours"]) for end in ("low", "high"))
    return (
        _hours_text(row["mtbfHours"]),
        UNKNOWN
        if row["lowMtbfHours"] is None
        else f"{low_text} to {high_text}"
        if row["highMtbfHours"]
        else f"{low_text} or more",
    )


def _job_sizes_section(sizes: list[Json]) -> ReportSection:
    titles = ("NODES", "FAILURES", "OTHER", "JOB-HOURS", "JOB MTBF", "95% INTERVAL", "NODE MTBF")
    rows = [
        (
            size["group"],
            str(size["failures"]),
            str(size["otherFailures"]),
            f"{size['jobHours']:,.1f}",
            *_mtbf_cells(size),
            _node_mtbf_text(size["rate"]),
        )
        for size in sizes
    ]
    return ReportSection("Failures of jobs by number of nodes", titles, rows)


def _hours_text(hours: float | None) -> str:
    return UNKNOWN if hours is None else f"{hours / 24:,.0f} d" if hours >= 240 else f"{hours:,.1f} h"


def _node_mtbf_text(failure_rate: Json | None) -> str:
    per_hour = failure_rate["failuresPerNodeHour"] if failure_rate else 0
    return _hours_text(1 / per_hour if per_hour else None)


def _failures_section(title: str, groups: list[Json]) -> ReportSection:
    titles = ("GROUP", "FAILURES", "PER 1000 NODE-DAYS", "95% INTERVAL", "NODE MTBF")
    rows = [(group["group"], str(group["failures"]), *_rate_cells(group["rate"])) for group in groups]
    return ReportSection(title, titles, rows)


def _nodes_section(nodes: list[Json]) -> ReportSection:
    rows = [
        (
            node["node"],
            node["pool"],
            str(node["failures"]),
            "yes" if node["isAboveFleet"] else "no" if node["rate"] else UNKNOWN,
            gpu_hours(node["gpuHours"]),
            dollars(node["usdMicros"]),
        )
        for node in nodes
    ]
    titles = ("NODE", "POOL", "FAILURES", "ABOVE FLEET", "GPU-HOURS", "COST")
    return ReportSection("Nodes with the largest losses", titles, rows, text_columns=2)


def _rented_section(pools: list[Json]) -> ReportSection:
    rows = [
        (pool["name"], str(pool["rentals"]), gpu_hours(pool["nodeHours"]), dollars(pool["usdMicros"])) for pool in pools
    ]
    return ReportSection("Rented by pool", ("POOL", "RENTALS", "NODE-HOURS", "COST"), rows)


def _commitments_section(commitments: list[Json]) -> ReportSection:
    titles = ("TYPE", "HOURS", "UNKNOWN", "NOW", "PEAK", "BEST", "WAITING", "IDLE", "SAVED")
    return ReportSection("Nodes to commit", titles, [_commitment_cells(entry) for entry in commitments])


def _commitment_cells(entry: Json) -> tuple[str, ...]:
    present, best_count, best_with_waiting = entry["present"], entry["best"], entry["bestWithWaiting"]
    saved_usd = present["totalUsd"] - best_count["totalUsd"] if present and best_count else None
    return (
        entry["instanceType"] or UNKNOWN,
        str(entry["hours"]),
        str(entry["unknownHours"]),
        str(entry["committedNodes"]),
        UNKNOWN if entry["peakNodes"] is None else str(entry["peakNodes"]),
        str(best_count["units"]) if best_count else UNKNOWN,
        str(best_with_waiting["units"]) if best_with_waiting else UNKNOWN,
        dollars(round(present["idleReservedUsd"] * 1e6)) if present else UNKNOWN,
        UNKNOWN if saved_usd is None else dollars(round(saved_usd * 1e6)),
    )


def _teams_section(teams: list[Json]) -> ReportSection:
    rows = [
        (
            team["team"] or UNKNOWN,
            gpu_hours(team["gpuHours"]),
            dollars(team["usdMicros"]),
            dollars(team["rentUsdMicros"]),
        )
        for team in teams
    ]
    return ReportSection("Use by team", ("TEAM", "GPU-HOURS", "COST", "RENT"), rows)


def _quotas_section(teams: list[Json]) -> ReportSection:
    names = ("withinQuota", "borrowed", "withoutQuota", "unknownQuota", "lent")
    rows = [(team["team"] or UNKNOWN, *(gpu_hours(team[f"{name}GpuHours"]) for name in names)) for team in teams]
    titles = ("TEAM", "OWN QUOTA", "BORROWED", "NO QUOTA", "UNKNOWN", "LENT")
    return ReportSection("GPU-hours by quota", titles, rows)


def draw_fleet_report(out: Printer, report: Json, *, is_wide: bool) -> None:
    """Draw the report on a terminal: the summary, then its sections."""
    out.pairs(summary(report))
    for section in sections(report):
        if not section.rows:
            continue
        out.line()
        out.line(out.bold(section.title))
        columns = [
            Column(
                title,
                index,
                is_right=index >= section.text_columns,
                wraps=section.wraps and not index,
                may_shrink=not section.wraps and not index,
            )
            for index, title in enumerate(section.columns)
        ]
        out.table(columns, section.rows, indent="  ", is_wide=is_wide)
    out.line()
    for text in note_texts(report):
        out.paragraph(out.dim(text))


def note_texts(report: Json) -> list[str]:
    """Return the assumptions and limits of the figures."""
    reasons = [
        f"{count} not claimed: {why}" for saving in report["saved"][:1] for why, count in saving["reasons"].items()
    ]
    no_advice = [
        f"No advice for {entry['instanceType'] or 'an unknown type'}: {entry['whyUnknown']}"
        for entry in report.get("commitments", [])
        if entry["whyUnknown"]
    ]
    return [
        *report["notes"],
        *([] if "commitments" in report else [NO_COMMITMENTS]),
        *no_advice,
        *(text for saving in report["saved"][:1] for text in saving["assumptions"]),
        *reasons,
    ]


def markdown(report: Json) -> str:
    """Return the report as Markdown."""
    lines = ["# Costs of the fleet", ""]
    lines += [f"* **{name}**: {text}" if name else f"  {text}" for name, text in summary(report)]
    for section in sections(report):
        if section.rows:
            lines += ["", f"## {section.title}", "", f"| {' | '.join(plain(title) for title in section.columns)} |"]
            lines.append("|" + "---|" * section.text_columns + "---:|" * (len(section.columns) - section.text_columns))
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in section.rows]
    return "\n".join([*lines, "", *(f"* {text}" for text in note_texts(report))]) + "\n"


def web_page(report: Json) -> str:
    """Return the report as one HTML page with charts. It loads nothing, and every text in it is escaped."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in summary(report))
    body = [f"<h1>Costs of the fleet</h1><dl>{facts}</dl>", _time_chart(report["allNodes"]["uses"])]
    body += [_html_section(section, report) for section in sections(report) if section.rows]
    notes = "".join(f"<li>{escape(text)}</li>" for text in note_texts(report))
    head = f'<meta charset="utf-8"><title>Costs of the fleet</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}<ul>{notes}</ul></body></html>\n'


_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#16191d}"
    "table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .8rem .2rem 0;border-bottom:1px solid #d5d9de;"
    "text-align:right;vertical-align:top}.text{text-align:left}dt{float:left;clear:left;width:7rem;color:#56606b}"
    "dd{margin-left:7.5rem;min-height:1.5em}svg{display:block;max-width:100%}ul{color:#56606b}"
)
_COLOURS = {
    "PRODUCTIVE": "#17693a",
    "CHECKPOINTING": "#5c9a3b",
    "RESTORING": "#b0741a",
    "LOST": "#b3201f",
    "INTERRUPTED": "#8a5300",
    "STARTING": "#0a5c78",
    "UNKNOWN": "#16191d",
    "IN_REPAIR": "#6b4fa0",
    "WAITING": "#d08a8a",
    "NO_JOB": "#c6ccd3",
}


def _html_section(section: ReportSection, report: Json) -> str:
    chart = _CHARTS.get(section.title, _no_chart)(report)
    return f"<h2>{escape(section.title)}</h2>{chart}{_html_table(section)}"


def _html_table(section: ReportSection) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="text"' if index < section.text_columns else "" for index in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, row, strict=True))

    rows = "".join(f"<tr>{cells('td', row)}</tr>" for row in section.rows)
    return f"<table><tr>{cells('th', [plain(title) for title in section.columns])}</tr>{rows}</table>"


def _time_chart(uses: Sequence[Json]) -> str:
    """Draw where the GPU time went: one bar, with its legend below."""
    parts, legend, offset = [], [], 0.0
    for use in uses:
        colour = _COLOURS.get(use["use"], "#16191d")
        width = 800 * (use["share"] or 0)
        parts.append(f'<rect x="{offset:.2f}" y="0" width="{width:.2f}" height="24" fill="{colour}"/>')
        text = escape(f"{plain(use['use'])} {percent_text(use['share'])}")
        legend.append(f'<tspan fill="{colour}">■</tspan> {text} &#160; ')
        offset += width
    return (
        f'<svg viewBox="0 0 800 48" role="img" aria-label="GPU time by use">{"".join(parts)}'
        f'<text x="0" y="42" font-size="12">{"".join(legend)}</text></svg>'
    )


def _bars(rows: Sequence[tuple[str, float]], label: str) -> str:
    """Draw horizontal bars of GPU-hours."""
    longest_value = max((value for _, value in rows), default=0.0)
    if not longest_value:
        return ""
    bars = [
        f'<text x="150" y="{22 * index + 14}" font-size="12" text-anchor="end">{escape(name)}</text>'
        f'<rect x="158" y="{22 * index + 2}" width="{500 * value / longest_value:.2f}" height="16" fill="#b3201f"/>'
        f'<text x="{164 + 500 * value / longest_value:.2f}" y="{22 * index + 14}" '
        f'font-size="12">{gpu_hours(value)}</text>'
        for index, (name, value) in enumerate(rows)
    ]
    return f'<svg viewBox="0 0 800 {22 * len(rows)}" role="img" aria-label="{escape(label)}">{"".join(bars)}</svg>'


def _no_chart(_report: Json) -> str:
    return ""


_CHARTS: dict[str, Callable[[Json], str]] = {
    "Downtime by stage": lambda report: _bars(
        [(plain(stage["stage"]), stage["gpuHours"]) for stage in report["stages"] if stage["time"]["count"]],
        "GPU-hours lost by stage",
    ),
    "Lost by cause": lambda report: _bars(
        [(group["group"], group["gpuHours"]) for group in report["byCause"]], "GPU-hours lost by cause"
    ),
}


def figure_rows(report: Json) -> list[Json]:
    """Return every figure of the report on a line of its own, for CSV: exact, and empty if unknown."""
    rows: list[Json] = []
    _collect(report, "", "", rows)
    return rows


_NAMES = ("node", "group", "team", "stage", "pool", "instanceType", "use", "insteadOf", "name", "change")


def _collect(value: Any, section: str, item: str, rows: list[Json]) -> None:
    match value:
        case dict():
            own_name = next(
                (str(value[name]) for name in _NAMES if isinstance(value.get(name), str) and value[name]), ""
            )
            inner = " / ".join(filter(None, (item, own_name if section else "")))
            for name, entry in value.items():
                if isinstance(entry, dict | list):
                    _collect(entry, f"{section}.{name}" if section else name, inner, rows)
                elif not isinstance(entry, str) or not section:
                    rows.append({"section": section or "report", "item": inner, "figure": name, "value": entry})
        case list():
            for number, item_entry in enumerate(value, 1):
                if isinstance(item_entry, dict):
                    has_name = any(isinstance(item_entry.get(name), str) for name in _NAMES)
                    own_item = item if has_name else " / ".join(filter(None, (item, str(number))))
                    _collect(item_entry, section, own_item, rows)


def percent_text(share: float | None) -> str:
    """Return a share in percent."""
    return UNKNOWN if share is None else f"{share:.1%}"


def rate_text(failure_rate: Json | None) -> str:
    """Return failures per 1,000 node-days with their interval."""
    if failure_rate is None:
        return UNKNOWN
    low, high = (
        failure_rate[f"low{_PER_THOUSAND_NODE_DAYS[0].upper()}{_PER_THOUSAND_NODE_DAYS[1:]}"],
        failure_rate["highFailuresPerThousandNodeDays"],
    )
    return f"{failure_rate[_PER_THOUSAND_NODE_DAYS]:.2f} ({low:.2f} to {high:.2f})"


def duration_text(duration: Json) -> str:
    """Return the percentiles of a duration as text, and the number of cases behind them."""
    if not duration["count"]:
        return f"{UNKNOWN}: no interruption with a known end"
    count_known = f"{duration['count']} known" + (f", {duration['unknown']} unknown" if duration["unknown"] else "")
    p50, p99, max_text = (seconds_text(duration[f"{name}Seconds"]) for name in ("p50", "p99", "max"))
    return f"p50 {p50}, p99 {p99}, longest {max_text} ({count_known})"


def _rate_cells(failure_rate: Json | None) -> tuple[str, str, str]:
    if failure_rate is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    per_hour = failure_rate["failuresPerNodeHour"]
    low, high = failure_rate["lowFailuresPerThousandNodeDays"], failure_rate["highFailuresPerThousandNodeDays"]
    mtbf = seconds_text(3600 / per_hour) if per_hour else UNKNOWN
    return f"{failure_rate[_PER_THOUSAND_NODE_DAYS]:.2f}", f"{low:.2f} to {high:.2f}", mtbf


def _loss_cells(loss: Json) -> tuple[str, ...]:
    cost = dollars(loss["usdMicros"])
    if loss["unpricedGpuHours"] and loss["usdMicros"] is not None:
        cost = f"> {cost}"
    return (
        loss["group"],
        str(loss["interruptions"]),
        str(loss["stillInterrupted"]),
        gpu_hours(loss["gpuHours"]),
        cost,
        str(loss["unknownRepeatedWork"]),
    )


def _shares(pool: Json, uses: Iterable[str]) -> Iterator[str]:
    shares = {use["use"]: use["share"] for use in pool["uses"]}
    return (percent_text(shares.get(use)) for use in uses)


def _idle_cost(pool: Json) -> str:
    costs = [use["usdMicros"] for use in pool["uses"] if use["use"] in ("WAITING", "NO_JOB")]
    return "rented" if pool["isRented"] else dollars(None if None in costs else sum(costs))


def _idle_rented_text(report: Json) -> str:
    hours = report.get("idleRentedGpuHours")
    return f"; idle {hours_and_cost(hours, report['idleRentedUsdMicros'])}" if hours else ""


def endless_text(endless_size: Json | None) -> str:
    """Return from which number of nodes a job never ends."""
    if endless_size is None:
        return f"{UNKNOWN}: too few failures or recoveries to say at which size a job never ends"
    low_count, count, high_count = (endless_size[name] for name in ("lowNodes", "nodes", "highNodes"))
    interval = f"{low_count:,} to {high_count:,}" if high_count else f"{low_count:,} or more"
    lost = seconds_text(endless_size["lostSeconds"])
    lower_bound = "" if endless_size["isRepeatedWorkKnown"] else " at least"
    size = UNKNOWN if count is None else count_of(count, "node")
    return f"never ends from {size} ({interval}), where a failure costs{lower_bound} {lost}"


def _lemons_text(lemons: Json | None) -> str:
    if lemons is None:
        return UNKNOWN
    unjudged_text = f"; {count_of(lemons['unjudgedNodes'], 'node')} not judged" if lemons["unjudgedNodes"] else ""
    if not lemons["nodes"]:
        return f"no node fails more often than the fleet{unjudged_text}"
    cost = hours_and_cost(lemons["gpuHours"], lemons["usdMicros"])
    return f"{count_of(len(lemons['nodes']), 'node')} above the rate of the fleet: {cost} lost{unjudged_text}"


def _idle_text(report: Json) -> str:
    idle_hours = report["idleCommittedGpuHours"]
    if idle_hours is None:
        return f"{UNKNOWN}: no node is recorded"
    return f"at most {hours_and_cost(idle_hours, report['idleCommittedUsdMicros'])}, on committed nodes"


def _ettr_text(ratio: float | None) -> str:
    return f"{UNKNOWN}: no job ran" if ratio is None else f"at most {percent_text(ratio)} of job time was productive"


def _rent_text(rent: Json) -> str:
    if not rent["usdMicros"] and not rent["capUsdMicrosPerHour"]:
        return "nothing; the policy rents nothing"
    cap = f"cap {dollars(rent['capUsdMicrosPerHour'])}" if rent["capUsdMicrosPerHour"] else "no cap"
    near_cap_text = f", {rent['hoursNearCap']:.1f} h near it" if rent["hoursNearCap"] else ""
    return f"{dollars(rent['usdMicros'])}; peak {dollars(rent['peakUsdMicrosPerHour'])} an hour, {cap}{near_cap_text}"


def _saved_text(saved: Json) -> str:
    if not saved["claimed"]:
        return f"{UNKNOWN}: no interruption allows an estimate"
    low, high = gpu_hours(saved["lowSavedGpuHours"]), gpu_hours(saved["highSavedGpuHours"])
    cost = f"{dollars(saved['lowSavedUsdMicros'])} to {dollars(saved['highSavedUsdMicros'])}"
    count = f"{count_of(saved['claimed'], 'interruption')}; {saved['notClaimed']} not claimed"
    return f"estimate against HyperPod unchanged: {low} to {high} GPU-hours, {cost} ({count})"
