"""In-memory fakes of every port; whole recoveries run on them without a cloud."""

from tests.fakes.checkpoints import InMemoryCheckpoints
from tests.fakes.cluster import FakeCluster, a_node
from tests.fakes.crashes import Crash, CrashingLedger, CrashPlan, crashing
from tests.fakes.ledger import InMemoryLedger
from tests.fakes.messages import (
    InMemoryDeadLetters,
    InMemoryRawEvents,
    RecordingCycleRequests,
    RecordingOnCall,
    RecordingWaitAnswerRequests,
)
from tests.fakes.provider import FakeProvider, a_provider_node
from tests.fakes.system import FixedClock, RecordingTelemetry, SequenceIds
from tests.fakes.workflows import RecordingTaskTokens, RecordingWorkflows
from tests.fakes.world import FakeWorld, a_context

__all__ = [
    "Crash",
    "CrashPlan",
    "CrashingLedger",
    "FakeCluster",
    "FakeProvider",
    "FakeWorld",
    "FixedClock",
    "InMemoryCheckpoints",
    "InMemoryDeadLetters",
    "InMemoryLedger",
    "InMemoryRawEvents",
    "RecordingCycleRequests",
    "RecordingOnCall",
    "RecordingTaskTokens",
    "RecordingTelemetry",
    "RecordingWaitAnswerRequests",
    "RecordingWorkflows",
    "SequenceIds",
    "a_context",
    "a_node",
    "a_provider_node",
    "crashing",
]
