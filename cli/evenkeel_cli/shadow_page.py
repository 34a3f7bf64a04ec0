"""Draw the verdicts on decisions in the shadow report and in a backtest."""

from typing import Any

from evenkeel_cli.render import Column, Printer, duration
from evenkeel_cli.state_signs import count_of, plain

Json = dict[str, Any]

_SIGNS = {
    "SAME": "ok",
    "EARLIER": "ok",
    "LATER": "warn",
    "WOULD_HAVE_BEEN_WRONG": "failed",
    "MISSED": "warn",
    "DIFFERENT": "warn",
    "NOT_DECIDED": "idle",
    "UNKNOWN": "next",
}
_RATES = (("cordons", "falseCordons"), ("reboots", "falseReboots"), ("replacements", "falseReplacements"))


def draw_summary(out: Printer, summary: Json) -> None:
    """Draw the verdicts, the error rates and the lead times."""
    times = summary["times"]
    cases, incidents = count_of(summary["cases"], "case"), count_of(summary["incidents"], "incident")
    out.line(f"{cases} of {incidents}, window {times['windowHours']} h")
    if not summary["cases"]:
        return
    out.line()
    named_counts = [
        verdict for verdict in _SIGNS if any(verdict in summary[name] for name in ("cordons", "noCordons", "repairs"))
    ]
    columns = [
        Column("VERDICT", lambda verdict: out.with_glyph(_SIGNS[verdict], plain(verdict))),
        Column("CORDON", lambda verdict: summary["cordons"].get(verdict, 0), is_right=True),
        Column("NO CORDON", lambda verdict: summary["noCordons"].get(verdict, 0), is_right=True),
        Column("REPAIR", lambda verdict: summary["repairs"].get(verdict, 0), is_right=True),
    ]
    out.table(columns, named_counts)
    out.line()
    rates = [(name, summary[key]) for name, key in _RATES]
    out.table(
        [
            Column("WRONG", 0),
            Column("COUNT", lambda row: row[1]["count"], is_right=True),
            Column("OF", lambda row: row[1]["of"], is_right=True),
            Column("RATE", lambda row: _percent_text(row[1]["share"]), is_right=True),
            Column(
                f"{rates[0][1]['confidence']:.0%} INTERVAL",
                lambda row: f"{_percent_text(row[1]['low'])} to {_percent_text(row[1]['high'])}",
                is_right=True,
            ),
            Column("UNKNOWN", lambda row: row[1]["unknown"], is_right=True),
        ],
        rates,
    )
    leads = [(name, summary[key]) for name, key in (("cordon", "cordonLead"), ("repair", "repairLead"))]
    leads = [row for row in leads if row[1]["count"]]
    if leads:
        out.line()
        out.table(
            [
                Column("EARLIER BY", 0),
                Column("CASES", lambda row: row[1]["count"], is_right=True),
                Column("P10", lambda row: _signed_duration(row[1]["p10"]), is_right=True),
                Column("MEDIAN", lambda row: _signed_duration(row[1]["median"]), is_right=True),
                Column("P90", lambda row: _signed_duration(row[1]["p90"]), is_right=True),
            ],
            leads,
        )


def draw_faults(out: Printer, faults: list[Json]) -> None:
    """Draw the wrong cordons and replacements of each fault."""
    if not faults:
        return
    out.line()
    out.table(
        [
            Column("FAULT", "faultKey", may_shrink=True),
            Column("CASES", "cases", is_right=True),
            Column("WRONG CORDONS", lambda fault: _ratio_text(fault["falseCordons"]), is_right=True),
            Column("WRONG REPLACEMENTS", lambda fault: _ratio_text(fault["falseReplacements"]), is_right=True),
        ],
        faults,
    )


def _ratio_text(rate: Json) -> str:
    """Return `1 of 4, 0.6% to 80.6%, 2 unknown`, or a dash if Evenkeel decided no such action."""
    if not rate["of"] + rate["unknown"]:
        return "–"
    unknown_text = f", {rate['unknown']} unknown" if rate["unknown"] else ""
    return (
        f"{rate['count']} of {rate['of']}, {_percent_text(rate['low'])} to {_percent_text(rate['high'])}{unknown_text}"
    )


def draw_cases(out: Printer, cases: list[Json], *, is_wide: bool) -> None:
    """Draw a line for each case, and with `is_wide` the reasons too."""
    if not cases:
        return
    out.line()
    columns = [
        Column("DECIDED", lambda case: f"{_main_decision(case)['decidedAt'][:19]}Z"),
        Column("NODE", lambda case: _main_decision(case)["instanceId"]),
        Column("FAULT", lambda case: _main_decision(case)["faultKey"], may_shrink=True),
        Column(
            "CORDON",
            lambda case: _verdict_text(out, case["cordon"], "yes" if _main_decision(case)["cordons"] else "no"),
        ),
        Column("REPAIR", lambda case: _verdict_text(out, case["repair"], _main_decision(case)["repair"] or "none")),
        Column("INCIDENT", lambda case: _main_decision(case)["incidentId"], is_wide=True),
        Column("POOL", lambda case: _main_decision(case)["pool"] or "–", is_wide=True),
        Column("REASON", _reasons_text, is_wide=True),
    ]
    out.table(columns, cases, is_wide=is_wide)


def _main_decision(case: Json) -> Json:
    decision: Json = case["decision"]
    return decision


def _verdict_text(out: Printer, judgement: Json, action: str) -> str:
    text = f"{action}: {plain(judgement['verdict'])}"
    seconds = judgement["seconds"]
    if judgement["verdict"] in ("EARLIER", "LATER") and seconds is not None:
        text += f" by {duration(abs(seconds))}"
    if judgement["cause"]:
        text += f", {plain(judgement['cause'])}"
    return out.with_glyph(_SIGNS[judgement["verdict"]], text)


def _reasons_text(case: Json) -> str:
    return " ".join(dict.fromkeys((case["cordon"]["reason"], case["repair"]["reason"])))


def _percent_text(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _signed_duration(seconds: float) -> str:
    return f"-{duration(-seconds)}" if seconds < 0 else duration(seconds)
