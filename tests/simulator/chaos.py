"""Faults at the calls of every port, drawn from the seed. None of them is a fault of the service."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from evenkeel import ports
from evenkeel.ports import Throttled, Unreachable
from tests.fakes.crashes import Crash
from tests.simulator.event_loop import VirtualTimeLoop

PORTS: dict[str, type] = {
    "ledger": ports.Ledger,
    "cluster": ports.Cluster,
    "provider": ports.Provider,
    "checkpoints": ports.CheckpointStore,
    "workflows": ports.Workflows,
    "task_tokens": ports.TaskTokens,
    "wait_answers": ports.WaitAnswerRequests,
    "cycle_requests": ports.CycleRequests,
    "on_call": ports.OnCall,
    "raw_events": ports.RawEvents,
    "inbox": ports.Inbox,
    "dead_letters": ports.DeadLetters,
}
"""The ports through which services act."""
READS = {
    "ledger": {"get", "batch_get", "partition", "by_state"},
    "cluster": {
        *(
            "nodes",
            "node",
            "workload",
            "workloads",
            "resources_in_use",
            "pods_in_use",
            "live_pods",
            "pods",
            "check_result",
            "logs",
            "log_tails",
        ),
        *("watch", "node_claims", "latest_capacity_refusal"),
    },
    "provider": {"nodes", "node", "cluster", "training_plan"},
    "checkpoints": {"folders", "contents", "read", "fence"},
    "workflows": {"state"},
}
"""Calls that only read. All other calls of a port are effects."""
READ_FAULTS = ("throttled", "unreachable", "crash", "pause", "pause")
EFFECT_FAULTS = ("throttled", "unreachable", "lost", "lost", "before", "after", "after", "pause")
_LONGEST_STACK = 3
"""Number of paused processes that may wait for events of other processes at the same time."""


class Chaos:
    """Decides for each call whether it fails, and how. Makes no faults until `rate` is set."""

    def __init__(
        self, rng: random.Random, loop: VirtualTimeLoop, log: Callable[[str], None], counts: Counter[str]
    ) -> None:
        self.rng = rng
        self.loop = loop
        self.log = log
        self.seen = counts
        self.away: set[str] = set()
        """Ports that do not answer at present."""
        self.rate = 0.0
        """Share of calls that fail."""
        self.injected_failures = 0
        """Number of faults so far: two equal counts mean no fault in between."""
        self._paused = 0
        self._around: list[FaultyPort] = []

    def wrap(self, name: str, port: Any) -> Any:
        """Return a port whose calls may fail."""
        hostile = FaultyPort(self, name, port)
        self._around.append(hostile)
        return hostile

    def stop_faults(self) -> None:
        """Stop all faults."""
        self.rate = 0.0
        self.away.clear()
        for hostile in self._around:
            hostile.stop_faults()

    def should_fail(self, scale: float = 1.0) -> bool:
        """Return whether this call fails."""
        return self.rate > 0 and self.rng.random() < self.rate * scale

    def read(self, what: str, call: Callable[[], Any]) -> Any:
        kind = self.rng.choice(READ_FAULTS)
        self.seen[f"read {kind}"] += 1
        match kind:
            case "throttled":
                self._record_fault(f"{what} is throttled")
                raise Throttled(what)
            case "unreachable":
                self._record_fault(f"{what} gets no answer")
                raise Unreachable(what)
            case "crash":
                self._record_fault(f"the process dies before {what}")
                raise Crash(what)
            case _:
                result = call()
                self.pause(what)
                return result

    def effect(self, what: str, call: Callable[[], Any]) -> Any:
        kind = self.rng.choice(EFFECT_FAULTS)
        self.seen[f"effect {kind}"] += 1
        match kind:
            case "throttled":
                self._record_fault(f"{what} is throttled")
                raise Throttled(what)
            case "unreachable":
                self._record_fault(f"{what} does not arrive")
                raise Unreachable(what)
            case "lost":
                call()
                self._record_fault(f"{what} takes effect, its reply is lost")
                raise Unreachable(what)
            case "before":
                self._record_fault(f"the process dies before {what}")
                raise Crash(what)
            case "after":
                call()
                self._record_fault(f"the process dies after {what}")
                raise Crash(what)
            case _:
                self.pause(what)
                return call()

    def pause(self, what: str, seconds: float = 0.0) -> None:
        """Run other events while this process is paused, for a given or a random time."""
        if self._paused >= _LONGEST_STACK:
            return
        seconds = seconds or self.rng.choice((0.2, 1.0, 3.0, 12.0))
        self._record_fault(f"the process pauses {seconds:g} s at {what}")
        self._paused += 1
        try:
            self.loop.run(self.loop.seconds + seconds)
        finally:
            self._paused -= 1

    def stop_answering(self, what: str) -> None:
        """Make a port unreachable for a while."""
        self.seen["call while away"] += 1
        self._record_fault(f"{what} gets no answer for a while")
        raise Unreachable(what)

    def _record_fault(self, text: str) -> None:
        self.injected_failures += 1
        self.log(text)


class FaultyPort:
    """A port between a service and its fake. Attributes that are no calls of the port pass through."""

    def __init__(self, chaos: Chaos, name: str, port: Any) -> None:
        self._port = port
        reads = READS.get(name, set())
        for method in (method for method in _methods(PORTS[name]) if not method.startswith("_")):
            harm, scale = (chaos.read, 0.15) if method in reads else (chaos.effect, 1.0)
            setattr(self, method, _with_faults(chaos, name, method, getattr(port, method), harm, scale))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def stop_faults(self) -> None:
        """Disable the faults: every call goes straight to its port."""
        for method in [method_name for method_name in vars(self) if not method_name.startswith("_")]:
            setattr(self, method, getattr(self._port, method))


def _methods(port: type) -> dict[str, Any]:
    """Return the methods that a port declares, and of the ports that it extends."""
    parts = [part for part in port.__mro__ if part.__module__.startswith(f"{ports.__name__}.")]
    return {name: member for part in parts for name, member in vars(part).items()}


def _with_faults(
    chaos: Chaos, port: str, method: str, member: Callable[..., Any], harm: Callable[..., Any], scale: float
) -> Callable[..., Any]:
    what = f"{port}.{method}"

    def call(*args: Any, **kwargs: Any) -> Any:
        if port in chaos.away:
            chaos.stop_answering(what)
        if chaos.rate and chaos.should_fail(scale):
            return harm(what, lambda: member(*args, **kwargs))
        return member(*args, **kwargs)

    return call
