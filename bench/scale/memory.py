"""Peak memory of an invocation: the service's own objects, and the lists that its clients read.

The own peak is traced while the service runs on in-memory ports. Fakes return their node objects without a copy. So the
objects of the adapter are added: the objects of earlier lists, and the peak of the longest list.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.scale.client_costs import ListMemory, MeasuredClients
from bench.scale.model import Invocation, Step, flatten

_PAGE: Final = 500


def peak_bytes(run: Callable[[], object], invocations: Sequence[Invocation], clients: MeasuredClients) -> int:
    """Run once more under a trace, and return the peak of its last invocation without the base of the function."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        own_bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return int(own_bytes + client_peak([*flatten(invocations[-1].trace)], clients.memory))


def client_peak(steps: Sequence[Step], memory: Mapping[str, ListMemory]) -> float:
    """Return the peak that the lists of the clients add to the objects of earlier lists."""
    objects: dict[str, int] = defaultdict(int)
    for step in steps:
        if step.call is not None and step.call.api in memory:
            objects[step.call.api] += step.call.items
    kept_bytes = peak = 0.0
    for api, count in objects.items():
        # A list that is read twice is kept twice, but the peak holds only one copy; the sum is an upper bound.
        peak = max(peak, kept_bytes + memory[api].peak(count))
        kept_bytes += memory[api].kept * count
    return peak
