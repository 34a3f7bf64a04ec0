"""Checkpoints in a dictionary, and the two readers (service and training code) that must choose the same one."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from evenkeel.domain import checkpoints as service_side
from evenkeel.training import layout as training_layout
from evenkeel.training import resume as training_side
from evenkeel.training.storage import StoredObject, VersionedFence

START = datetime(2026, 11, 3, 10, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


class ReaderAnswer(NamedTuple):
    """The choice of a reader, in the terms of both readers."""

    resume: tuple[int, int] | None
    grade: str
    rejected: tuple[tuple[int, int, str], ...] = ()


class StaleAttempt(NamedTuple):
    """The attempt is behind the fence."""


@dataclass
class CheckpointWorld:
    """The objects under one checkpoint URI."""

    objects: dict[str, bytes] = field(default_factory=dict)
    without_checksum: set[str] = field(default_factory=set)
    fence: bytes | None = None

    def save(self, attempt: int, step: int, world_size: int = 2, *, began: float = 0, **changes: Any) -> str:
        """Write a complete checkpoint, as training code does.

        `changes` replace fields of the manifest. Return its folder.
        """
        folder = f"attempt={attempt}/step={step:09d}"
        shards = []
        for rank in range(world_size):
            key, content = f"{folder}/shard-{rank}-of-{world_size}.bin", f"{attempt} {step} {rank}".encode()
            self.objects[key] = content
            digest = hashlib.sha256(content).hexdigest()
            shards.append({"key": key, "sizeBytes": len(content), "sha256": digest})
        manifest = {
            "schemaVersion": 1,
            "jobId": "job-rings",
            "attempt": attempt,
            "step": step,
            "startedAt": training_layout.write_instant(at(began)),
            "createdAt": training_layout.write_instant(at(began + 1)),
            "worldSize": world_size,
            "shards": shards,
            "metrics": {"loss": 0.5},
            "extra": {},
            **changes,
        }
        self.objects[f"{folder}/manifest.json"] = json.dumps(manifest).encode()
        return folder

    def save_without_manifest(self, attempt: int, step: int) -> str:
        folder = f"attempt={attempt}/step={step:09d}"
        for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
            self.objects[f"{folder}/{name}"] = b"dcp"
        return folder

    def put_fence(self, *pins: tuple[int, tuple[int, int] | None]) -> None:
        """Set the fence by its pins: (attempt, (attempt, step) or None), oldest first."""
        documents = [{"attempt": attempt, "resumeFrom": point and _point(*point)} for attempt, point in pins]
        *history, last = documents
        self.fence = json.dumps({"schemaVersion": 1, **last, "history": history}).encode()

    def folders(self) -> set[str]:
        return {key.rpartition("/")[0] for key in self.objects}

    def digest(self, key: str) -> str | None:
        return None if key in self.without_checksum else hashlib.sha256(self.objects[key]).hexdigest()


def _point(attempt: int, step: int) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "manifest": f"attempt={attempt}/step={step:09d}/manifest.json"}


class ServiceSide:
    """The reader in Evenkeel's functions."""

    def __repr__(self) -> str:
        return "service"

    def choose(
        self,
        world: CheckpointWorld,
        attempt: int,
        doubt: datetime | None = None,
        *,
        convention: bool = False,
        requirement: str = "CONVENTION",
    ) -> ReaderAnswer:
        return _service_answer(self._choose(world, attempt, doubt, convention=convention, requirement=requirement))

    def pin(self, world: CheckpointWorld, attempt: int, doubt: datetime | None = None) -> ReaderAnswer | StaleAttempt:
        fence = self._fence(world)
        match service_side.fence_status(fence, attempt):
            case service_side.FenceStatus.STALE:
                return StaleAttempt()
            case service_side.FenceStatus.PINNED if fence is not None:
                return _service_answer(fence.choice())
        choice = self._choose(world, attempt, doubt)
        world.fence = json.dumps(service_side.next_fence(fence, attempt, choice).to_json()).encode()
        return _service_answer(choice)

    def would_discard_checkpoints(self, world: CheckpointWorld, attempt: int, doubt: datetime | None = None) -> bool:
        return self._choose(world, attempt, doubt).would_discard_checkpoints

    def _fence(self, world: CheckpointWorld) -> service_side.Fence | None:
        return None if world.fence is None else service_side.parse_fence(json.loads(world.fence))

    def _choose(
        self,
        world: CheckpointWorld,
        attempt: int,
        doubt: datetime | None = None,
        *,
        convention: bool = False,
        requirement: str = "CONVENTION",
    ) -> service_side.ResumeChoice:
        checkpoint_refs = [ref for folder in world.folders() if (ref := service_side.ref_of_folder(folder))]
        distrust = (
            service_side.Distrust(
                after=doubt, through_attempt=attempt, requirement=service_side.CheckpointRequirement(requirement)
            ),
        )
        rules = service_side.CheckpointRules(distrust=distrust, accepts_convention=convention)
        evidence: dict[service_side.CheckpointRef, service_side.CheckpointContents] = {}
        while True:
            answer = service_side.choose_resume_point(attempt, self._fence(world), checkpoint_refs, evidence, rules)
            if isinstance(answer, service_side.ResumeChoice):
                return answer
            assert answer.ref not in evidence
            evidence[answer.ref] = service_side.CheckpointContents(
                manifest=world.objects.get(answer.ref.manifest_key),
                objects={
                    key: service_side.StoredObject(size_bytes=len(content), sha256=world.digest(key), modified_at=START)
                    for key, content in world.objects.items()
                    if key.startswith(f"{answer.ref.folder}/")
                },
            )


def _service_answer(choice: service_side.ResumeChoice) -> ReaderAnswer:
    point = choice.resume_from
    rejected = tuple((rejection.attempt, rejection.step, rejection.code.value) for rejection in choice.rejected)
    return ReaderAnswer(None if point is None else (point.attempt, point.step), choice.grade.value, rejected)


class TrainingSide:
    """The reader in the training package."""

    def __repr__(self) -> str:
        return "training"

    def choose(
        self,
        world: CheckpointWorld,
        attempt: int,
        doubt: datetime | None = None,
        *,
        convention: bool = False,
        requirement: str = "CONVENTION",
    ) -> ReaderAnswer:
        return _training_answer(self._choose(world, attempt, doubt, convention=convention, requirement=requirement))

    def would_discard_checkpoints(self, world: CheckpointWorld, attempt: int, doubt: datetime | None = None) -> bool:
        return self._choose(world, attempt, doubt).would_discard_checkpoints

    def _choose(
        self,
        world: CheckpointWorld,
        attempt: int,
        doubt: datetime | None = None,
        *,
        convention: bool = False,
        requirement: str = "CONVENTION",
    ) -> training_side.ResumeChoice:
        storage = WorldStorage(world)
        distrust = training_side.Distrust(doubt, requirement=requirement)
        fence = storage.read_fence().fence
        return training_side.choose(storage, attempt, fence, distrust, accepts_convention=convention)

    def pin(self, world: CheckpointWorld, attempt: int, doubt: datetime | None = None) -> ReaderAnswer | StaleAttempt:
        try:
            distrust = None if doubt is None else training_side.Distrust(doubt)
            return _training_answer(training_side.pin(WorldStorage(world), attempt, distrust, may_start_over=True))
        except training_side.Fenced:
            return StaleAttempt()


def _training_answer(choice: training_side.ResumeChoice) -> ReaderAnswer:
    point = choice.resume_from
    rejected = tuple((document["attempt"], document["step"], document["code"]) for document in choice.rejected)
    return ReaderAnswer(None if point is None else (point.attempt, point.step), choice.grade, rejected)


class WorldStorage:
    """The storage port of the training package, on a `CheckpointWorld`. `before_raise` runs once, before the fence is
    compared.
    """

    uri = "memory://rings"

    def __init__(self, world: CheckpointWorld, before_raise: Callable[[], object] | None = None) -> None:
        self._world = world
        self._before_raise = before_raise

    def get(self, key: str) -> bytes | None:
        return self._world.objects.get(key)

    def put(self, key: str, content: bytes | memoryview, sha256: str) -> None:
        assert hashlib.sha256(content).hexdigest() == sha256
        self._world.objects[key] = bytes(content)

    def put_new(self, key: str, content: bytes) -> bool:
        return self._world.objects.setdefault(key, content) is content

    def checkpoints(self) -> list[training_layout.Checkpoint]:
        checkpoints_found = (training_layout.checkpoint_of_folder(folder) for folder in self._world.folders())
        return [checkpoint for checkpoint in checkpoints_found if checkpoint is not None]

    def examine(self, checkpoint: training_layout.Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        return {
            key: StoredObject(len(content), self._world.digest(key) if checksums else None, START)
            for key, content in self._world.objects.items()
            if key.startswith(f"{checkpoint.folder}/")
        }

    def read_fence(self) -> VersionedFence:
        if self._world.fence is None:
            return VersionedFence(None)
        version = hashlib.sha256(self._world.fence).hexdigest()
        return VersionedFence(training_layout.parse_fence(self._world.fence), version)

    def raise_fence(self, fence: training_layout.Fence, over: VersionedFence) -> bool:
        if self._before_raise is not None:
            concurrent_change, self._before_raise = self._before_raise, None
            concurrent_change()
        if self.read_fence().version != over.version:
            return False
        self._world.fence = fence.to_bytes()
        return True


READERS: tuple[ServiceSide | TrainingSide, ...] = (ServiceSide(), TrainingSide())
