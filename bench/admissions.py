"""`python -m bench.admissions`: durable admissions a second, as a ratio to a bare loop of the same transactions.

    pass    schedule_jobs.run until every job is in: it reads, decides, and commits each admission with its whole record
    bare    TransactWriteItems alone: the same items, sizes and conditions, put together beforehand

The tables are DynamoDB's on the local engine, with IAM; machines and workflows are twins in memory. Each writer is a
process of its own. Both lanes hold every commit to the version of the one row of the tree: whoever loses reads it and
tries again, which for a pass means that it decides again. The lanes take turns, in changing order, on tables made anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any, Final

from botocore.exceptions import ClientError

from bench.cpu_usage import Usage
from bench.figures import ratio
from evenkeel.adapters import aws
from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.adapters.system import RandomIds
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.values import Value
from evenkeel.ports import Put, Table
from evenkeel.services.admin import set_quotas
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.storage import rows
from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, bootstrap, make_user
from tests.contract.test_ledger import make_tables
from tests.unit.services_jobs.job_scenario import JobScenario

AIM: Final = 0.5
TEAMS: Final = ("red", "blue", "green")
GPUS: Final = 8
WRITERS: Final = (1, 4)
LANES: Final = ("pass", "bare")
_PATIENCE_SECONDS: Final = 120.0


class AdmissionReport(Value):
    """What one number of writers came to."""

    writers: int
    admissions: int
    """A round and lane."""
    transactions: int
    items: int
    """Of all of a lane's transactions."""
    bytes: int
    """Of what they hold, as JSON."""
    seconds: dict[str, tuple[float, ...]]
    """By lane, one a round."""
    others: float = 0.0

    def per_second(self, lane: str) -> float:
        """Return admissions a second, at the median."""
        return self.admissions / statistics.median(self.seconds[lane])

    def figures(self) -> dict[str, Any]:
        """Return the pass's rate over the bare loop's: above 1 the pass would be quicker."""
        # Both lanes admit as many: rates are as the inverse of seconds.
        seen = ratio(self.seconds["bare"], self.seconds["pass"])
        return {
            "writers": self.writers,
            "admissions": self.admissions,
            "transactions": self.transactions,
            "items": self.items,
            "kilobytes": round(self.bytes / 1000),
            "rounds": len(self.seconds["pass"]),
            "ratio": round(seen.p50, 3),
            "low": round(seen.p50_low, 3),
            "high": round(seen.p50_high, 3),
            "perSecond": {lane: round(self.per_second(lane), 1) for lane in LANES},
        }


# ---------------------------------------------------------------- one writer, in a process of its own


@dataclass
class _Recorder:
    """A client of DynamoDB that remembers the transactions in which somebody is admitted."""

    client: Any
    seen: list[list[dict[str, Any]]] = field(default_factory=list)
    done_at: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def transact_write_items(self, **request: Any) -> Any:
        answer = self.client.transact_write_items(**request)
        if any(_is_charge(each) for each in request["TransactItems"]):
            self.seen.append(request["TransactItems"])
            self.done_at = time.monotonic()
        return answer


def _is_charge(item: dict[str, Any]) -> bool:
    return bool(item.get("Put", {}).get("Item", {}).get("sk", {}).get("S", "").startswith("CHARGE#"))


_START: Barrier


def _meet(barrier: Barrier) -> None:
    global _START  # noqa: PLW0603 - a process of the pool has one, handed over when it begins
    _START = barrier


@dataclass(frozen=True)
class _Task:
    credentials: Credentials
    prefix: str
    nodes: int = 0
    transactions: Sequence[list[dict[str, Any]]] = ()


def _names(prefix: str) -> dict[Table, str]:
    return {table: f"{prefix}-{table.lower()}" for table in Table}


def _pass(task: _Task) -> tuple[float, float, list[list[dict[str, Any]]]]:
    """Run passes until nobody waits; return when it began, when its last admission was in, and what it committed."""
    client = _Recorder(task.credentials.client("dynamodb", config=aws.READS_AND_IDEMPOTENT_WRITES))
    scenario = JobScenario(size=task.nodes)
    world = scenario.world
    ledger = DynamoLedger(_names(task.prefix), client)

    def run() -> schedule_jobs.Outcome:
        return schedule_jobs.run(
            scenario.context(
                ledger=ledger,
                cluster=world.cluster,
                workflows=world.workflows,
                ids=RandomIds(),
                clusters=(next(iter(world.cluster.by_name))[0],),
            )
        )

    client.get_item(TableName=_names(task.prefix)[Table.QUOTAS], Key=_tree())  # the connection stands
    _START.wait(_PATIENCE_SECONDS)
    began = time.monotonic()
    while ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows:
        run()
    return began, client.done_at, client.seen


def _tree() -> dict[str, Any]:
    key = rows.tree_key()
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}


def _bare(task: _Task) -> tuple[float, float, list[list[dict[str, Any]]]]:
    """Send transactions one after the other, each held to the version of the tree."""
    client = task.credentials.client("dynamodb", config=aws.READS_AND_IDEMPOTENT_WRITES)
    quotas = _names(task.prefix)[Table.QUOTAS]

    def version() -> int:
        found = client.get_item(TableName=quotas, Key=_tree(), ConsistentRead=True)
        return int(found["Item"]["version"]["N"])

    at = version()
    _START.wait(_PATIENCE_SECONDS)
    began = time.monotonic()
    for transaction in task.transactions:
        while True:
            try:
                client.transact_write_items(TransactItems=held_to(transaction, at))
            except ClientError as error:
                if aws.code_of(error) != "TransactionCanceledException":
                    raise
                at = version()  # somebody was first
            else:
                at += 1
                break
    return began, time.monotonic(), []


def held_to(transaction: Sequence[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    """Return a transaction whose row of the tree is held to a version, and raises it."""
    tree = _tree()
    found = []
    for item in transaction:
        put = item.get("Put", {})
        if {name: put.get("Item", {}).get(name) for name in tree} == tree:
            raised = {**put["Item"], "version": {"N": str(version + 1)}}
            values = {**put["ExpressionAttributeValues"], ":version": {"N": str(version)}}
            found.append({"Put": {**put, "Item": raised, "ExpressionAttributeValues": values}})
        else:
            found.append(item)
    return found


def moved(transaction: Sequence[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Return a transaction on the tables of another round."""
    return [
        {kind: {**body, "TableName": f"{prefix}-{body['TableName'].rpartition('-')[2]}"} for kind, body in item.items()}
        for item in transaction
    ]


# ---------------------------------------------------------------- rounds


def _a_queue(credentials: Credentials, prefix: str, jobs: int) -> int:
    """Set up teams and their waiting jobs on tables of their own; return how many nodes the fleet has."""
    ledger = make_tables(credentials.client("dynamodb"), prefix)
    nodes = jobs * 2
    scenario = JobScenario(size=nodes)
    now = scenario.world.clock.now()
    parts: list[Team | FleetQuotas] = [FleetQuotas(priority_classes={"low": 1, "high": 10})]
    parts += [
        Team.model_validate(
            {
                "name": name,
                "namespace": name,
                "members": [{"principal": "arn:aws:iam::111122223333:role/ana"}],
                "queue": {
                    "cohort": "fleet",
                    "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": nodes // len(TEAMS) * GPUS}}],
                    "preemption": {"within": "LowerPriority", "reclaim": "Any"},
                },
            }
        )
        for name in TEAMS
    ]
    for where in (ledger, scenario.ledger):
        for part in parts:
            request = set_quotas.Request(part=part, expected=0, by="role/Platform", reason="A benchmark.")
            set_quotas.run(request, scenario.context(ledger=where, now=now))
    # Submission is none of a pass's work: jobs are submitted in memory, and their rows stored a hundred at a time.
    waiting = [
        scenario.submit(
            f"key-{number}",
            team=TEAMS[number % len(TEAMS)],
            nodes=1 + number % 2,
            priority_class=("low", "high")[number // 7 % 2],
        )
        for number in range(jobs)
    ]
    for start in range(0, jobs, 100):
        ledger.commit(*(Put(rows.job_row(job, 0)) for job in waiting[start : start + 100]))
    return nodes


@dataclass
class _AdmissionBench:
    credentials: Credentials
    jobs: int
    pools: dict[int, ProcessPoolExecutor]
    recorded: list[list[dict[str, Any]]] = field(default_factory=list)
    """The transactions of one writer's passes: what the bare loop sends."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def take(self, lane: str, writers: int) -> float:
        """Run one lane once; return the seconds from the first look or write to the last admission that is in."""
        prefix = f"round{next(self.numbers)}"
        nodes = _a_queue(self.credentials, prefix, self.jobs)
        if lane == "pass":
            tasks = [_Task(self.credentials, prefix, nodes)] * writers
            ran = list(self.pools[writers].map(_pass, tasks))
            self.recorded = self.recorded or [each for _, _, seen in ran for each in seen]
        else:
            mine = [moved(each, prefix) for each in self.recorded]
            tasks = [_Task(self.credentials, prefix, 0, mine[first::writers]) for first in range(writers)]
            ran = list(self.pools[writers].map(_bare, tasks))
        self._check(prefix)
        return max(ended for _, ended, _ in ran) - min(began for began, _, _ in ran)

    def _check(self, prefix: str) -> None:
        """All were admitted, once each: or the figure would be of something else."""
        ledger = DynamoLedger(_names(prefix), self.credentials.client("dynamodb"))
        tree = rows.tree_key()
        charges = len(ledger.partition(tree.table, tree.pk, "CHARGE#"))
        waiting = ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows
        if charges != self.jobs or waiting:
            raise RuntimeError(
                f"{charges} of {self.jobs} jobs hold a charge, {'some wait' if waiting else 'none waits'}"
            )


@contextmanager
def _pools() -> Iterator[dict[int, ProcessPoolExecutor]]:
    spawn = multiprocessing.get_context("spawn")
    pools = {
        writers: ProcessPoolExecutor(writers, spawn, initializer=_meet, initargs=(spawn.Barrier(writers),))
        for writers in WRITERS
    }
    try:
        yield pools
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


def run(rounds: int, jobs: int) -> list[AdmissionReport]:
    """Measure all lanes with each number of writers, in turn."""
    with tempfile.TemporaryDirectory() as folder, Engine.start(Path(folder)) as engine, _pools() as pools:
        statement = {"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*"}
        bench = _AdmissionBench(make_user(bootstrap(engine), "bench", [statement]), jobs, pools)
        turns = [(lane, writers) for writers in WRITERS for lane in LANES]
        for lane, writers in turns:  # processes are up, code is warm, and what is to be sent is known
            bench.take(lane, writers)
        seconds: dict[tuple[str, int], list[float]] = {turn: [] for turn in turns}
        before = Usage.now()
        for number in range(rounds):
            for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                seconds[turn].append(bench.take(*turn))
            print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        others = Usage.now().others_since(before)
    return [
        AdmissionReport(
            writers=writers,
            admissions=jobs,
            transactions=len(bench.recorded),
            items=sum(map(len, bench.recorded)),
            bytes=len(json.dumps(bench.recorded)),
            seconds={lane: tuple(seconds[lane, writers]) for lane in LANES},
            others=round(others, 2),
        )
        for writers in WRITERS
    ]


# ---------------------------------------------------------------- the command


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; write the figures as JSON. Return 0 if the aim is met, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.admissions", description="Durable admissions a second, against a bare loop of the same."
    )
    parser.add_argument("--rounds", type=int, default=8, help="of every lane, that count (default 8)")
    parser.add_argument("--jobs", type=int, default=120, help="admitted in a round and lane (default 120)")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    asked = parser.parse_args(words)
    reports = run(asked.rounds, asked.jobs)
    figures = [report.figures() for report in reports]
    print("\n".join(table(figures)))
    print(f"\nOther programs used {reports[0].others:.0%} of the processors meanwhile.")
    if asked.output:
        told = {"aim": AIM, "othersShare": reports[0].others, "lanes": figures}
        asked.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0 if all(each["ratio"] >= AIM for each in figures) else 1


def table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a person reads."""
    first = figures[0]
    told = (
        f"DURABLE ADMISSIONS, {first['rounds']} rounds of {first['admissions']} each: "
        f"{first['transactions']} transactions, {first['items']} items, {first['kilobytes']} kB"
    )
    lines = [
        "",
        told,
        "",
        f"  {'writers':>7}{'pass / bare':>13}{'95 % interval':>17}{'pass/s':>9}{'bare/s':>9}{'aim':>8}",
    ]
    for each in figures:
        met = "met" if each["ratio"] >= AIM else "MISSED"
        interval = f"{each['low']:.2f} – {each['high']:.2f}"
        lines.append(
            f"  {each['writers']:>7}{each['ratio']:>13.2f}{interval:>17}"
            f"{each['perSecond']['pass']:>9.1f}{each['perSecond']['bare']:>9.1f}{met:>8}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
