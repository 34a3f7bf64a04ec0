"""Where the parts of a checkpoint lie under a job's checkpoint URI.

    <checkpointUri>/
      _fence                                   highest attempt that may write, and what it resumes from
      attempt=2/step=000000120/
        shard-0-of-2.bin  shard-1-of-2.bin     one a rank, or several parts a rank
        manifest.json                          written last; without it there is no checkpoint
      result/attempt=2.json

Keys are relative to the checkpoint URI, so that a checkpoint keeps its proof when its bucket is copied. The training
package speaks the same layout without this module, since it may import the standard library only; one table of cases
holds both to the same answers.
"""

import re

from pydantic import Field

from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.values import Value

FENCE_KEY = "_fence"
MANIFEST_NAME = "manifest.json"
CONVENTION_NAME = ".metadata"
"""PyTorch Distributed Checkpoint writes this file last."""
CONVENTION_SUFFIX = ".distcp"

_FOLDER = re.compile(r"attempt=([1-9][0-9]*)/step=([0-9]{9,})")
_FILE = re.compile(r"[A-Za-z0-9._-]+")
_SHARD = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.[A-Za-z0-9._-]+")


class CheckpointRef(Value):
    """One checkpoint of a job: who wrote it, and at which step."""

    attempt: int = Field(ge=1)
    step: int = Field(ge=0)

    @property
    def folder(self) -> str:
        """Key of its folder, without a closing slash."""
        return f"attempt={self.attempt}/step={self.step:09d}"

    @property
    def manifest_key(self) -> str:
        return f"{self.folder}/{MANIFEST_NAME}"

    @property
    def convention_key(self) -> str:
        return f"{self.folder}/{CONVENTION_NAME}"

    def point(self, key: str | None = None) -> ResumePoint:
        """Return the resume point at this checkpoint; `key` where it is not the manifest."""
        return ResumePoint(attempt=self.attempt, step=self.step, manifest=key or self.manifest_key)


def ref_of_folder(folder: str) -> CheckpointRef | None:
    """Read `attempt=<n>/step=<9 digits>`, with or without a closing slash; None for anything else."""
    match = _FOLDER.fullmatch(folder.removesuffix("/"))
    if match is None:
        return None
    ref = CheckpointRef(attempt=int(match[1]), step=int(match[2]))
    return ref if ref.folder == folder.removesuffix("/") else None


def ref_of_key(key: str) -> CheckpointRef | None:
    """Return the checkpoint that a key lies in; None where it lies in none."""
    folder, _, _ = key.rpartition("/")
    return ref_of_folder(folder)


def is_file_name(name: str) -> bool:
    """Whether a name may stand in a checkpoint's folder: flat, plain, and not the manifest's own."""
    return _FILE.fullmatch(name) is not None and name not in (".", "..", MANIFEST_NAME)


def rank_and_world(name: str) -> tuple[int, int] | None:
    """Read rank and world size from `shard-<i>-of-<w>.<ext>`; None for a file named otherwise."""
    match = _SHARD.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
