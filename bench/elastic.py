"""A day on which inference leaves GPUs idle: the share of these GPUs that an elastic job uses without foresight.

    python -m bench.elastic

There are 256 GPUs. A training job always has 160 of them; inference leaves up to 96 idle. A resize stops the whole job
for 150 s (`bench/setups/burst.json`). The service's own code decides (`plan_growth`, `plan_shrink`). The bound
is the best result with perfect knowledge of the day, at the same cost per resize.

    recovered = (GPU-seconds trained on idle GPUs - GPU-seconds stood still for resizes) / idle GPU-seconds
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.burst import load_setup, setup_hash
from bench.origin import describe_origin, write_figures
from evenkeel.domain.elastic.grow_shrink import GrowFacts, IdleNodes, plan_growth, plan_shrink
from evenkeel.domain.elastic.sizes import ElasticJob, Sizes

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
DAY = 86_400


@dataclass(frozen=True)
class ElasticDay:
    """Result of one day, in shares of its idle GPU-seconds."""

    idle_gpu_hours: float
    recovered: float
    bound: float
    resizes: int
    best_resizes: int


def idle_steps_of_day(setting: dict[str, Any], name: str, seed: int = 0) -> list[int]:
    """Return the number of idle GPU steps at each tick of a day."""
    ticks, max_steps = DAY // setting["tickSeconds"], setting["idle"] // setting["step"]
    if name == "all-day":
        return [max_steps] * ticks
    if name == "off-peak":
        return [
            max_steps if (tick * setting["tickSeconds"]) // 3600 in (22, 23, 0, 1, 2, 3, 4, 5) else 0
            for tick in range(ticks)
        ]
    dice, wander, sizes = random.Random(f"elastic/{seed}"), 0, []
    for tick in range(ticks):
        if dice.random() < setting["tickSeconds"] / 600:
            wander += dice.choice((-1, 1))
        level = (1 + math.cos(2 * math.pi * (tick * setting["tickSeconds"] - 2 * 3600) / DAY)) / 2
        sizes.append(max(0, min(max_steps, round(max_steps * level) + wander)))
    return sizes


def recover_idle_time(setting: dict[str, Any], idle: Sequence[int]) -> tuple[float, int]:
    """Return the GPU-seconds recovered by the service's rules, and the number of resizes."""
    step, tick_seconds, cost = setting["step"], setting["tickSeconds"], setting["resizeSeconds"]
    base = (setting["gpus"] - setting["idle"]) // step
    sizes = Sizes(least=base, most=setting["gpus"] // step)
    job = ElasticJob(
        job_id="training",
        nodes=base,
        accelerators_per_node=step,
        sizes=sizes,
        since_checkpoint_seconds=0,
        resize_seconds=cost,
        started_at=BEGIN,
    )
    gained, resizes, idle_since = 0.0, 0, list[float]()
    for tick, free in enumerate(idle):
        seconds = float(tick * tick_seconds)
        now = BEGIN + timedelta(seconds=seconds)
        grown_by = job.nodes - base
        if free < grown_by:
            size = job.nodes - sum(r.from_nodes - r.to_nodes for r in plan_shrink([job], grown_by - free, 1).resizes)
            job, idle_since = job.replace(nodes=size, resized_at=now), []
            gained, resizes = gained - cost * size * step, resizes + 1
        else:
            # Inference takes the longest idle GPUs last.
            idle_since = idle_since[: free - grown_by] + [seconds] * (free - grown_by - len(idle_since))
            stood = sum(seconds - start for start in idle_since)
            facts = GrowFacts(jobs=(job,), idle=IdleNodes(nodes=free - grown_by, idle_node_seconds=stood), now=now)
            for resize in plan_growth(facts).resizes if idle_since else ():
                idle_since = idle_since[: len(idle_since) - (resize.to_nodes - resize.from_nodes)]
                job = job.replace(nodes=resize.to_nodes, resized_at=now)
                gained, resizes = gained - cost * resize.to_nodes * step, resizes + 1
        gained += (job.nodes - base) * step * tick_seconds
    return gained, resizes


def best_with_foresight(setting: dict[str, Any], idle: Sequence[int]) -> tuple[float, int]:
    """Return the best possible result with foresight, by trying every size at every tick."""
    step, tick_seconds, cost = setting["step"], setting["tickSeconds"], setting["resizeSeconds"]
    base = (setting["gpus"] - setting["idle"]) // step
    unreachable = (-math.inf, 0)
    values: list[tuple[float, int]] = [(0.0, 0), *([unreachable] * (setting["idle"] // step))]
    for free in idle:
        gained, resizes = max(values)
        moved = [(gained - cost * (base + size) * step, resizes - 1) for size in range(len(values))]
        carried = [max(value, moved[size]) if size <= free else unreachable for size, value in enumerate(values)]
        values = [(value + size * step * tick_seconds, count) for size, (value, count) in enumerate(carried)]
    gained, resizes = max(values)
    return gained, -resizes


def play_day(setting: dict[str, Any], name: str, seed: int = 0) -> ElasticDay:
    """Play one day."""
    idle = idle_steps_of_day(setting, name, seed)
    idle_seconds = sum(idle) * setting["step"] * setting["tickSeconds"]
    (gained, resizes), (best_seconds, best_resizes) = (
        recover_idle_time(setting, idle),
        best_with_foresight(setting, idle),
    )
    return ElasticDay(idle_seconds / 3600, gained / idle_seconds, best_seconds / idle_seconds, resizes, best_resizes)


def main(words: Sequence[str] | None = None) -> int:
    """Play the days and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.elastic", description="An elastic job on idle GPUs.")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    arguments = parser.parse_args(words)
    setting = load_setup()["elasticDay"]
    document: dict[str, Any] = {
        **describe_origin("bench.elastic", words, range(setting["raggedSeeds"])),
        "setup": setup_hash(),
    }
    print(f"  {'day':<10}{'idle GPU-h':>11}{'recovered':>11}{'bound':>8}{'of bound':>10}{'resizes':>9}{'at best':>9}")
    for name in setting["shapes"]:
        days = [play_day(setting, name, seed) for seed in range(setting["raggedSeeds"] if name == "ragged" else 1)]
        shares = sorted(day.recovered for day in days)
        row = {
            "days": len(days),
            "idleGpuHours": round(statistics.fmean(day.idle_gpu_hours for day in days), 1),
            "recovered": round(statistics.fmean(shares), 4),
            "low": round(shares[int(0.025 * len(shares))], 4),
            "high": round(shares[max(0, math.ceil(0.975 * len(shares)) - 1)], 4),
            "bound": round(statistics.fmean(day.bound for day in days), 4),
            "resizes": round(statistics.fmean(day.resizes for day in days), 1),
            "bestResizes": round(statistics.fmean(day.best_resizes for day in days), 1),
        }
        document[name] = row
        print(
            f"  {name:<10}{row['idleGpuHours']:>11}{row['recovered']:>11.1%}{row['bound']:>8.1%}"
            f"{row['recovered'] / row['bound']:>10.1%}{row['resizes']:>9}{row['bestResizes']:>9}"
        )
    write_figures(arguments.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
