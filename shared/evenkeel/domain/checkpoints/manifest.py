"""The manifest lists the files of a checkpoint. Rank 0 writes it after all shards are in the store."""

import json
import math
from datetime import datetime
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from evenkeel.domain.checkpoints.layout import CheckpointRef, is_file_name, rank_and_world
from evenkeel.domain.elastic.throughput import MAX_PER_SECOND, MIN_PER_SECOND
from evenkeel.domain.values import Instant, Value

SCHEMA_VERSION = 1


class ManifestUnreadableError(ValueError):
    """The bytes are not a valid manifest of this checkpoint. The message names the problem."""


def _instant(text: object) -> datetime:
    if not isinstance(text, str):
        raise ValueError("must be an RFC 3339 time")  # noqa: TRY004 - pydantic turns ValueError into its own error
    return datetime.fromisoformat(text)


WrittenInstant = Annotated[Instant, BeforeValidator(_instant)]
Metric = StrictInt | StrictFloat | StrictStr


class Shard(Value):
    """A file of a checkpoint."""

    key: StrictStr
    """Relative to the checkpoint URI."""
    size_bytes: Annotated[StrictInt, Field(ge=0)]
    sha256: Annotated[StrictStr, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(Value):
    """The list of a checkpoint's files, with their sizes and checksums."""

    schema_version: StrictInt
    job_id: StrictStr
    attempt: Annotated[StrictInt, Field(ge=1)]
    step: Annotated[StrictInt, Field(ge=0)]
    started_at: WrittenInstant
    """Time at which the first rank started to write the checkpoint, by that rank's clock."""
    created_at: WrittenInstant
    world_size: Annotated[StrictInt, Field(ge=1)]
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """Numbers such as the loss. A number that is not finite is stored as text (`"NaN"`)."""
    is_finite: StrictBool | None = None
    """Whether the training script found all weights finite; None if it did not check."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Data of the training script. Evenkeel does not read it."""

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def throughput(self) -> float | None:
        """Units of work per second that the training script reports as the metric `throughput`; None without one."""
        value = self.metrics.get("throughput")
        if isinstance(value, int | float) and MIN_PER_SECOND <= value <= MAX_PER_SECOND:
            return float(value)
        return None

    @property
    def claims_healthy(self) -> bool:
        """Whether the manifest shows healthy numbers: the script checked its weights, or the loss is finite."""
        if self.is_finite is False or self.metric_not_finite():
            return False
        return self.is_finite is True or "loss" in self.metrics

    def metric_not_finite(self) -> str | None:
        """Return the name of a metric that is not a finite number; None if all are.

        Weights with such a metric are useless.
        """
        for name, value in self.metrics.items():
            if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
                return name
        return None


def parse_manifest(ref: CheckpointRef, content: bytes) -> Manifest:
    """Parse the manifest of the checkpoint `ref`.

    Raises:
        ManifestUnreadableError: The bytes are not JSON, have another schema, or describe another checkpoint.
    """
    try:
        document = json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ManifestUnreadableError(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ManifestUnreadableError("it is not a JSON object")
    if document.get("schemaVersion") != SCHEMA_VERSION:
        raise ManifestUnreadableError(f"schemaVersion {document.get('schemaVersion')!r} is not supported")
    try:
        manifest = Manifest.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(field) for field in first_error["loc"])
        raise ManifestUnreadableError(f"{field}: {first_error['msg']}") from error
    _require_consistent(ref, manifest)
    return manifest


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _require_consistent(ref: CheckpointRef, manifest: Manifest) -> None:
    if (manifest.attempt, manifest.step) != (ref.attempt, ref.step):
        raise ManifestUnreadableError(f"it describes attempt {manifest.attempt} step {manifest.step}")
    if len({shard.key for shard in manifest.shards}) != len(manifest.shards):
        raise ManifestUnreadableError("it lists a shard twice")
    for shard in manifest.shards:
        folder, _, name = shard.key.rpartition("/")
        if folder != ref.folder or not is_file_name(name):
            raise ManifestUnreadableError(f"{shard.key!r} is not a file of the checkpoint's folder")
        rank_of_name = rank_and_world(name)
        if rank_of_name is not None and (
            rank_of_name[1] != manifest.world_size or rank_of_name[0] >= manifest.world_size
        ):
            raise ManifestUnreadableError(f"{name} does not match the world size {manifest.world_size}")


def rank_without_shard(manifest: Manifest) -> int | None:
    """Return the first rank without a shard in the manifest.

    None if every rank has a shard, or if no file name contains a rank.
    """
    parsed_names = [rank_and_world(shard.key.rpartition("/")[2]) for shard in manifest.shards]
    ranks = {rank_of_name[0] for rank_of_name in parsed_names if rank_of_name is not None}
    if not ranks:
        return None
    return next((rank for rank in range(manifest.world_size) if rank not in ranks), None)
