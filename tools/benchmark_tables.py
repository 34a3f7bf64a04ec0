"""Write the tables of docs/benchmarks.md from `bench/results/`, each with the command, seeds and commit of its run."""

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import queues_plot, scale_plot
from tools.generated_tables import with_tables

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "benchmarks.md"
RESULTS = PROJECT / "bench" / "results"
FIGURES = PROJECT / "docs" / "figures"
Json = Mapping[str, Any]
_AIM_SECONDS = 5
_POLICIES = {
    "committed": "committed only",
    "always": "always renting",
    "greedy": "greedy first fit",
    "evenkeel": "Evenkeel",
}


def load(name: str) -> Json:
    """Return the figures of a file."""
    document: Json = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def origin_lines(*names: str) -> Iterator[str]:
    """Yield the command, seeds and commit of the figures in these files."""
    for name in names:
        document = load(name)
        seeds = _numbers(document["seeds"])
        others_share = document.get("othersShare")
        busy = "" if others_share is None else f", other programs used {others_share:.0%} of the processors"
        note = f" ({document['note']})" if "note" in document else ""
        drawn = f", seeds {seeds}" if seeds else ""
        yield ""
        yield (
            f"*`.venv/bin/{document['command']}`{drawn}, commit `{document['commit']}`{note}{busy}: "
            f"[`bench/results/{name}.json`](../bench/results/{name}.json).*"
        )


def _numbers(numbers: Iterable[int]) -> str:
    """Write whole numbers, with successive numbers as a range."""
    runs = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        values = [value for _, value in run]
        runs.append(str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}")
    return ", ".join(runs)


def _table(*heads: str) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


# ---------------------------------------------------------------- event to cordon


def cordon_rows(name: str) -> Iterator[str]:
    """Yield the ratios of the lanes in a file."""
    ratios = load(name)["ratios"]
    yield from _table("ratio", "p50", "p99", "aim at the median")
    for lane, aim in {
        "evenkeel/empty": "≤ 1.2",
        "evenkeel/empty, without the pause": "≤ 2.0",
        "evenkeel/bare": "none",
        "evenkeel/empty, cold": "≤ 1.4",
        "libraries/empty, cold": "none",
    }.items():
        if f"{lane}, p50" not in ratios:
            continue  # an older build had no such lane
        p99 = ratios.get(f"{lane}, p99")
        yield _row(lane.replace("/", " / "), f"{ratios[f'{lane}, p50']:.2f}", "" if p99 is None else f"{p99:.2f}", aim)
    yield from origin_lines(name)


# ---------------------------------------------------------------- scale


def scale_results() -> list[Json]:
    """Return the results of all sizes."""
    results: list[Json] = load("scale")["results"]
    return results


def scale_rows() -> Iterator[str]:
    """Yield each case at each size with as many jobs as nodes."""
    yield from _table("case", "nodes", "jobs", "calls", "MB read", "service", "client", "p50 s", "p99 s", "peak MB")
    results = scale_results()
    order = {"event to cordon": 0, "watch": 1, "cycle": 2, "sweep": 3, "storm": 4, "settle": 5}
    for result in sorted(results, key=lambda row: (order[row["case"]], row["nodes"], row["jobs"])):
        if result["nodes"] == 100 and result["jobs"] == 10:
            continue
        memory = max((function["peakMemoryMB"] or 0 for function in result["functions"].values()), default=0)
        yield _row(
            result["case"],
            f"{result['nodes']:,}",
            f"{result['jobs']:,}",
            f"{sum(result['calls'].values()):,}",
            f"{result['bytesRead'] / 1e6:,.1f}",
            f"{result['ownProcessorSeconds']:.2f}",
            f"{result['clientProcessorSeconds']:.2f}",
            f"{result['p50Seconds']:.2f}",
            f"{result['p99Seconds']:.2f}",
            f"{memory:.0f}" if memory else "",
        )
    yield from origin_lines("scale")


def aim_rows() -> Iterator[str]:
    """Yield each aim of the scale benchmark with its figure at the largest size that was run."""
    results, functions = scale_results(), load("scale-functions")["functions"]

    def largest(case: str) -> Json:
        return max((result for result in results if result["case"] == case), key=lambda result: result["nodes"])

    event, storm, cycle, watch = (largest(case) for case in ("event to cordon", "storm", "cycle", "watch"))
    calls, late = sum(event["callsBeforeCordon"].values()), sum(storm["pastThirdOfTimeout"].values())
    yield from _table("aim", "nodes", "figure", "")
    for text, result, value, aim, unit in (
        ("event to cordon at p99, warm: ≤ 1 s", event, event["warm"]["p99"], 1, " s"),
        ("event to cordon at p99, cold functions: ≤ 3 s", event, event["cold"]["p99"], 3, " s"),
        ("event to cordon at p99 in a storm: ≤ 5 s", storm, storm["p99Seconds"], _AIM_SECONDS, " s"),
        ("invocations past a third of their timeout in a storm: none", storm, late, 0, ""),
        ("calls before the cordon: ≤ 10", event, calls, 10, ""),
        ("one cycle at p99: ≤ 5 s at 10,000 nodes", cycle, cycle["p99Seconds"], _AIM_SECONDS, " s"),
        ("one watch at p99: ≤ 5 s at 10,000 nodes", watch, watch["p99Seconds"], _AIM_SECONDS, " s"),
    ):
        verdict = "met" if value <= aim else "**missed**"
        if "10,000" in text and result["nodes"] < 10_000:
            verdict = f"{verdict} here; **not run** at 10,000"
        shown = f"{value:.2f}{unit}" if unit else value
        yield _row(text, f"{result['nodes']:,}", shown, verdict)
    for nodes, figures in functions.items():
        outside = sum(not figure["isWithin"] for figure in figures)
        text = "functions beyond half of their memory or a third of their timeout: none"
        yield _row(text, f"{int(nodes):,}", outside, "**missed**" if outside else "met")


def function_rows() -> Iterator[str]:
    """Yield memory and time of each function at each size, against half of its memory and a third of its timeout."""
    by_size = load("scale-functions")["functions"]
    sizes = [f"{int(nodes):,}" for nodes in by_size]
    yield from _table(
        "function",
        "memory MB",
        *(f"peak MB, {size} nodes" for size in sizes),
        "timeout s",
        *(f"p99 s, {size} nodes" for size in sizes),
        *(f"within, {size} nodes" for size in sizes),
    )
    for figures in zip(*by_size.values(), strict=True):
        (name,) = {figure["function"] for figure in figures}
        yield _row(
            f"`{name}`",
            figures[0]["memoryMB"],
            *(f"{figure['peakMemoryMB']:.0f}" for figure in figures),
            f"{figures[0]['timeoutSeconds']:.0f}",
            *(f"{figure['p99Seconds']:.2f}" for figure in figures),
            *("yes" if figure["isWithin"] else "**no**" for figure in figures),
        )
    yield from origin_lines("scale-functions")


def queue_cycle_rows() -> Iterator[str]:
    """Yield a cycle over long queues."""
    yield from _table(
        "pending jobs",
        "reads: first cycle",
        "later",
        "MB read",
        "service s",
        "client s",
        "both, of the runs",
        "first admission: warm p50",
        "p99",
        "cold",
        "end p50",
        "end p99",
    )
    for result in load("scale-queue")["results"]:
        reads = sum(
            count
            for name, count in result["calls"].items()
            if not name.endswith(("TransactWriteItems", "StartExecution"))
        )
        yield _row(
            f"{result['jobs']:,}",
            result["firstCycle"]["reads"],
            reads,
            f"{result['bytesRead'] / 1e6:.0f}",
            f"{result['ownProcessorSeconds']:.1f}",
            f"{result['clientProcessorSeconds']:.1f}",
            f"{min(result['processorSecondsOfRuns']):.1f} to {max(result['processorSecondsOfRuns']):.1f}",
            *(f"{result['firstAdmission'][name]:.1f} s" for name in ("warm", "p99", "cold")),
            f"{result['p50Seconds']:.1f} s",
            f"{result['p99Seconds']:.1f} s",
        )
    yield from origin_lines("scale-queue")


def bill_rows() -> Iterator[str]:
    """Yield the bill of a quiet month and of one recovery."""
    bills = load("scale")["bills"]
    yield from _table("bill", "total", "DynamoDB", "Lambda", "Step Functions", "metrics and alarms", "rest")
    rows = {"one recovery": bills["recovery"]}
    rows |= {f"a quiet month, {int(nodes):,} nodes": month for nodes, month in bills["quietMonth"].items()}
    for name, bill in rows.items():
        digits = 5 if name == "one recovery" else 2
        parts = {
            part: sum(value for key, value in bill.items() if key.startswith(prefix))
            for part, prefix in {
                "DynamoDB": "DynamoDB",
                "Lambda": "Lambda",
                "Step Functions": "Step Functions",
                "alarms": "CloudWatch alarms",
                "metrics": "CloudWatch metrics",
            }.items()
        }
        watched = parts.pop("alarms") + parts.pop("metrics")
        amounts = [bill["total"], *parts.values(), watched, bill["total"] - sum(parts.values()) - watched]
        yield _row(name, *(f"${amount:,.{digits}f}" for amount in amounts))


# ---------------------------------------------------------------- the command


_PLAN_AIMS = {
    "--help": 0.15,
    "status, to its first byte": 0.25,
    "jobs ls, to its first byte": 0.25,
    "2000 jobs, kueue": 2.0,
    "2000 jobs, evenkeel": 2.0,
}
"""Aims in reference seconds. Before the first byte, only the seconds beyond the imports count."""


def plan_rows() -> Iterator[str]:
    """Yield the processor seconds of `evenkeel plan`."""
    plan = load("plan")
    alone = statistics.median(plan["referenceSeconds"]["imports alone"])
    yield from _table(
        "process", "seconds", "reference seconds: median (lowest to highest)", "beyond the imports", "aim"
    )
    for name, seconds in plan["referenceSeconds"].items():
        middle = statistics.median(seconds)
        aim, own = _PLAN_AIMS.get(name, 0.0), middle - alone
        reached = own if name.endswith("first byte") else middle
        verdict = "" if not aim else f"≤ {aim:g}: {'met' if reached <= aim else '**missed**'}"
        beyond = "" if name == "imports alone" else f"{own:.2f}"
        measured = f"{statistics.median(plan['seconds'][name]):.2f}"
        yield _row(name, measured, f"{middle:.2f} ({min(seconds):.2f} to {max(seconds):.2f})", beyond, verdict)
    yield from origin_lines("plan")


# ---------------------------------------------------------------- the console


def console_rows() -> Iterator[str]:
    """Yield the seconds of the console's first page, and its size."""
    lanes = load("console")["lanes"]
    figures = list(dict.fromkeys(figure for rounds in lanes.values() for figure in rounds[0]))
    yield from _table("page", *figures)
    for name, rounds in lanes.items():
        cells = ([sample[figure] for sample in rounds if figure in sample] for figure in figures)
        yield _row(name, *map(_spread, cells))
    line, console = (
        statistics.median(sample["first paint"] for sample in lanes[name]) for name in ("one line", "2,000 nodes")
    )
    yield ""
    yield f"With 2,000 nodes, the first paint takes {console / line:.1f} times as long as the first paint of one line."
    yield from origin_lines("console")


def _spread(samples: Sequence[float]) -> str:
    """Write the median with the range; nothing without samples."""
    if not samples:
        return ""
    if min(samples) == max(samples):
        return f"{samples[0]:.1f}"
    return f"{statistics.median(samples):.2f} s ({min(samples):.2f} to {max(samples):.2f})"


# ---------------------------------------------------------------- the queue scheduler


def nomination_rows(name: str) -> Iterator[str]:
    """Yield decisions per second by the number of queued jobs, as a file has them."""
    yield from _table("queued", "order", "decisions/s: cold", "warm", "warm, reference", "submits/s")
    for result in load(name)["nominations"]:
        yield _row(
            f"{result['queued']:,}",
            "fair sharing" if result["fairSharing"] else "classical",
            f"{result['coldNominationsPerSecond']:,}",
            f"{result['nominationsPerSecond']:,}",
            f"{result['referencePerSecond']:,}",
            f"{result['submittedPerSecond']:,}",
        )
    yield from origin_lines(name)


def length_rows() -> Iterator[str]:
    """Yield the cost of a decision with long queues over its cost with short ones."""
    yield from _table("order", "queued", "rounds", "cost of a decision: median (95 %)", "p99")
    for result in load("queue-lengths")["lengths"]:
        yield _row(
            "fair sharing" if result["fairSharing"] else "classical",
            f"{result['long']:,} over {result['short']:,}",
            result["rounds"],
            f"{result['ratio']:.2f} ({result['low']:.2f} to {result['high']:.2f})",
            f"{result['p99']:.2f}",
        )
    yield from origin_lines("queue-lengths")


def generator_rows() -> Iterator[str]:
    """Yield the makespans of Kueue's generators, in Kueue's order and with Evenkeel's own setting."""
    yield from _table(
        "generator", "order", "jobs", "makespan", "bound", "ratio", "evictions", "mean wait: small, medium, large"
    )
    for result in load("queues-replays")["generators"]:
        after = result["preemptAfterSeconds"]
        yield _row(
            result["shape"],
            f"own: `preemptAfterSeconds` {after:g}" if after else "Kueue's",
            f"{result['jobs']:,}",
            f"{result['makespan']:.1f} s",
            f"{result['bound']:.1f} s",
            f"{result['makespan'] / result['bound']:.2f}",
            f"{result['evictions']:,}",
            ", ".join(f"{result['meanWaits'][kind]:.1f}" for kind in ("small", "medium", "large")) + " s",
        )


def philly_rows() -> Iterator[str]:
    """Yield the waits of the trace, with and without sharing."""
    philly = load("queues-replays")["philly"]
    yield from _table("", "mean wait", "90 %", "worst team, mean", "evictions")
    for name, text in {
        "alone": "each team alone",
        "sharing": "the same devices with lending, borrowing, reclaim and fair sharing",
    }.items():
        worst = max(team[name]["mean"] for team in philly["teams"].values())
        evictions = philly["evictions"] if name == "sharing" else ""
        yield _row(text, f"{philly[name]['mean']:.1f} h", f"{philly[name]['p90']:.1f} h", f"{worst:.1f} h", evictions)
    yield from origin_lines("queues-replays")


TOPOLOGY_LANES = {
    "without": "labels ignored",
    "default": "default",
    "require-2": "layer 2 required",
    "require-3": "layer 3 required",
}


def topology_rows() -> Iterator[str]:
    """Yield the waits of gangs and the shares of close gangs, with and without levels."""
    yield from _table(
        "jobs, load, nodes of a domain", "levels", "gangs in one domain of layer 3, 2", "free nodes fragmented",
        "first gang waits for a domain", "gang waits: p50, p90, p99, max", "never start",
    )  # fmt: skip
    for setting in load("topology")["settings"]:
        order = f", overtaken for {setting['backfill_hours']:g} h" if setting["backfill_hours"] else ""
        name = f"{setting['workload']}, {setting['load']:g}, {setting['domain_nodes']}{order}"
        for lane, text in TOPOLOGY_LANES.items():
            figures = setting["lanes"][lane]
            yield _row(
                name,
                text,
                f"{figures['inLayer3']:.0%}, {figures['inLayer2']:.0%}",
                f"{figures['fragmentedShare']:.0%}",
                f"{figures['strandedShare']:.0%} of the time",
                ", ".join(f"{hours:.1f}" for hours in figures["gangWaitHours"].values()) + " h",
                figures["never"],
            )
    yield from origin_lines("topology")


LANES_SHOWN = ("cycle", "bare", "rows")


def admission_rows() -> Iterator[str]:
    """Yield a cycle's admissions against the fixed bare loop."""
    admissions = load("admissions")
    yield from _table(
        "writers",
        "cycle / bare",
        "95 % interval",
        "aim",
        "same rows / bare",
        "cycle: admissions/s",
        "bare",
        "same rows",
    )
    for lane in admissions["lanes"]:
        aim = admissions["aims"][str(lane["writers"])]
        verdict = "met" if lane["ratio"] >= aim else "**missed**"
        bound = lane.get("bound")
        yield _row(
            lane["writers"],
            f"{lane['ratio']:.2f}",
            f"{lane['low']:.2f} to {lane['high']:.2f}",
            f"≥ {aim}: {verdict}",
            f"{bound['ratio']:.2f} ({bound['low']:.2f} to {bound['high']:.2f})" if bound else "",
            *(f"{lane['perSecond'][name]:.0f}" if name in lane["perSecond"] else "" for name in LANES_SHOWN),
        )
    yield from origin_lines("admissions")


def cold_start_rows() -> Iterator[str]:
    """Yield the processor seconds of each function before its first event, the slowest first."""
    yield from _table("function", "services", "processor seconds: median (lowest to highest)", "aim")
    for start in sorted(load("cold-starts")["functions"], key=lambda start: -float(start["median"])):
        verdict = "met" if start["median"] <= start["aim"] else "**missed**"
        yield _row(
            f"`{start['function']}`",
            len(start["clients"]),
            f"{start['median']:.2f} ({start['low']:.2f} to {start['high']:.2f})",
            f"≤ {start['aim']}: {verdict}",
        )
    yield from origin_lines("cold-starts")


def start_part_rows() -> Iterator[str]:
    """Yield the shares of the libraries and of pydantic's models in the start of each function before a cordon."""
    yield from _table("function", "processor seconds: median (lowest to highest)", "libraries", "models")
    for start in load("cold-start-parts")["functions"]:
        yield _row(
            f"`{start['function']}`",
            f"{start['median']:.2f} ({start['low']:.2f} to {start['high']:.2f})",
            f"{start['libraries']:.0%}",
            f"{start['models']:.0%}",
        )
    yield from origin_lines("cold-start-parts")


# ---------------------------------------------------------------- burst


def grid_rows() -> Iterator[str]:
    """Yield each setting of the grid: costs against the best baseline, and delays."""
    grid = load("burst-cycle-grid")
    yield from _cell_rows(grid["cells"])
    yield ""
    yield from _grid_verdict(grid["cells"])
    yield from origin_lines("burst-cycle-grid")


def _cell_rows(cells: Iterable[Json]) -> Iterator[str]:
    yield from _table(
        "price of delay ×",
        "price of Spot ×",
        "committed nodes ×",
        "best baseline",
        "Evenkeel / it (lowest and highest drawn)",
        "seeds won",
        "Evenkeel's delay in hours: p50, p90, p99, longest",
        "the baseline's",
        "greedy's longest",
    )
    for cell in cells:
        own_hours, best_hours = (cell["policies"][name]["delayHours"] for name in ("evenkeel", cell["best"]))
        yield _row(
            f"{cell['delay']:g}",
            f"{cell['spot']:g}",
            f"{cell['committed']:g}",
            _POLICIES[cell["best"]],
            f"{cell['ratio']:.3f} ({cell['low']:.3f} to {cell['high']:.3f})",
            f"{cell['wins']} of {cell['seeds']}",
            *(
                ", ".join(f"{hours[name]:.2f}" for name in ("p50", "p90", "p99", "max"))
                for hours in (own_hours, best_hours)
            ),
            f"{cell['longestHoursOfGreedy']:.2f}",
        )


def _grid_verdict(cells: Sequence[Json]) -> Iterator[str]:
    """Return a sentence with the targets that the grid meets."""
    published = cells[0]
    worst = max(cells, key=lambda cell: float(cell["ratio"]))
    longer = [cell for cell in cells if cell["longestHours"] > cell["longestHoursOfGreedy"]]
    wins, seeds = sum(cell["wins"] for cell in cells), sum(cell["seeds"] for cell in cells)
    yield f"* Published setting: {published['ratio']:.3f} of {_POLICIES[published['best']]} (aim: ≤ 0.75)."
    yield (
        f"* Worst of {len(cells)} settings: {worst['ratio']:.3f}, at {worst['delay']:g} × delay, {worst['spot']:g} × "
        f"Spot and {worst['committed']:g} × nodes (aim: ≤ 1.0). Evenkeel costs less in {wins} of {seeds} runs."
    )
    yield f"* The longest delay exceeds greedy's in {len(longer)} of {len(cells)} settings (aim: none)."


def burst_rows() -> Iterator[str]:
    """Yield the policies with an estimate for each job."""
    burst = load("burst")
    # A file of an earlier run has no p99 and no longest delay.
    quantiles = {
        name: title for name, title in _QUANTILES.items() if f"{name}DelayHours" in burst["policies"]["evenkeel"]
    }
    delays = ", ".join(quantiles.values())
    yield from _table(
        "policy", "queue", "total", "rent", "delay", "mean delay", delays, "rentals", "Evenkeel / it (95 %)"
    )
    for name, figures in burst["policies"].items():
        ratio = burst["ratios"].get(name)
        yield _row(
            _POLICIES[name],
            f"by {burst['tuned'][name]['order']}",
            f"${figures['usd']:,}",
            f"${figures['rentUsd']:,}",
            f"${figures['delayUsd']:,}",
            f"{figures['meanDelayHours']:.2f} h",
            ", ".join(f"{figures[f'{name}DelayHours']:.2f} h" for name in quantiles),
            f"{figures['rentals']:,}",
            f"{ratio['ratio']:.3f} ({ratio['low']:.3f} – {ratio['high']:.3f})" if ratio else "",
        )
    for sigma, estimate in burst["otherEstimates"].items():
        text = f"{estimate['ratio']:.3f} ({estimate['low']:.3f} – {estimate['high']:.3f})"
        name = f"{_POLICIES[estimate['against']]}, estimates wrong by sigma {sigma}, {estimate['seeds']} seeds"
        yield _row(name, *[""] * 7, text)
    yield from origin_lines("burst")


_QUANTILES = {"p90": "90th percentile", "p99": "99th percentile", "max": "longest"}


def frontier_rows() -> Iterator[str]:
    """Yield rent against delay for values of each policy's parameter."""
    yield from _table("policy", "parameter", "rent", "delay")
    for point in load("burst")["frontier"]:
        parameter = {
            "evenkeel": f"values delay at {point['valueFactor']:g} ×",
            "greedy": f"waits {point['patienceHours'] or 0:g} h",
            "always": f"rents jobs to {point['maxGpus']} GPUs",
            "committed": "none",
        }[point["policy"]]
        yield _row(
            _POLICIES[point["policy"]],
            parameter,
            f"${point['rentUsd']:,}",
            f"${point['delayUsd']:,}",
        )


def elastic_rows() -> Iterator[str]:
    """Yield the idle days of an elastic job."""
    elastic = load("elastic")
    yield from _table("day", "idle GPU-hours", "recovered", "bound", "of the bound", "resizes", "at best")
    for name, text in {
        "all-day": "96 idle all day",
        "off-peak": "96 idle from 22:00 to 06:00",
        "ragged": "ragged, mean of 100 days",
    }.items():
        figures = elastic[name]
        spread = "" if figures["low"] == figures["high"] else f" ({figures['low']:.1%} – {figures['high']:.1%} of days)"
        yield _row(
            text,
            f"{figures['idleGpuHours']:,.1f}",
            f"**{figures['recovered']:.1%}**{spread}",
            f"{figures['bound']:.1%}",
            f"{figures['recovered'] / figures['bound']:.1%}",
            f"{figures['resizes']:.1f}",
            f"{figures['bestResizes']:.1f}",
        )
    yield from origin_lines("elastic")


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "event_to_cordon": partial(cordon_rows, "event_to_cordon"),
    "event_to_cordon, slow machine": partial(cordon_rows, "event_to_cordon-slow-machine"),
    "scale": scale_rows,
    "scale aims": aim_rows,
    "functions": function_rows,
    "scale-queue": queue_cycle_rows,
    "bills": bill_rows,
    "plan": plan_rows,
    "console": console_rows,
    "nominations": partial(nomination_rows, "queues"),
    "lengths": length_rows,
    "generators": generator_rows,
    "philly": philly_rows,
    "topology": topology_rows,
    "admissions": admission_rows,
    "cold starts": cold_start_rows,
    "cold starts, parts": start_part_rows,
    "burst grid": grid_rows,
    "burst": burst_rows,
    "burst frontier": frontier_rows,
    "elastic": elastic_rows,
}


def files() -> dict[Path, str]:
    """Return the page with its tables, and its figures."""
    scale = scale_results()
    return {
        PAGE: with_tables(PAGE, TABLES),
        FIGURES / "queues.svg": queues_plot.svg(load("queues")["nominations"], ()),
        FIGURES / "scale.svg": scale_plot.svg(scale),
    }
