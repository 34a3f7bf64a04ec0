"""Draw the receipt of an incident, and the receipt of a job."""

from typing import Any

from evenkeel_cli.render import Column, Printer, duration
from evenkeel_cli.state_signs import plain

Json = dict[str, Any]

UNKNOWN = "unknown"


def usd_text(micros: int | None) -> str:
    """Return micro-dollars as dollars and cents; `unknown` without a figure."""
    if micros is None:
        return UNKNOWN
    sign = "-" if micros < 0 else ""
    cents = (abs(micros) + 5_000) // 10_000
    return f"{sign}${cents // 100:,}.{cents % 100:02}"


def hours_text(value: float | None) -> str:
    """Return GPU-hours; `unknown` without a figure."""
    return UNKNOWN if value is None else f"{value:,.2f}"


def seconds_text(value: float | None) -> str:
    """Return a duration with its sign; `unknown` without a figure."""
    if value is None:
        return UNKNOWN
    return f"-{duration(-value)}" if value < 0 else duration(value)


def draw_incident_receipt(out: Printer, receipt: Json) -> None:
    """Draw the cost of an incident."""
    state = "settled" if receipt["isOver"] else "still growing"
    drill = ", a drill" if receipt["isDrill"] else ""
    out.line(f"{out.bold(receipt['incidentId'])}  {state}{drill}")
    bound_text = "at least " if receipt["isLowerBound"] else ""
    total = f"{bound_text}{hours_text(receipt['totalGpuHours'])} GPU-hours, {usd_text(receipt['totalUsdMicros'])}"
    out.pairs(
        [
            ("cost", total),
            ("node", _node_text(receipt["node"])),
            ("shared", ", ".join(_shared_text(share) for share in receipt["shared"])),
            ("not interrupted", _running_text(receipt["running"])),
            ("withheld", _withheld_text(receipt)),
        ],
        indent="  ",
    )
    for interruption in receipt["jobs"]:
        out.line()
        draw_interruption(out, interruption)
    _draw_options(out, receipt["options"])
    _draw_savings(out, receipt["savings"])
    draw_notes(out, receipt["notes"])


def draw_job_receipt(out: Printer, receipt: Json) -> None:
    """Draw the use of a job's time, and the cost of its interruptions."""
    state = "ended" if receipt["isOver"] else "not ended"
    out.line(f"{out.bold(receipt['jobId'])}  {state}, {duration(receipt['elapsedSeconds'])} since its submission")
    out.line()
    out.table(
        [
            Column("TIME", lambda bucket: plain(bucket["bucket"])),
            Column("", lambda bucket: seconds_text(bucket["seconds"]), is_right=True),
            Column("SHARE", lambda bucket: _percent_text(bucket["share"]), is_right=True),
            Column("GPU-HOURS", lambda bucket: hours_text(bucket["gpuHours"]), is_right=True),
            Column("COST", lambda bucket: usd_text(bucket["usdMicros"]), is_right=True),
        ],
        [_without_unmeasured_zeros(bucket) for bucket in receipt["buckets"]],
        indent="  ",
    )
    if receipt.get("parts"):
        out.line()
        out.table(
            [
                Column("NODES", lambda part: plain(part["part"])),
                Column("POOLS", lambda part: ", ".join(part["pools"])),
                Column("GPU-HOURS", lambda part: hours_text(part["gpuHours"]), is_right=True),
                Column("COST", lambda part: usd_text(part["usdMicros"]), is_right=True),
            ],
            receipt["parts"],
            indent="  ",
        )
    out.pairs([("withheld", _withheld_text(receipt))], indent="  ")
    for interruption in receipt["interruptions"]:
        out.line()
        draw_interruption(out, interruption)
    draw_notes(out, receipt["notes"])


def _without_unmeasured_zeros(bucket: Json) -> Json:
    """Return a bucket with null for each figure whose time was not measured."""
    if bucket["seconds"] or bucket.get("isMeasured", True):
        return bucket
    return bucket | dict.fromkeys(("seconds", "share", "gpuHours", "usdMicros"))


def draw_interruption(out: Printer, interruption: Json) -> None:
    """Draw the stages of one interruption."""
    resumed_by = interruption["resumedByAttempt"]
    next_attempt_text = f"attempt {resumed_by}" if resumed_by else "no later attempt yet"
    out.line(f"  {out.bold(interruption['jobId'])}  attempt {interruption['attempt']} → {next_attempt_text}")
    price, step = interruption["price"], interruption["resumedStep"]
    rate = f"{usd_text(price['usdMicrosPerGpuHour'])} a GPU-hour: {price['origin']}" if price else UNKNOWN
    out.pairs(
        [
            ("cause", f"{plain(interruption['cause'])} {', '.join(interruption['incidentIds'])}".strip()),
            ("price", rate),
            ("resumed", "" if step is None else f"from step {step:,}"),
        ],
        indent="    ",
    )
    shown_parts = [stage for stage in interruption["parts"] if stage["seconds"] != 0 or stage["alreadyCountedSeconds"]]
    clocks = iter(out.clock_texts(stage["startedAt"] for stage in shown_parts if stage["startedAt"]))
    rows = [(stage, next(clocks) if stage["startedAt"] else "–") for stage in shown_parts]
    rows.append(({"stage": "sum", **interruption["total"]}, ""))
    out.table(
        [
            Column("STAGE", lambda row: _stage_text(row[0])),
            Column("FROM", 1),
            Column("LOST", lambda row: seconds_text(row[0]["seconds"]), is_right=True),
            Column("GPU-HOURS", lambda row: hours_text(row[0]["gpuHours"]), is_right=True),
            Column("COST", lambda row: usd_text(row[0]["usdMicros"]), is_right=True),
            Column("UNTIL", lambda row: row[0].get("toRecord") or row[0].get("whyUnknown") or "", wraps=True),
        ],
        rows,
        indent="    ",
    )


def _stage_text(part: Json) -> str:
    covered_stages = "".join(f"{plain(stage)} + " for stage in part.get("covers", ()))
    return f"{covered_stages}{plain(part['stage'])}"


def _node_text(node: Json) -> str:
    if node["startedAt"] is None:
        return "not cordoned"
    if node["seconds"] is None:
        return f"cordoned, back: {UNKNOWN}. {node['whyUnknown']}"
    text = f"out for {duration(node['seconds'])}"
    if node["countedWithJobsSeconds"]:
        text += f", {duration(node['countedWithJobsSeconds'])} of it counted with its jobs"
    return f"{text}; not counted with its jobs: {hours_text(node['gpuHours'])} GPU-hours, {usd_text(node['usdMicros'])}"


def _shared_text(interruption: Json) -> str:
    return f"{interruption['jobId']} attempt {interruption['attempt']} is counted in {interruption['incidentIds'][0]}"


def _running_text(jobs: list[str]) -> str:
    return f"{', '.join(jobs)}: no end of an attempt is recorded" if jobs else ""


def _withheld_text(receipt: Json) -> str:
    if not receipt["isRedacted"]:
        return ""
    return "Only the team and operators see its checkpoints and prices. They are shown as unknown."


def _draw_options(out: Printer, options: list[Json]) -> None:
    if not options:
        return
    out.line()
    slowdown = Column(
        "LATER SLOWDOWN", lambda option: seconds_text(option.get("expectedSlowdownSeconds")), is_right=True
    )
    out.table(
        [
            Column(
                "OPTION", lambda option: out.with_glyph("ok" if option["isChosen"] else "idle", plain(option["option"]))
            ),
            Column("FORECAST", lambda option: seconds_text(option["expectedSeconds"]), is_right=True),
            *([slowdown] if any(option.get("expectedSlowdownSeconds") for option in options) else []),
            Column(
                "ACTUAL",
                _actual_text,
                is_right=True,
            ),
            Column("JOB", "jobId", is_wide=len({option["jobId"] for option in options}) == 1),
            Column("WHY NOT", lambda option: option["whyNot"] or "chosen", may_shrink=True),
        ],
        options,
        indent="  ",
    )


def _actual_text(option: Json) -> str:
    """Return the actual time of the chosen option; of another option the time in hindsight, marked with `~`."""
    if option["isChosen"]:
        return seconds_text(option["actualSeconds"])
    hindsight = option.get("hindsightSeconds")
    return "–" if hindsight is None else f"~{seconds_text(hindsight)}"


def _draw_savings(out: Printer, savings: list[Json]) -> None:
    if not savings:
        return
    out.line()
    out.line(f"  {out.bold('Estimates')}, not measurements: the same interruption without Evenkeel")
    rows = [saving for saving in savings if not saving["whyUnknown"]]
    if rows:
        out.table(
            [
                Column("INSTEAD OF", lambda saving: plain(saving["insteadOf"])),
                Column(
                    "STANDSTILL", lambda saving: _range_text(saving, "StandstillSeconds", seconds_text), is_right=True
                ),
                Column("SAVED", lambda saving: _range_text(saving, "SavedSeconds", seconds_text), is_right=True),
                Column("COST", lambda saving: _range_text(saving, "SavedUsdMicros", usd_text), is_right=True),
            ],
            rows,
            indent="  ",
        )
    texts = [
        text
        for saving in savings
        for text in ([saving["whyUnknown"]] if saving["whyUnknown"] else saving["assumptions"])
    ]
    for text in dict.fromkeys(texts):
        out.paragraph(text, indent="  ")


def _range_text(saving: Json, name: str, shown: Any) -> str:
    low, high = saving[f"low{name}"], saving[f"high{name}"]
    return str(shown(low)) if low == high else f"{shown(low)} to {shown(high)}"


def draw_notes(out: Printer, notes: list[str]) -> None:
    """Draw the limits of the figures."""
    out.line()
    for note in notes:
        out.paragraph(out.dim(note), indent="  ")


def _percent_text(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1%}"
