"""The time of `evenkeel plan`: 2,000 jobs in 50 queues; and of the command's start, up to its first byte to the API.

    python -m bench.plan [--rounds 5] [--output bench/results/plan.json]

Prints processor seconds (user and system) of whole processes, with median and range. A fixed loop runs next to each
process. It gives the reference seconds: seconds of an idle processor of the reference machine. The process of the lane
"imports alone" only imports the command's libraries.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.cpu_usage import Usage
from bench.origin import describe_origin, write_figures
from bench.scale.client_costs import processor_scale

JOBS, QUEUES = 2_000, 50
_EMPTY = "import typer, pydantic, yaml"


def main() -> int:
    """Measure the lanes alternately, so that a busy moment affects all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="file for the figures, as JSON")
    arguments = parser.parse_args()
    before, rounds = Usage.now(), arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        commands = lanes(Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        reference_seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                measure = _seconds_to_first_byte if name.endswith("first byte") else processor_seconds
                scale = processor_scale()
                used = measure(command)
                seconds[name].append(round(used, 4))
                reference_seconds[name].append(round(used * scale, 4))
    empty = statistics.median(reference_seconds["imports alone"])
    others_share = round(Usage.now().others_since(before), 2)
    write_figures(
        arguments.output,
        {
            **describe_origin("bench.plan", None, [1]),
            "rounds": rounds,
            "othersShare": others_share,
            "seconds": seconds,
            "referenceSeconds": reference_seconds,
        },
    )
    for name, samples in reference_seconds.items():
        middle = statistics.median(samples)
        print(
            f"{name:30} {statistics.median(seconds[name]):5.2f} s   reference {middle:5.2f} s "
            f"({min(samples):.2f}–{max(samples):.2f})  {middle / empty:5.2f} × imports alone"
        )
    return 0


def lanes(folder: Path) -> dict[str, list[str]]:
    """Return the command of each lane; its files are written to a folder."""
    quota, jobs, few = folder / "q.json", folder / "j.json", folder / "few.json"
    quota.write_text(json.dumps({"queues": _queues()}), encoding="utf-8")
    jobs.write_text(json.dumps({"jobs": _jobs(JOBS)}), encoding="utf-8")
    few.write_text(json.dumps({"jobs": _jobs(2)}), encoding="utf-8")
    command = [sys.executable, "-m", "evenkeel_cli.main", "plan", "-q", str(quota), "-o", "json", "-j"]
    return {
        "imports alone": [sys.executable, "-c", _EMPTY],
        "--help": [*command[:3], "--help"],
        "plan --help": [*command[:4], "--help"],
        "status, to its first byte": [*command[:3], "status"],
        "jobs ls, to its first byte": [*command[:3], "jobs", "ls"],
        "2 jobs": [*command, str(few)],
        **{f"{JOBS} jobs, {name}": [*command, str(jobs), "--profile", name] for name in ("kueue", "evenkeel")},
    }


def _seconds_to_first_byte(command: list[str]) -> float:
    """Return the processor seconds that a command uses before an API on loopback receives its first byte."""
    with socket.create_server(("127.0.0.1", 0)) as api:
        url = f"http://127.0.0.1:{api.getsockname()[1]}/v1"
        settings = {"EVENKEEL_URL": url, "EVENKEEL_FLEET": "bench", "AWS_REGION": "us-west-2"}
        keys = {"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "none", "NO_PROXY": "127.0.0.1"}
        process = subprocess.Popen(
            command, env=os.environ | settings | keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        connection, _ = api.accept()
        with connection:
            connection.recv(1)
            process.kill()
            _, _, used = os.wait4(process.pid, 0)
            process.returncode = 0
    return used.ru_utime + used.ru_stime


def processor_seconds(command: list[str]) -> float:
    """Run a command, and return its processor seconds."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def _queues() -> list[dict[str, Any]]:
    quotas = {
        "p5": {"nvidia.com/gpu": 64, "cpu": 1536, "memory": "8Ti"},
        "p4d": {"nvidia.com/gpu": 32, "cpu": 768, "memory": "4Ti"},
    }
    preemption = {"within": "LowerPriority", "reclaim": "Any"}
    return [
        {"name": f"q{number}", "cohort": f"c{number % 5}", "groups": [quotas], "preemption": preemption}
        for number in range(QUEUES)
    ]


def _jobs(count: int) -> list[dict[str, Any]]:
    dice = random.Random(1)
    return [
        {
            "name": f"j{number}",
            "queue": f"q{dice.randrange(QUEUES)}",
            "priority": dice.choice([0, 0, 10, 100]),
            "createdAt": number,
            "count": dice.choice([1, 1, 2, 4]),
            "requests": {
                "nvidia.com/gpu": dice.choice([1, 2, 4, 8]),
                "cpu": dice.choice([8, 96]),
                "memory": dice.choice(["64Gi", "1Ti"]),
            },
        }
        for number in range(count)
    ]


if __name__ == "__main__":
    sys.exit(main())
