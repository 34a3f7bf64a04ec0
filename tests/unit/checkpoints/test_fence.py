"""The rules of the fence, and the property that the work of two attempts never mixes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evenkeel.domain import checkpoints as service_side
from evenkeel.training import layout as training_layout
from evenkeel.training import resume as training_side
from tests.unit.checkpoints.checkpoint_worlds import READERS, CheckpointWorld, ReaderAnswer, WorldStorage, at


def _point(attempt: int, step: int) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "manifest": f"attempt={attempt}/step={step:09d}/manifest.json"}


NOT_JSON = {"no text": b"\xff", "no JSON": b"{"}
UNUSABLE: dict[str, Any] = {
    "no object": 3,
    "no schema": {"attempt": 1},
    "a later schema": {"schemaVersion": 2, "attempt": 1},
    "attempt 0": {"schemaVersion": 1, "attempt": 0},
    "its own attempt in the history": {"schemaVersion": 1, "attempt": 1, "history": [{"attempt": 1}]},
    "a history out of order": {"schemaVersion": 1, "attempt": 4, "history": [{"attempt": 2}, {"attempt": 1}]},
    "pinned to itself": {"schemaVersion": 1, "attempt": 2, "resumeFrom": _point(2, 3)},
    "pinned to another key": {
        "schemaVersion": 1,
        "attempt": 2,
        "resumeFrom": {**_point(1, 3), "manifest": "attempt=1/step=000000004/m"},
    },
}


@pytest.mark.parametrize("document", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unreadable_fence_never_counts_as_no_fence(document: Any) -> None:
    with pytest.raises(service_side.FenceUnreadableError):
        service_side.parse_fence(document)
    with pytest.raises(training_layout.UnreadableError):
        training_layout.parse_fence(json.dumps(document).encode())


@pytest.mark.parametrize("content", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_invalid_fence_bytes_never_count_as_no_fence(content: bytes) -> None:
    with pytest.raises(training_layout.UnreadableError):
        training_layout.parse_fence(content)


@pytest.mark.parametrize("writer", READERS, ids=repr)
@pytest.mark.parametrize("reader", READERS, ids=repr)
def test_service_and_training_code_read_each_others_fences(writer: Any, reader: Any) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save(1, 20)
    del world.objects["attempt=1/step=000000020/shard-0-of-2.bin"]

    written_pin = writer.pin(world, 2)

    assert reader.pin(world, 2) == written_pin == ReaderAnswer((1, 10), "PROVED", ((1, 20, "SHARD_MISSING"),))


def test_fence_cannot_be_raised_to_the_same_attempt() -> None:
    choice = service_side.ResumeChoice(resume_from=None, grade=service_side.Grade.NONE, reason="")
    fence = service_side.next_fence(None, 2, choice)

    with pytest.raises(ValueError, match="attempt 2"):
        service_side.next_fence(fence, 2, choice)


def test_fence_is_read_again_if_it_rose_during_proof() -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    other_launch = WorldStorage(world)

    choice = training_side.pin(WorldStorage(world, before_raise=lambda: training_side.pin(other_launch, 2)), 3)

    assert choice.resume_from == training_layout.ResumePoint(1, 10, "attempt=1/step=000000010/manifest.json")
    fence = training_layout.parse_fence(world.fence or b"")
    assert [pin.attempt for pin in fence.pins] == [2, 3]


def test_attempt_is_fenced_if_a_later_one_launches_during_proof() -> None:
    world = CheckpointWorld()
    other_launch = WorldStorage(world)

    with pytest.raises(training_side.Fenced, match="attempt 3"):
        training_side.pin(WorldStorage(world, before_raise=lambda: training_side.pin(other_launch, 3)), 2)


def test_distrust_rejects_only_checkpoints_of_the_suspected_attempts() -> None:
    """Attempt 2 ran on other nodes after the signal; its checkpoints are sound."""
    world = CheckpointWorld()
    world.save(2, 20, began=9)
    evidence = service_side.CheckpointContents(
        manifest=world.objects["attempt=2/step=000000020/manifest.json"],
        objects={
            key: service_side.StoredObject(size_bytes=len(content), sha256=world.digest(key))
            for key, content in world.objects.items()
        },
    )
    ref = service_side.CheckpointRef(attempt=2, step=20)
    through_attempt_1 = service_side.Distrust(after=at(5), through_attempt=1)
    through_attempt_2 = service_side.Distrust(after=at(5), through_attempt=2)

    assert isinstance(service_side.verify(ref, evidence, (through_attempt_1,)), service_side.Proof)
    assert isinstance(
        service_side.verify(ref, evidence, (through_attempt_1, through_attempt_2)), service_side.Rejection
    )


class TwoAttemptsNeverMix(RuleBasedStateMachine):
    """Attempts start, save, lose their nodes and continue to save.

    Each launch must resume from the newest complete checkpoint that was written before any later fence.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = CheckpointWorld()
        self.step_of: dict[int, int] = {}  # last saved step of each attempt, whether its process still runs or not
        self.written_under: dict[tuple[int, int], int] = {}  # highest fence when each manifest was written
        self.damaged: set[tuple[int, int]] = set()
        self.choices: dict[int, ReaderAnswer] = {}
        self.highest = 0

    @rule(skip=st.integers(1, 2), side=st.sampled_from(READERS))
    def launch(self, skip: int, side: Any) -> None:
        attempt = self.highest + skip
        choice = side.pin(self.world, attempt)
        lineage = self._lineage()
        undamaged = [ref for ref in lineage if ref not in self.damaged]
        newest = max(undamaged, key=lambda ref: (ref[1], ref[0]), default=None)
        assert choice.resume == newest
        if choice.resume is not None:
            assert self.written_under[choice.resume] == choice.resume[0], (
                "resumed from a fenced attempt's late manifest"
            )
            assert choice.resume not in self.damaged
        self.highest = attempt
        self.choices[attempt] = choice
        self.step_of[attempt] = choice.resume[1] if choice.resume else 0

    @rule(data=st.data(), steps=st.integers(0, 3))
    def save(self, data: st.DataObject, steps: int) -> None:
        """Let a process save. Any process that ever ran may still run behind a network partition."""
        if not self.step_of:
            return
        attempt = data.draw(st.sampled_from(sorted(self.step_of)))
        step = self.step_of[attempt] + steps
        self.step_of[attempt] = step
        if (attempt, step) not in self.written_under:
            self.world.save(attempt, step, world_size=1)
            self.written_under[attempt, step] = self.highest

    @rule(data=st.data(), side=st.sampled_from(READERS))
    def retry_a_launch(self, data: st.DataObject, side: Any) -> None:
        if not self.choices:
            return
        attempt = data.draw(st.sampled_from(sorted(self.choices)))
        repeated_pin = side.pin(self.world, attempt)
        if attempt == self.highest:
            assert repeated_pin == self.choices[attempt]
        else:
            assert not isinstance(repeated_pin, ReaderAnswer)

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        if not self.written_under:
            return
        attempt, step = data.draw(st.sampled_from(sorted(self.written_under)))
        self.world.objects[f"attempt={attempt}/step={step:09d}/shard-0-of-1.bin"] = b"rot"
        self.damaged.add((attempt, step))

    @invariant()
    def both_readers_choose_equally(self) -> None:
        service, training = (side.choose(self.world, self.highest + 1) for side in READERS)
        assert service == training

    def _lineage(self) -> set[tuple[int, int]]:
        """Return the checkpoints of the newest attempt and its ancestors that were written before a later fence."""
        lineage: set[tuple[int, int]] = set()
        attempt, most = self.highest, None
        while attempt:
            in_time = {ref for ref, fence in self.written_under.items() if ref[0] == attempt == fence}
            lineage |= {ref for ref in in_time if most is None or ref[1] <= most}
            pinned = self.choices[attempt].resume
            if pinned is None:
                break
            attempt, most = pinned
        return lineage


test_two_attempts_never_mix = TwoAttemptsNeverMix.TestCase


_KEYS = (
    *("schemaVersion", "jobId", "attempt", "step", "startedAt", "createdAt", "worldSize", "shards", "metrics", "extra"),
    *("key", "sizeBytes", "sha256"),
)
_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 31) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(whole=_ANY_JSON)
def test_service_and_training_code_judge_any_manifest_equally(whole: Any) -> None:
    world = CheckpointWorld()
    folder = world.save(1, 30)
    world.objects[f"{folder}/manifest.json"] = json.dumps(whole).encode()

    service, training = (side.choose(world, 2) for side in READERS)

    assert service == training


@given(changes=st.dictionaries(st.sampled_from(_KEYS), _ANY_JSON, min_size=1, max_size=2))
def test_service_and_training_code_judge_a_changed_manifest_equally(changes: dict[str, Any]) -> None:
    world = CheckpointWorld()
    folder = world.save(1, 30)
    manifest = json.loads(world.objects[f"{folder}/manifest.json"])
    for key, value in changes.items():
        (manifest if key in manifest else manifest["shards"][0])[key] = value
        if not isinstance(manifest["shards"], list) or not isinstance(next(iter(manifest["shards"]), None), dict):
            break
    world.objects[f"{folder}/manifest.json"] = json.dumps(manifest).encode()

    service, training = (side.choose(world, 2) for side in READERS)

    assert service == training
