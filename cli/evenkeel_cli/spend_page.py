"""Use and cost by team, user and project: read, drawn, and in the columns of FOCUS."""

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from evenkeel_cli.receipt_page import UNKNOWN
from evenkeel_cli.render import Column, Printer
from evenkeel_cli.report_page import dollars, gpu_hours
from evenkeel_client.client import ApiClient

Json = dict[str, Any]

_PAGE = 200
_WITHHELD = "(withheld)"
_NONE = "(none)"
FOCUS_COLUMNS = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost"),
    *("InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName"),
    *("ServiceCategory", "ServiceName", "SubAccountId", "SubAccountName", "Tags"),
    *("x_InstanceType", "x_Jobs", "x_Kind", "x_Pool", "x_Project", "x_UnpricedGpuHours", "x_User"),
)
"""All mandatory columns of the FinOps Open Cost and Usage Specification (FOCUS) 1.2, and some others
(https://focus.finops.org/focus-specification/v1-2/). Evenkeel's own columns begin with `x_`."""


class SpendGroupBy(StrEnum):
    """The property that groups the rows."""

    TEAM = "team"
    USER = "user"
    PROJECT = "project"
    POOL = "pool"


def read_spend(client: ApiClient, **query: str | None) -> Json:
    """Read all rows."""
    document: Json = {}
    rows: list[Json] = []
    token: str | None = None
    while not document or token:
        document = client.get("/showback", pageSize=_PAGE, nextPageToken=token, **query)
        rows += document["items"]
        token = document["nextPageToken"]
    return document | {"items": rows}


def draw_spend(out: Printer, document: Json, by: SpendGroupBy) -> None:
    """Draw the sums of each group, and the budgets."""
    out.line(f"{document['since'][:16]}Z to {document['until'][:16]}Z")
    out.line()
    rows = [*_group_sums(document["items"], by), ("all", "", document["total"])]
    columns = [
        Column("TEAM", 0, may_shrink=True),
        *([] if by is SpendGroupBy.TEAM else [Column(by.upper(), 1, may_shrink=True)]),
        Column("JOBS", lambda row: _jobs_text(row[2]), is_right=True),
        Column("GPU-HOURS", lambda row: gpu_hours(row[2]["gpuHours"]), is_right=True),
        Column("COST", lambda row: dollars(row[2]["usdMicros"]), is_right=True),
        Column("RENT", lambda row: dollars(row[2]["rent"]) if "rent" in row[2] else "", is_right=True),
        Column("WITHOUT PRICE", lambda row: gpu_hours(row[2]["unpricedGpuHours"]), is_right=True),
    ]
    out.table(columns, rows)
    if document["budgets"]:
        out.line()
        out.table(
            [
                Column("BUDGET", lambda budget: f"{budget['team']} {budget['key']}"),
                Column("USED", lambda budget: _used_text(budget, budget["used"]), is_right=True),
                Column("LIMIT", lambda budget: _used_text(budget, budget["limit"]), is_right=True),
                Column("AT ITS END", lambda budget: _used_text(budget, budget["expectedAtEnd"]), is_right=True),
                Column("REACHED", lambda budget: _reached_text(out, budget)),
            ],
            document["budgets"],
        )
    out.line()
    for text in document["notes"]:
        out.paragraph(out.dim(text))


def _group_sums(items: Iterable[Json], by: SpendGroupBy) -> list[tuple[str, str, Json]]:
    """Return the sums of each group, the most expensive first."""
    sums: dict[tuple[str, str], Json] = {}
    for item in items:
        name = "" if by is SpendGroupBy.TEAM else _group_name(item, by)
        group = sums.setdefault(
            (item["team"], name), {"jobs": 0, "gpuHours": 0.0, "usdMicros": None, "rent": 0, "unpricedGpuHours": 0.0}
        )
        if item["kind"] == "USE":
            group["mayRepeatJobs"] = bool(group["jobs"])
            group["jobs"] += item["jobs"]
        elif item["usdMicros"] is None or group["rent"] is None:
            group["rent"] = None
        else:
            group["rent"] += item["usdMicros"]
        group["gpuHours"] += item["gpuHours"]
        group["unpricedGpuHours"] += item["unpricedGpuHours"]
        if item["usdMicros"] is not None:
            group["usdMicros"] = (group["usdMicros"] or 0) + item["usdMicros"]
    rows = [(team, name, group) for (team, name), group in sums.items()]
    return sorted(rows, key=lambda row: (row[0], -(row[2]["usdMicros"] or 0), -row[2]["gpuHours"], row[1]))


def _jobs_text(group: Json) -> str:
    """Return the number of jobs. A job with use in several rows of the API counts in each of them."""
    if group["jobs"] is None:
        return UNKNOWN
    return f"≤ {group['jobs']:,}" if group.get("mayRepeatJobs") else f"{group['jobs']:,}"


def _group_name(item: Json, by: SpendGroupBy) -> str:
    value = item[by]
    return _WITHHELD if value is None else value or _NONE


def _used_text(budget: Json, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return dollars(round(value * 1e6)) if budget["quantity"] == "usd" else f"{gpu_hours(value)} GPU-h"


def _reached_text(out: Printer, budget: Json) -> str:
    if budget["reachedAt"]:
        return out.with_glyph("warn", f"{budget['reachedAt'][:16]}Z")
    return "not in this period" if budget["expectedAtEnd"] is not None else UNKNOWN


def focus_rows(document: Json) -> list[Json]:
    """Return the rows in the columns of FOCUS. An unknown cost is an empty cell, although FOCUS wants a figure.

    The window is the billing period, and the fleet is the billing account. Without unit prices, FOCUS wants the same
    amount in all four columns of costs.
    """
    start, end = (_focus_instant(document[name]) for name in ("since", "until"))
    costs = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
    return [
        {
            **dict.fromkeys(costs, _usd_amount(item["usdMicros"])),
            **dict.fromkeys(("BillingAccountId", "BillingAccountName"), document.get("fleet", UNKNOWN)),
            "BillingCurrency": "USD",
            **dict.fromkeys(("BillingPeriodStart", "ChargePeriodStart"), start),
            **dict.fromkeys(("BillingPeriodEnd", "ChargePeriodEnd"), end),
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{item['kind']} of {item['instanceType'] or 'nodes'} in {item['pool']}",
            **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), item["gpuHours"]),
            **dict.fromkeys(("ConsumedUnit", "PricingUnit"), "GPU-Hours"),
            **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), "AWS"),
            "ServiceCategory": "AI and Machine Learning",
            "ServiceName": "Evenkeel",
            "SubAccountId": item["team"],
            "SubAccountName": item["team"],
            "Tags": json.dumps({"user": item["user"], document["label"]: item["project"], "pool": item["pool"]}),
            "x_InstanceType": item["instanceType"],
            "x_Jobs": item["jobs"],
            "x_Kind": item["kind"],
            "x_Pool": item["pool"],
            "x_Project": item["project"],
            "x_UnpricedGpuHours": item["unpricedGpuHours"],
            "x_User": item["user"],
        }
        for item in document["items"]
    ]


def _focus_instant(text: str) -> str:
    """Return an instant of the API without fractions of a second, as FOCUS writes it."""
    return f"{text[:19]}Z"


def _usd_amount(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6
