"""`python -m bench.admissions`: durable admissions per second, as a ratio to a fixed bare loop of transactions.

    cycle   schedule_jobs.run until every job is admitted: it reads, decides, and commits each admission with its record
    bare    TransactWriteItems alone: the same jobs, with the transactions of an earlier build (`fixed_admissions.py`)
    rows    TransactWriteItems alone: the transactions that a cycle of this build sends, recorded before

The work of the bare loop is fixed. So smaller rows of a cycle make the ratio better, and not the bare loop faster.
The lane `rows` reads nothing and decides nothing. So it bounds the ratio of every cycle that stores these rows.

The tables are in DynamoDB on the local engine, with IAM; nodes and workflows are in-memory fakes. Each writer is a
process of its own. Every commit of both lanes requires the current version of the quota-tree row. If that version
changed, the bare loop reads it and writes again; a cycle also decides again. The lanes alternate, on new tables.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
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

from bench import fixed_admissions
from bench.cpu_usage import Usage
from bench.figures import ratio
from bench.origin import describe_origin, write_figures
from evenkeel.adapters import aws
from evenkeel.adapters.dynamo_ledger import CLIENT, DynamoLedger
from evenkeel.adapters.system import RandomIds
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.values import Value
from evenkeel.ports import Put, Table, every
from evenkeel.runtime import wiring
from evenkeel.services.admin import set_quotas
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.tables import job_rows, quota_rows
from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, create_deployer, make_user
from tests.contract.test_ledger import make_tables
from tests.unit.services_jobs.job_scenario import JobScenario

AIMS: Final = {1: 0.65, 4: 0.5}
"""Number of writers → smallest ratio."""
TEAMS: Final = ("red", "blue", "green")
GPUS: Final = 8
WRITERS: Final = tuple(AIMS)
LANES: Final = ("cycle", "bare", "rows")
COMPARED: Final = ("cycle", "bare")
"""The lanes of the ratio, without its bound."""
_START_TIMEOUT_SECONDS: Final = 120.0


class AdmissionReport(Value):
    """Result of one number of writers."""

    writers: int
    admissions: int
    """Per round and lane."""
    transactions: int
    items: int
    """Number of items in all transactions of one writer's cycles."""
    bytes: int
    """Size of these items, as DynamoDB counts them."""
    seconds: dict[str, tuple[float, ...]]
    """By lane, a value per round."""
    others: float = 0.0
    """Share of all processors that other programs used."""

    def per_second(self, lane: str) -> float:
        """Return admissions per second, at the median."""
        return self.admissions / statistics.median(self.seconds[lane])

    def figures(self) -> dict[str, Any]:
        """Return the figures, and the cycle's rate divided by the bare loop's rate: above 1 the cycle is faster."""
        # Both lanes admit the same number of jobs, so the ratio of rates is the inverse ratio of seconds.
        lane_ratio = ratio(self.seconds["bare"], self.seconds["cycle"])
        return {
            "writers": self.writers,
            "admissions": self.admissions,
            "transactions": self.transactions,
            "items": self.items,
            "itemsPerAdmission": round(self.items / self.admissions, 2),
            "bytesPerAdmission": round(self.bytes / self.admissions),
            "rounds": len(self.seconds["cycle"]),
            "ratio": round(lane_ratio.p50, 3),
            "low": round(lane_ratio.p50_low, 3),
            "high": round(lane_ratio.p50_high, 3),
            "perSecond": {lane: round(self.per_second(lane), 1) for lane in self.seconds},
            **self._bound(),
        }

    def _bound(self) -> dict[str, Any]:
        """Return the ratio of a writer that only sends the transactions of a cycle; nothing if it was not measured."""
        if "rows" not in self.seconds:
            return {}
        bound = ratio(self.seconds["bare"], self.seconds["rows"])
        milliseconds = {
            lane: round(1000 * statistics.median(self.seconds[lane]) / self.admissions, 3) for lane in self.seconds
        }
        return {
            "bound": {"ratio": round(bound.p50, 3), "low": round(bound.p50_low, 3), "high": round(bound.p50_high, 3)},
            "millisecondsPerAdmission": milliseconds,
        }


# ---------------------------------------------------------------- a writer, in its own process


@dataclass
class _Recorder:
    """A DynamoDB client that records the transactions that admit a job."""

    client: Any
    seen: list[list[dict[str, Any]]] = field(default_factory=list)
    done_at: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def transact_write_items(self, **request: Any) -> Any:
        answer = self.client.transact_write_items(**request)
        if any(_is_charge(write_item) for write_item in request["TransactItems"]):
            self.seen.append(request["TransactItems"])
            self.done_at = time.monotonic()
        return answer


def _is_charge(item: dict[str, Any]) -> bool:
    return bool(item.get("Put", {}).get("Item", {}).get("sk", {}).get("S", "").startswith("CHARGE#"))


_START: Barrier


def _prepare_process(barrier: Barrier) -> None:
    """Prepare a process of the pool as the first call of a function does."""
    global _START  # noqa: PLW0603 - each process of the pool receives its barrier when it starts
    _START = barrier
    wiring.collect_less_garbage()


@dataclass(frozen=True)
class _Task:
    """Work of one process: the transactions to send."""

    credentials: Credentials
    prefix: str
    nodes: int = 0
    transactions: Sequence[list[dict[str, Any]]] = ()
    has_cycle_rows: bool = False
    """Whether a cycle sent these transactions before. If so, the process uses the client of a cycle."""


def _names(prefix: str) -> dict[Table, str]:
    return {table: f"{prefix}-{table.lower()}" for table in Table}


def _run_cycles(task: _Task) -> tuple[float, float, list[list[dict[str, Any]]]]:
    """Run cycles until no job is pending; return the start, the time of the last admission, and the transactions."""
    client = _Recorder(_ledger_client(task.credentials))
    scenario = JobScenario(size=task.nodes)
    world = scenario.world
    ledger = DynamoLedger(_names(task.prefix), client)

    def run() -> schedule_jobs.ScheduleJobsResult:
        return schedule_jobs.run(
            scenario.context(
                ledger=ledger,
                cluster=world.cluster,
                workflows=world.workflows,
                ids=RandomIds(),
                clusters=(next(iter(world.cluster.by_name))[0],),
            )
        )

    client.get_item(TableName=_names(task.prefix)[Table.QUOTAS], Key=_quota_tree_row())  # opens the connection
    _START.wait(_START_TIMEOUT_SECONDS)
    began = time.monotonic()
    run()
    while ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows:
        run()
    return began, client.done_at, client.seen


def _ledger_client(credentials: Credentials) -> Any:
    """Return the client with which a function reads and writes the ledger."""
    os.environ.update(credentials.environment())
    return aws.client("dynamodb", CLIENT)


def _quota_tree_row() -> dict[str, Any]:
    key = quota_rows.tree_key()
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}}


def _run_bare_loop(task: _Task) -> tuple[float, float, list[list[dict[str, Any]]]]:
    """Send the transactions in order; each requires the current version of the quota tree."""
    client = (
        _ledger_client(task.credentials)
        if task.has_cycle_rows
        else task.credentials.client("dynamodb", config=aws.READS_AND_IDEMPOTENT_WRITES)
    )
    quotas = _names(task.prefix)[Table.QUOTAS]

    def version() -> int:
        response = client.get_item(TableName=quotas, Key=_quota_tree_row(), ConsistentRead=True)
        return int(response["Item"]["version"]["N"])

    tree_version = version()
    _START.wait(_START_TIMEOUT_SECONDS)
    began = time.monotonic()
    for transaction in task.transactions:
        while True:
            try:
                client.transact_write_items(TransactItems=held_to(transaction, tree_version))
            except ClientError as error:
                if aws.code_of(error) != "TransactionCanceledException":
                    raise
                tree_version = version()  # another writer committed first
            else:
                tree_version += 1
                break
    return began, time.monotonic(), []


def held_to(transaction: Sequence[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    """Return a transaction that requires this version of the quota-tree row, and raises it."""
    tree = _quota_tree_row()
    writes = []
    for item in transaction:
        put = item.get("Put", {})
        if {name: put.get("Item", {}).get(name) for name in tree} == tree:
            raised = {**put["Item"], "version": {"N": str(version + 1)}}
            values = {**put["ExpressionAttributeValues"], ":version": {"N": str(version)}}
            writes.append({"Put": {**put, "Item": raised, "ExpressionAttributeValues": values}})
        else:
            writes.append(item)
    return writes


def on_tables(transactions: Sequence[list[dict[str, Any]]], prefix: str) -> list[list[dict[str, Any]]]:
    """Return recorded transactions for the tables of another round. All rounds have the same jobs."""
    return [
        [
            {action: {**request, "TableName": f"{prefix}-{request['TableName'].rpartition('-')[2]}"}}
            for item in transaction
            for action, request in item.items()
        ]
        for transaction in transactions
    ]


# ---------------------------------------------------------------- rounds


def _a_queue(credentials: Credentials, prefix: str, jobs: int) -> int:
    """Create teams and their pending jobs on new tables; return the number of nodes of the fleet."""
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
        for queue_part in parts:
            request = set_quotas.SetQuotasRequest(
                part=queue_part, expected=0, by="role/Platform", reason="A benchmark."
            )
            set_quotas.run(request, scenario.context(ledger=where, now=now))
    # A cycle submits no jobs: they are submitted in memory, and their rows are stored a hundred at a time.
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
        ledger.commit(*(Put(job_rows.job_row(job, 0)) for job in waiting[start : start + 100]))
    return nodes


@dataclass
class _AdmissionBench:
    """A benchmark of admissions: its settings, and the recorded transactions."""

    credentials: Credentials
    pools: dict[int, ProcessPoolExecutor]
    jobs: int = fixed_admissions.ADMISSIONS
    recorded: list[list[dict[str, Any]]] = field(default_factory=list)
    """The transactions of one writer's cycles."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def time_round(self, lane: str, writers: int) -> float:
        """Run one lane of a round; return the seconds from its first read or write to its last admission."""
        prefix = f"round{next(self.numbers)}"
        nodes = _a_queue(self.credentials, prefix, self.jobs)
        if lane == "cycle":
            tasks = [_Task(self.credentials, prefix, nodes)] * writers
            ran = list(self.pools[writers].map(_run_cycles, tasks))
            self.recorded = self.recorded or [documents for _, _, task_documents in ran for documents in task_documents]
        else:
            transactions = (
                on_tables(self.recorded, prefix)
                if lane == "rows"
                else fixed_admissions.transactions(self._pending(prefix), prefix)
            )
            tasks = [
                _Task(self.credentials, prefix, 0, transactions[first::writers], lane == "rows")
                for first in range(writers)
            ]
            ran = list(self.pools[writers].map(_run_bare_loop, tasks))
        self._check(prefix)
        return max(ended for _, ended, _ in ran) - min(began for began, _, _ in ran)

    def _pending(self, prefix: str) -> list[str]:
        """Return the pending jobs of a round."""
        ledger = DynamoLedger(_names(prefix), self.credentials.client("dynamodb"))
        pending = every(lambda cursor: ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", cursor=cursor))
        return [str(row.doc["jobId"]) for row in pending]

    def _check(self, prefix: str) -> None:
        """Check that every job was admitted exactly once; otherwise the figure is meaningless.

        Raises:
            RuntimeError: A job has no charge, or is still pending.
        """
        ledger = DynamoLedger(_names(prefix), self.credentials.client("dynamodb"))
        tree = quota_rows.tree_key()
        charges = len(ledger.partition(tree.table, tree.pk, "CHARGE#"))
        waiting = ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows
        if charges != self.jobs or waiting:
            raise RuntimeError(
                f"{charges} of {self.jobs} jobs have a charge, and {'some are' if waiting else 'none is'} pending; "
                "every job must have one charge and none be pending"
            )


@contextmanager
def _pools() -> Iterator[dict[int, ProcessPoolExecutor]]:
    spawn = multiprocessing.get_context("spawn")
    pools = {
        writers: ProcessPoolExecutor(writers, spawn, initializer=_prepare_process, initargs=(spawn.Barrier(writers),))
        for writers in WRITERS
    }
    try:
        yield pools
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)


def run(rounds: int, writers: Sequence[int] = WRITERS, lanes: Sequence[str] = COMPARED) -> list[AdmissionReport]:
    """Measure each lane with each number of writers, alternately. The first lane records the transactions."""
    with tempfile.TemporaryDirectory() as folder, Engine.start(Path(folder)) as engine, _pools() as pools:
        statement = {"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*"}
        bench = _AdmissionBench(make_user(create_deployer(engine), "bench", [statement]), pools)
        runs = [(lane, number) for number in writers for lane in lanes]
        for lane_run in runs:  # starts the processes, warms the code and records the transactions
            bench.time_round(*lane_run)
        seconds: dict[tuple[str, int], list[float]] = {lane_run: [] for lane_run in runs}
        before = Usage.now()
        for number in range(rounds):
            for lane_run in runs[number % len(runs) :] + runs[: number % len(runs)]:
                seconds[lane_run].append(bench.time_round(*lane_run))
            print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        others_share = Usage.now().others_since(before)
    return [
        AdmissionReport(
            writers=number,
            admissions=bench.jobs,
            transactions=len(bench.recorded),
            items=sum(map(len, bench.recorded)),
            bytes=sum(_item_bytes(item) for transaction in bench.recorded for item in transaction),
            seconds={lane: tuple(seconds[lane, number]) for lane in lanes},
            others=round(others_share, 2),
        )
        for number in writers
    ]


def _item_bytes(item: dict[str, Any]) -> int:
    """Return the bytes of a stored item: names and values."""
    ((_, request),) = item.items()
    stored = request.get("Item") or request["Key"]
    return sum(len(name) + sum(map(len, value.values())) for name, value in stored.items())


# ---------------------------------------------------------------- the command


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; write the figures as JSON. Return 0 if the aim is met, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.admissions", description="Durable admissions per second, against a bare loop of the same."
    )
    parser.add_argument("--rounds", type=int, default=8, help="measured rounds of every lane (default 8)")
    parser.add_argument("--output", type=Path, help="file to write the figures to, as JSON")
    arguments = parser.parse_args(words)
    reports = run(arguments.rounds, lanes=LANES)
    figures = [report.figures() for report in reports]
    print("\n".join(report_lines(figures)))
    print(f"\nOther programs used {reports[0].others:.0%} of the processors meanwhile.")
    others_share = reports[0].others
    aims = {str(number): aim for number, aim in AIMS.items()}
    document = {
        **describe_origin("bench.admissions", words, []),
        "aims": aims,
        "othersShare": others_share,
        "lanes": figures,
    }
    write_figures(arguments.output, document)
    return 0 if all(figure["ratio"] >= AIMS[figure["writers"]] for figure in figures) else 1


def report_lines(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Return the report as lines."""
    first = figures[0]
    title = (
        f"DURABLE ADMISSIONS, {first['rounds']} rounds of {first['admissions']} each: "
        f"{first['transactions']} transactions, "
        f"{first['itemsPerAdmission']} items and {first['bytesPerAdmission']} bytes each"
    )
    lines = [
        "",
        title,
        "",
        f"  {'writers':>7}{'cycle / bare':>13}{'95 % interval':>17}{'cycle/s':>9}{'bare/s':>9}{'aim':>8}",
    ]
    for figure in figures:
        met = "met" if figure["ratio"] >= AIMS[figure["writers"]] else "MISSED"
        interval = f"{figure['low']:.2f} – {figure['high']:.2f}"
        lines.append(
            f"  {figure['writers']:>7}{figure['ratio']:>13.2f}{interval:>17}"
            f"{figure['perSecond']['cycle']:>9.1f}{figure['perSecond']['bare']:>9.1f}{met:>8}"
        )
    for figure in figures:
        if "bound" in figure:
            bound = figure["bound"]
            lines.insert(
                -len(figures),
                f"  {figure['writers']:>7}{bound['ratio']:>13.2f}{bound['low']:>9.2f} – {bound['high']:.2f}"
                f"{figure['perSecond']['rows']:>9.1f}  the same rows without reading and deciding",
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
