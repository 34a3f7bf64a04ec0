"""The store of checkpoints, as Evenkeel's functions read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class StoredShard:
    """Size, checksum and time of one object, from the store itself."""

    size_bytes: int
    sha256: str | None = None
    """Checksum in hex; None if the store has none."""
    modified_at: datetime | None = None


class CheckpointStore(Protocol):
    """The store of checkpoints. `uri` is the job's checkpoint URI."""

    def folders(self, uri: str) -> tuple[str, ...]:
        """Return the checkpoint folders (`attempt=<n>/step=<9 digits>`) relative to the URI, finished or not."""
        ...

    def contents(self, uri: str, folder: str, *, checksums_of: Collection[str] = ()) -> Mapping[str, StoredShard]:
        """Return the objects of one folder with size and time, by their key relative to the URI.

        Objects in `checksums_of` also get their stored checksum. The data itself is never read. An object that
        disappears meanwhile is left out. The call needs one listing, and one request per checksum.
        """
        ...

    def read(self, uri: str, key: str) -> bytes:
        """Read a small object (a manifest or the fence).

        Raises:
            NotFound: The object does not exist.
            TooLarge: The object is larger than a manifest may be.
        """
        ...

    def fence(self, uri: str) -> tuple[dict[str, Any] | None, str]:
        """Return the fence document and its tag; (None, "") if there is no fence."""
        ...

    def raise_fence(self, uri: str, document: dict[str, Any], tag: str) -> None:
        """Replace the fence if it still has `tag` ("" = no fence exists).

        Raises:
            Conflict: Another writer was first.
        """
        ...
