"""The checkpoint from which an attempt resumes.

Each case runs on the readers of the functions and of the training script.
"""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain import checkpoints as service_side
from evenkeel.training import resume as training_side
from tests.unit.checkpoints.checkpoint_worlds import (
    READERS,
    CheckpointWorld,
    ReaderAnswer,
    ServiceSide,
    StaleAttempt,
    TrainingSide,
    WorldStorage,
    at,
)

Reader = ServiceSide | TrainingSide
reader_of_both = pytest.mark.parametrize("reader", READERS, ids=repr)


@reader_of_both
def test_without_checkpoints_training_starts_from_the_beginning(reader: Reader) -> None:
    assert reader.choose(CheckpointWorld(), 1) == ReaderAnswer(None, "NONE")


@reader_of_both
def test_newest_valid_step_is_chosen(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save(1, 30)
    world.save(1, 20)

    assert reader.choose(world, 2) == ReaderAnswer((1, 30), "PROVED")


@reader_of_both
def test_later_attempt_is_tried_first_at_equal_steps(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 20)
    world.save(2, 20)
    world.put_fence((1, None), (2, (1, 20)))

    assert reader.choose(world, 3) == ReaderAnswer((2, 20), "PROVED")


def _delete_a_shard(world: CheckpointWorld, folder: str) -> None:
    del world.objects[f"{folder}/shard-1-of-2.bin"]


def _truncate_a_shard(world: CheckpointWorld, folder: str) -> None:
    world.objects[f"{folder}/shard-1-of-2.bin"] = b""


def _flip_one_bit(world: CheckpointWorld, folder: str) -> None:
    content = bytearray(world.objects[f"{folder}/shard-1-of-2.bin"])
    content[0] ^= 1
    world.objects[f"{folder}/shard-1-of-2.bin"] = bytes(content)


def _delete_the_manifest(world: CheckpointWorld, folder: str) -> None:
    del world.objects[f"{folder}/manifest.json"]


def _cut_the_manifest(world: CheckpointWorld, folder: str) -> None:
    world.objects[f"{folder}/manifest.json"] = world.objects[f"{folder}/manifest.json"][:-20]


def _change_the_manifest(**changes: Any) -> Any:
    def change(world: CheckpointWorld, folder: str) -> None:
        manifest = json.loads(world.objects[f"{folder}/manifest.json"])
        manifest.update(changes)
        world.objects[f"{folder}/manifest.json"] = json.dumps(manifest).encode()

    return change


def _change_shard(**changes: Any) -> Any:
    def change(world: CheckpointWorld, folder: str) -> None:
        manifest = json.loads(world.objects[f"{folder}/manifest.json"])
        manifest["shards"][1].update(changes)
        world.objects[f"{folder}/manifest.json"] = json.dumps(manifest).encode()

    return change


def _forget_a_rank(world: CheckpointWorld, folder: str) -> None:
    manifest = json.loads(world.objects[f"{folder}/manifest.json"])
    manifest["shards"].pop()
    world.objects[f"{folder}/manifest.json"] = json.dumps(manifest).encode()


def _replace_the_manifest(content: bytes) -> Any:
    def change(world: CheckpointWorld, folder: str) -> None:
        world.objects[f"{folder}/manifest.json"] = content

    return change


DAMAGE = {
    "a shard is missing": (_delete_a_shard, "SHARD_MISSING"),
    "a shard is cut short": (_truncate_a_shard, "SHARD_SIZE"),
    "one bit of a shard is wrong": (_flip_one_bit, "SHARD_CHECKSUM"),
    "the manifest was never written": (_delete_the_manifest, "MANIFEST_MISSING"),
    "the manifest is cut short": (_cut_the_manifest, "MANIFEST_UNREADABLE"),
    "the manifest is no text": (_replace_the_manifest(b"\xff\xfe"), "MANIFEST_UNREADABLE"),
    "the manifest is a list": (_replace_the_manifest(b"[]"), "MANIFEST_UNREADABLE"),
    "the manifest nests without end": (_replace_the_manifest(b"[" * 100_000), "MANIFEST_UNREADABLE"),
    "the manifest holds a number that JSON does not have": (
        _change_the_manifest(extra=float("nan")),
        "MANIFEST_UNREADABLE",
    ),
    "the manifest is of a later schema": (_change_the_manifest(schemaVersion=2), "MANIFEST_UNREADABLE"),
    "the schema is true": (_change_the_manifest(schemaVersion=True), "MANIFEST_UNREADABLE"),
    "it speaks of another step": (_change_the_manifest(step=31), "MANIFEST_UNREADABLE"),
    "it speaks of another attempt": (_change_the_manifest(attempt=2), "MANIFEST_UNREADABLE"),
    "it names no shards": (_change_the_manifest(shards=[]), "MANIFEST_UNREADABLE"),
    "its world size is text": (_change_the_manifest(worldSize="2"), "MANIFEST_UNREADABLE"),
    "its world is larger than its shards say": (_change_the_manifest(worldSize=3), "MANIFEST_UNREADABLE"),
    "its time has no zone": (_change_the_manifest(startedAt="2026-11-03T10:00:00"), "MANIFEST_UNREADABLE"),
    "its time is a number": (_change_the_manifest(startedAt=1), "MANIFEST_UNREADABLE"),
    "a rank is not in the manifest": (_forget_a_rank, "SHARD_MISSING"),
    "a shard lies in another checkpoint": (
        _change_shard(key="attempt=1/step=000000020/shard-1-of-2.bin"),
        "MANIFEST_UNREADABLE",
    ),
    "a shard lies outside": (_change_shard(key="../shard-1-of-2.bin"), "MANIFEST_UNREADABLE"),
    "a shard is the folder above": (_change_shard(key="attempt=1/step=000000030/.."), "MANIFEST_UNREADABLE"),
    "a shard is named twice": (_change_shard(key="attempt=1/step=000000030/shard-0-of-2.bin"), "MANIFEST_UNREADABLE"),
    "a size is negative": (_change_shard(sizeBytes=-1), "MANIFEST_UNREADABLE"),
    "a size is true": (_change_shard(sizeBytes=True), "MANIFEST_UNREADABLE"),
    "a checksum is in capitals": (_change_shard(sha256="A" * 64), "MANIFEST_UNREADABLE"),
    "the loss is no number": (_change_the_manifest(metrics={"loss": "nan"}), "METRIC_NOT_FINITE"),
    "the manifest is empty": (_replace_the_manifest(b""), "MANIFEST_UNREADABLE"),
    "a metric is true": (_change_the_manifest(metrics={"loss": True}), "MANIFEST_UNREADABLE"),
    "the metrics are a list": (_change_the_manifest(metrics=[]), "MANIFEST_UNREADABLE"),
}


@reader_of_both
@pytest.mark.parametrize(("damage", "code"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_checkpoint_is_rejected_and_the_previous_is_chosen(reader: Reader, damage: Any, code: str) -> None:
    world = CheckpointWorld()
    world.save(1, 20)
    damage(world, world.save(1, 30))

    assert reader.choose(world, 2) == ReaderAnswer((1, 20), "PROVED", ((1, 30, code),))


@reader_of_both
def test_checkpoint_with_infinite_loss_is_rejected(reader: Reader) -> None:
    world = CheckpointWorld()
    folder = world.save(1, 30)
    manifest = world.objects[f"{folder}/manifest.json"].replace(b'"loss": 0.5', b'"loss": 1e999')
    world.objects[f"{folder}/manifest.json"] = manifest

    assert reader.choose(world, 2) == ReaderAnswer(None, "NONE", ((1, 30, "METRIC_NOT_FINITE"),))


@reader_of_both
def test_unknown_keys_of_a_manifest_are_ignored(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 30, futureKey={"any": 1})

    assert reader.choose(world, 2) == ReaderAnswer((1, 30), "PROVED")


@reader_of_both
def test_every_rejected_checkpoint_is_named_if_none_is_valid(reader: Reader) -> None:
    world = CheckpointWorld()
    _delete_a_shard(world, world.save(1, 10))
    _truncate_a_shard(world, world.save(1, 20))

    expected = ReaderAnswer(None, "NONE", ((1, 20, "SHARD_SIZE"), (1, 10, "SHARD_MISSING")))
    assert reader.choose(world, 2) == expected


@reader_of_both
def test_write_that_began_after_the_first_signal_is_distrusted(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10, began=0)
    world.save(1, 20, began=5)
    world.save(1, 30, began=5.01)

    assert reader.choose(world, 2, at(5)) == ReaderAnswer((1, 20), "PROVED", ((1, 30, "DISTRUSTED"),))


@reader_of_both
def test_attempt_resumes_only_from_earlier_attempts(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save(2, 20)
    world.save(3, 30)

    expected = ReaderAnswer((1, 10), "PROVED", ((3, 30, "LATER_ATTEMPT"), (2, 20, "LATER_ATTEMPT")))
    assert reader.choose(world, 2) == expected


@reader_of_both
def test_late_manifest_of_a_fenced_attempt_is_never_chosen(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    assert reader.pin(world, 2) == ReaderAnswer((1, 10), "PROVED")

    world.save(1, 20)
    world.save(2, 15)

    assert reader.choose(world, 3) == ReaderAnswer((2, 15), "PROVED", ((1, 20, "FENCED"),))


@reader_of_both
def test_attempt_pinned_to_the_beginning_fences_all_earlier_attempts(reader: Reader) -> None:
    world = CheckpointWorld()
    world.put_fence((1, None), (2, None))
    world.save(1, 10)

    assert reader.choose(world, 3) == ReaderAnswer(None, "NONE", ((1, 10, "FENCED"),))


@reader_of_both
def test_late_manifest_at_the_pinned_step_is_fenced(reader: Reader) -> None:
    """Attempt 2 resumed from (1, 10) and saves step 10 again only after attempt 3 was pinned to (1, 10) as well."""
    world = CheckpointWorld()
    world.save(1, 10)
    world.put_fence((1, None), (2, (1, 10)), (3, (1, 10)))
    world.save(2, 10)

    assert reader.choose(world, 4) == ReaderAnswer((1, 10), "PROVED", ((2, 10, "FENCED"),))


@reader_of_both
def test_retried_launch_keeps_its_pin_despite_a_newer_checkpoint(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    _delete_a_shard(world, world.save(1, 20))
    first = reader.pin(world, 2)
    fence = world.fence

    world.save(1, 30)
    repeated_pin = reader.pin(world, 2)

    assert repeated_pin == first == ReaderAnswer((1, 10), "PROVED", ((1, 20, "SHARD_MISSING"),))
    assert world.fence == fence


@reader_of_both
def test_attempt_behind_the_fence_is_stale(reader: Reader) -> None:
    world = CheckpointWorld()
    world.put_fence((1, None), (3, None))

    assert reader.pin(world, 2) == StaleAttempt()


@reader_of_both
def test_checkpoint_without_manifest_counts_only_if_the_site_accepts_it(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save_without_manifest(1, 20)

    assert reader.choose(world, 2) == ReaderAnswer((1, 10), "PROVED", ((1, 20, "BELOW_GRADE"),))
    assert reader.choose(world, 2, convention=True) == ReaderAnswer((1, 20), "COMPLETE_BY_CONVENTION")


@reader_of_both
@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        (".metadata", b"", "SHARD_SIZE"),
        ("__1_0.distcp", b"", "SHARD_SIZE"),
        (".metadata", None, "MANIFEST_MISSING"),
    ],
)
def test_unfinished_checkpoint_without_manifest_is_rejected(
    reader: Reader, name: str, content: bytes | None, code: str
) -> None:
    world = CheckpointWorld()
    folder = world.save_without_manifest(1, 20)
    if content is None:
        del world.objects[f"{folder}/{name}"]
    else:
        world.objects[f"{folder}/{name}"] = content

    assert reader.choose(world, 2, convention=True) == ReaderAnswer(None, "NONE", ((1, 20, code),))


@reader_of_both
def test_checkpoint_without_checksums_is_not_proven_by_its_sizes(reader: Reader) -> None:
    world = CheckpointWorld()
    folder = world.save(1, 10)
    world.without_checksum.add(f"{folder}/shard-0-of-2.bin")

    assert reader.choose(world, 2) == ReaderAnswer(None, "NONE", ((1, 10, "BELOW_GRADE"),))
    assert reader.choose(world, 2, convention=True) == ReaderAnswer((1, 10), "COMPLETE_BY_CONVENTION")


# ---------------------------------------------------------------- evidence that a suspected fault requires


@reader_of_both
def test_suspected_fault_can_exclude_checkpoints_without_manifest(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save_without_manifest(1, 20)

    answer = reader.choose(world, 2, convention=True, requirement="PROOF")

    assert answer == ReaderAnswer((1, 10), "PROVED", ((1, 20, "BELOW_GRADE"),))


SOUND_MANIFESTS: dict[str, dict[str, Any]] = {
    "a finite loss": {},
    "a look at the weights": {"metrics": {}, "isFinite": True},
}
WITHOUT_CLAIM: dict[str, Any] = {"metrics": {"throughput": 4}}


@reader_of_both
@pytest.mark.parametrize("says", SOUND_MANIFESTS.values(), ids=SOUND_MANIFESTS.keys())
def test_fault_of_unknown_begin_needs_checkpoints_that_claim_soundness(reader: Reader, says: dict[str, Any]) -> None:
    world = CheckpointWorld()
    world.save(1, 10, **says)
    world.save(1, 20, **WITHOUT_CLAIM)
    world.save(1, 30)
    world.save(1, 40)

    assert reader.choose(world, 2, requirement="EVIDENCE").rejected[0] == (1, 40, "NO_CLEAN_RUN")
    assert reader.choose(world, 2, requirement="EVIDENCE").resume == (1, 30)
    _change_the_manifest(metrics={"loss": "nan"})(world, "attempt=1/step=000000040")
    assert reader.choose(world, 2, requirement="EVIDENCE") == ReaderAnswer(
        None,
        "NONE",
        ((1, 40, "METRIC_NOT_FINITE"), (1, 30, "NO_CLEAN_RUN"), (1, 20, "NO_EVIDENCE"), (1, 10, "NO_CLEAN_RUN")),
    )


@reader_of_both
def test_distrusted_later_checkpoint_still_proves_progress(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10, began=0)
    world.save(1, 20, began=9)

    answer = reader.choose(world, 2, at(5), requirement="EVIDENCE")

    assert answer == ReaderAnswer((1, 10), "PROVED", ((1, 20, "DISTRUSTED"),))


@reader_of_both
def test_checkpoint_of_another_attempt_proves_no_progress(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save(2, 20)
    world.put_fence((1, None), (2, None))

    assert reader.choose(world, 3, requirement="EVIDENCE").rejected == ((2, 20, "NO_CLEAN_RUN"), (1, 10, "FENCED"))


@reader_of_both
def test_checkpoint_that_reports_bad_numbers_is_always_rejected(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    world.save(1, 20, isFinite=False)

    assert reader.choose(world, 2) == ReaderAnswer((1, 10), "PROVED", ((1, 20, "METRIC_NOT_FINITE"),))


@reader_of_both
@pytest.mark.parametrize("value", ["yes", 1])
def test_manifest_with_a_non_boolean_soundness_claim_is_unreadable(reader: Reader, value: object) -> None:
    world = CheckpointWorld()
    world.save(1, 10, isFinite=value)

    assert reader.choose(world, 2).rejected == ((1, 10, "MANIFEST_UNREADABLE"),)


@reader_of_both
def test_choice_reports_that_it_would_discard_unproven_checkpoints(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10, **WITHOUT_CLAIM)
    world.save(1, 20, **WITHOUT_CLAIM)

    choice = reader._choose(world, 2, requirement="EVIDENCE")

    assert choice.would_discard_checkpoints


class WrittenCheckpoint(NamedTuple):
    """A checkpoint of attempt 1, generated by hypothesis."""

    began: int
    says: str
    """`loss`, `nan`, `nothing`, `looked` or `bad`."""
    is_complete: bool


_CLAIMS: dict[str, dict[str, Any]] = {
    "loss": {},
    "nan": {"metrics": {"loss": "nan"}},
    "nothing": WITHOUT_CLAIM,
    "looked": {"metrics": {}, "isFinite": True},
    "bad": {"isFinite": False},
}


@given(
    written=st.lists(
        st.builds(
            WrittenCheckpoint, began=st.integers(0, 9), says=st.sampled_from(sorted(_CLAIMS)), is_complete=st.booleans()
        ),
        max_size=6,
    ),
    doubt=st.none() | st.integers(0, 9),
    requirement=st.sampled_from(["CONVENTION", "PROOF", "EVIDENCE"]),
)
def test_service_and_training_code_choose_the_newest_sufficient_checkpoint(
    written: list[WrittenCheckpoint], doubt: int | None, requirement: str
) -> None:
    world = CheckpointWorld()
    for number, checkpoint in enumerate(written, start=1):
        folder = world.save(1, number * 10, began=checkpoint.began, **_CLAIMS[checkpoint.says])
        if not checkpoint.is_complete:
            _delete_a_shard(world, folder)

    def is_sound(number: int) -> bool:
        return number < len(written) and written[number].says in ("loss", "looked")

    def is_good(number: int, checkpoint: WrittenCheckpoint) -> bool:
        holds = (
            checkpoint.is_complete
            and checkpoint.says not in ("nan", "bad")
            and (doubt is None or checkpoint.began <= doubt)
        )
        return holds and (requirement != "EVIDENCE" or (is_sound(number) and is_sound(number + 1)))

    newest = max((number for number, checkpoint in enumerate(written) if is_good(number, checkpoint)), default=None)
    answers = [
        reader.choose(world, 2, None if doubt is None else at(doubt), requirement=requirement) for reader in READERS
    ]

    assert answers[0] == answers[1]
    assert answers[0].resume == (None if newest is None else (1, (newest + 1) * 10))
    assert len(answers[0].rejected) == (len(written) if newest is None else len(written) - newest - 1)


@reader_of_both
def test_folders_that_are_not_named_like_checkpoints_are_ignored(reader: Reader) -> None:
    world = CheckpointWorld()
    for folder in ("attempt=0/step=000000010", "attempt=1/step=10", "attempt=01/step=000000010", "result"):
        world.objects[f"{folder}/manifest.json"] = b"{}"

    assert reader.choose(world, 2) == ReaderAnswer(None, "NONE")


@reader_of_both
@pytest.mark.parametrize(
    ("spoil", "is_disowned"),
    [
        (_delete_a_shard, True),
        (_truncate_a_shard, True),
        (_flip_one_bit, True),
        (_cut_the_manifest, True),
        (_delete_the_manifest, False),
    ],
)
def test_only_finished_checkpoints_can_be_discarded(reader: Reader, spoil: Any, is_disowned: bool) -> None:
    world = CheckpointWorld()
    spoil(world, world.save(1, 10))

    assert reader.would_discard_checkpoints(world, 2) is is_disowned


@reader_of_both
def test_restart_discards_no_fenced_or_distrusted_checkpoint(reader: Reader) -> None:
    world = CheckpointWorld()
    world.put_fence((1, None), (2, None))
    world.save(1, 10)
    world.save(2, 20, began=9)

    assert not reader.would_discard_checkpoints(world, 3, at(5))


@reader_of_both
def test_skipping_a_broken_checkpoint_discards_nothing_if_another_is_valid(reader: Reader) -> None:
    world = CheckpointWorld()
    world.save(1, 10)
    _delete_a_shard(world, world.save(1, 20))

    assert not reader.would_discard_checkpoints(world, 2)


def test_training_script_limits_distrust_to_earlier_attempts() -> None:
    world = CheckpointWorld()
    world.save(1, 10, began=9)
    world.save(2, 20, began=9)
    world.put_fence((1, None), (2, (1, 10)))
    storage = WorldStorage(world)
    fence = storage.read_fence().fence

    distrusting_attempt_1 = training_side.choose(storage, 3, fence, training_side.Distrust(at(5), 1))
    distrusting_all = training_side.choose(storage, 3, fence, training_side.Distrust(at(5)))

    assert distrusting_attempt_1.resume_from
    assert (distrusting_attempt_1.resume_from.step, distrusting_all.resume_from) == (20, None)


def test_training_script_pins_nothing_without_a_valid_checkpoint() -> None:
    world = CheckpointWorld()
    _delete_a_shard(world, world.save(1, 10))

    with pytest.raises(training_side.Unproven, match="SHARD_MISSING"):
        training_side.pin(WorldStorage(world), 2)
    assert world.fence is None

    assert training_side.pin(WorldStorage(world), 2, may_start_over=True).resume_from is None
    assert world.fence is not None


def test_number_of_examined_checkpoints_is_bounded() -> None:
    refs = [service_side.CheckpointRef(attempt=1, step=step) for step in (10, 20, 30)]
    nothing = service_side.CheckpointContents(manifest=b"{", objects={})

    choice = service_side.choose_resume_point(2, None, refs, {refs[2]: nothing}, max_reads=1)

    assert isinstance(choice, service_side.ResumeChoice)
    assert [(rejection.step, rejection.code) for rejection in choice.rejected] == [
        (30, "MANIFEST_UNREADABLE"),
        (20, "NOT_EXAMINED"),
    ]
    assert choice.would_discard_checkpoints
