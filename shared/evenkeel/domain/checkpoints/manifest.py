"""The manifest: what a checkpoint consists of, written by rank 0 after every shard is in the store."""

import json
import math
from datetime import datetime
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from evenkeel.domain.checkpoints.layout import CheckpointRef, is_file_name, rank_and_world
from evenkeel.domain.values import Instant, Value

SCHEMA_VERSION = 1


class ManifestUnreadableError(ValueError):
    """The bytes are no manifest of this checkpoint. The message says what is wrong with them."""


def _instant(text: object) -> datetime:
    if not isinstance(text, str):
        raise ValueError("an instant is RFC 3339 text")  # noqa: TRY004 - pydantic turns ValueError into its own error
    return datetime.fromisoformat(text)


WrittenInstant = Annotated[Instant, BeforeValidator(_instant)]
Metric = StrictInt | StrictFloat | StrictStr


class Shard(Value):
    """One file of a checkpoint."""

    key: StrictStr
    """Relative to the checkpoint URI."""
    size_bytes: Annotated[StrictInt, Field(ge=0)]
    sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Value):
    """What a checkpoint consists of."""

    schema_version: StrictInt
    job_id: StrictStr
    attempt: Annotated[StrictInt, Field(ge=1)]
    step: Annotated[StrictInt, Field(ge=0)]
    started_at: WrittenInstant
    """When the first rank began to write it, by that rank's clock."""
    created_at: WrittenInstant
    world_size: Annotated[StrictInt, Field(ge=1)]
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """Numbers worth keeping, the loss for one. What is not finite is written as text (`"NaN"`)."""
    is_finite: StrictBool | None = None
    """What the script's own look at its weights found; None = it did not look."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """The training script's own; never read here."""

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def claims_healthy(self) -> bool:
        """Whether it says of itself that its numbers are sound: by a look at its weights, or by a finite loss."""
        if self.is_finite is False or self.metric_not_finite():
            return False
        return self.is_finite is True or "loss" in self.metrics

    def metric_not_finite(self) -> str | None:
        """Name a metric that is not a finite number: weights that gave it are not worth resuming from."""
        for name, value in self.metrics.items():
            if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
                return name
        return None


def parse_manifest(ref: CheckpointRef, content: bytes) -> Manifest:
    """Read the manifest of `ref`.

    Raises:
        ManifestUnreadableError: Not JSON, not this schema, or not about this checkpoint.
    """
    try:
        document = json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ManifestUnreadableError(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ManifestUnreadableError("it is not a JSON object")
    if document.get("schemaVersion") != SCHEMA_VERSION:
        raise ManifestUnreadableError(f"schemaVersion {document.get('schemaVersion')!r} is not known")
    try:
        manifest = Manifest.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ManifestUnreadableError(f"{place}: {first['msg']}") from error
    _require_consistent(ref, manifest)
    return manifest


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _require_consistent(ref: CheckpointRef, manifest: Manifest) -> None:
    if (manifest.attempt, manifest.step) != (ref.attempt, ref.step):
        raise ManifestUnreadableError(f"it speaks of attempt {manifest.attempt} step {manifest.step}")
    if len({shard.key for shard in manifest.shards}) != len(manifest.shards):
        raise ManifestUnreadableError("it names a shard twice")
    for shard in manifest.shards:
        folder, _, name = shard.key.rpartition("/")
        if folder != ref.folder or not is_file_name(name):
            raise ManifestUnreadableError(f"{shard.key!r} lies outside the checkpoint")
        place = rank_and_world(name)
        if place is not None and (place[1] != manifest.world_size or place[0] >= manifest.world_size):
            raise ManifestUnreadableError(f"{name} does not fit a world of {manifest.world_size}")


def rank_without_shard(manifest: Manifest) -> int | None:
    """Return a rank that wrote nothing, where the shards are named by rank; None where every rank is there."""
    places = [rank_and_world(shard.key.rpartition("/")[2]) for shard in manifest.shards]
    ranks = {place[0] for place in places if place is not None}
    if not ranks:
        return None  # files named by another convention claim no rank
    return next((rank for rank in range(manifest.world_size) if rank not in ranks), None)
