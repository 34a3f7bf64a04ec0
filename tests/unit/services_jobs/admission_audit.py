"""A replay of all commits that compares every admission with the limits at its time."""

from collections import Counter
from collections.abc import Iterable, Iterator

from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.objects import Admitted, Workload
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.ports import Delete, Put, Write
from evenkeel.services.tables import quota_rows, rows
from tests.kueue_checker import overcommitted


def broken_limits(commits: Iterable[tuple[Write, ...]], setup: TeamSetup, seats_per_node: int) -> Iterator[str]:
    """Yield each broken limit, and each node that was assigned twice, at any version of the quota tree."""
    held: dict[str, Charge] = {}
    last = 0
    for writes in commits:
        for write in writes:
            if isinstance(write, Put) and write.row.key.sk.startswith("CHARGE#"):
                charge = rows.decode(write.row, Charge)
                if not charge.is_live:
                    del held[write.row.key.sk]
                    continue
                if write.row.key.sk in held:
                    yield f"{write.row.key.sk} is charged twice"
                held[write.row.key.sk] = charge
            if isinstance(write, Delete) and write.key.sk.startswith("CHARGE#"):
                held.pop(write.key.sk, None)  # a charge that was released before it was deleted
        versions = [
            write.row.version for write in writes if isinstance(write, Put) and write.row.key == quota_rows.tree_key()
        ]
        if versions:
            if versions[0] < last:
                yield f"the tree went from version {last} back to {versions[0]}"
            last = versions[0] + 1
            yield from (f"version {last}: {fault}" for fault in exceeded_limits(held.values(), setup, seats_per_node))


def exceeded_limits(charges: Iterable[Charge], setup: TeamSetup, seats_per_node: int) -> Iterator[str]:
    queues = setup.scheduler_declarations
    admitted = []
    nodes: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    for charge in charges:
        use = {(flavor, name): amount for flavor, amounts in charge.use.items() for name, amount in amounts.items()}
        admitted.append(Admitted(Workload(charge.job_id, charge.queue, ()), (), (), use=use))
        nodes.update(dict.fromkeys(charge.node_names, charge.accelerators // len(charge.node_names)))
        jobs[charge.job_id] += 1
    yield from overcommitted(queues.queues, queues.cohorts, admitted)
    yield from (f"{name} has {count} of {seats_per_node}" for name, count in nodes.items() if count > seats_per_node)
    yield from (f"{name} is started {count} times" for name, count in jobs.items() if count > 1)
