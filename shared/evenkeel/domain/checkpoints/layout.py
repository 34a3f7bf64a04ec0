"""Layout of the files under a job's checkpoint URI.

    <checkpointUri>/
      _fence                                   highest attempt that may write, and its resume point
      attempt=2/step=000000120/
        shard-0-of-2.bin  shard-1-of-2.bin     one file per rank, or several parts per rank
        manifest.json                          written last; without it there is no checkpoint
      result/attempt=2.json

Keys are relative to the checkpoint URI, so a checkpoint stays valid when its bucket is copied.

`evenkeel.training` has its own code for this layout, because it may import only the standard library. Shared test
cases check that both read every checkpoint alike.
"""

import re

from pydantic import Field

from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.values import Value

MANIFEST_NAME = "manifest.json"
CONVENTION_NAME = ".metadata"
"""PyTorch Distributed Checkpoint writes this file last."""
CONVENTION_SUFFIX = ".distcp"

_FOLDER = re.compile(r"attempt=([1-9][0-9]*)/step=([0-9]{9,})")
_FILE = re.compile(r"[A-Za-z0-9._-]+")
_SHARD = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.[A-Za-z0-9._-]+")


class CheckpointRef(Value):
    """A checkpoint of a job: the attempt that wrote it, and its step."""

    attempt: int = Field(ge=1)
    step: int = Field(ge=0)

    @property
    def folder(self) -> str:
        """Key of the checkpoint's folder, without a trailing slash."""
        return f"attempt={self.attempt}/step={self.step:09d}"

    @property
    def manifest_key(self) -> str:
        return f"{self.folder}/{MANIFEST_NAME}"

    @property
    def convention_key(self) -> str:
        return f"{self.folder}/{CONVENTION_NAME}"

    def to_resume_point(self, key: str | None = None) -> ResumePoint:
        """Return the resume point of this checkpoint. `key` is the file to resume from; None = the manifest."""
        return ResumePoint(attempt=self.attempt, step=self.step, manifest=key or self.manifest_key)


def ref_of_folder(folder: str) -> CheckpointRef | None:
    """Parse `attempt=<n>/step=<9 digits>`, with or without a trailing slash; None for any other name."""
    match = _FOLDER.fullmatch(folder.removesuffix("/"))
    if match is None:
        return None
    ref = CheckpointRef(attempt=int(match[1]), step=int(match[2]))
    return ref if ref.folder == folder.removesuffix("/") else None


def ref_of_key(key: str) -> CheckpointRef | None:
    """Return the checkpoint whose folder holds a key; None if no checkpoint does."""
    folder, _, _ = key.rpartition("/")
    return ref_of_folder(folder)


def is_file_name(name: str) -> bool:
    """Whether a shard file may have this name: no folder, plain characters, and not the name of the manifest."""
    return _FILE.fullmatch(name) is not None and name not in (".", "..", MANIFEST_NAME)


def rank_and_world(name: str) -> tuple[int, int] | None:
    """Parse rank and world size from `shard-<i>-of-<w>.<ext>`; None for any other name."""
    match = _SHARD.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
