"""Validation of a submitted job by its specification alone."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.elastic.throughput import MAX_PER_SECOND, MIN_PER_SECOND, MIN_POINTS, SizeThroughput
from evenkeel.domain.jobs.pod_rules import OBJECT_NAME
from evenkeel.domain.jobs.spec import MAX_MIXED_POOLS, MAX_NODES, MAX_SIZES, MAX_TEXT, MAX_URI, JobSpec
from evenkeel.domain.jobs.volumes import (
    ScratchFolder,
    Volume,
    checkpoint_mount,
    overlaps,
    why_not_mountable,
    why_not_sub_path,
)
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.submitted import submitted_fields
from evenkeel.domain.values import Value

MAX_SPEC = 65_536
"""Bytes of the whole job as JSON in UTF-8, so that its row, its records and their transactions can hold it.

A row of the ledger may have 400 kB, and a record of a decision repeats parts of the job.
"""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no text may contain: control characters except tab and newlines, and unpaired surrogates."""
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,511}", re.ASCII)
_S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=-]{1,256}){1,32}/?", re.ASCII)
_FILE_URI = re.compile(r"file://(/[A-Za-z0-9!_.*'()=-]{1,255}){2,32}/?", re.ASCII)
_BUCKET_ALIASES = ("-s3alias", "--ol-s3", ".mrap")
"""Suffixes of the aliases of S3 access points. No bucket may have such a name.

An alias is another name of a bucket: two jobs, or two teams, could use one folder under two names.
"""
_LAYOUT_NAME = re.compile(r"(attempt|step)=.*|_fence|manifest\.json", re.ASCII)
"""Names that `domain.checkpoints.layout` uses below a job's checkpoint URI."""
_DNS_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){OBJECT_NAME}", re.ASCII)
_SECRET_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", re.ASCII)

RESERVED_ENV = frozenset(
    {
        *("EVENKEEL_JOB_ID", "EVENKEEL_ATTEMPT", "EVENKEEL_CHECKPOINT_URI", "EVENKEEL_RESUME_FROM"),
        *("EVENKEEL_DISTRUST_AFTER", "EVENKEEL_DISTRUST_THROUGH", "EVENKEEL_DISTRUST_REQUIREMENT"),
        *("EVENKEEL_ACCEPT_CONVENTION", "EVENKEEL_START_OVER", "EVENKEEL_DAMAGED_CHECKPOINTS"),
        *("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "POD_IP"),
    }
)
"""Variables of the training contract: each attempt sets them."""
RESERVED_LABEL_DOMAINS = ("evenkeel.io", "kubernetes.io", "k8s.io", "x-k8s.io")
"""Label domains of controllers. Kueue would suspend a job that names one of its queues."""


class SpecError(NamedTuple):
    """An error in a field of a job."""

    field: str
    """The field in camelCase, as the caller wrote it: `nodes`, `env.PATH`."""
    message: str


def check_spec(spec: JobSpec) -> tuple[SpecError, ...]:
    """Return all errors of a job; empty if it may be queued."""
    return tuple(_spec_errors(spec))


def is_bucket_alias(uri: str) -> bool:
    """Return whether an S3 URI names a bucket by the alias of an access point."""
    scheme, _, path = uri.partition("://")
    return scheme == "s3" and path.partition("/")[0].endswith(_BUCKET_ALIASES)


def check_deadline(spec: JobSpec, now: datetime) -> tuple[SpecError, ...]:
    """Return the error of a deadline at submission: a deadline in the past must be a mistake."""
    if spec.deadline_at is None or spec.deadline_at > now:
        return ()
    return (SpecError("deadline", f"The deadline must be in the future; the time is now {now:%Y-%m-%dT%H:%M:%SZ}."),)


def _spec_errors(spec: JobSpec) -> Iterator[SpecError]:
    if not _IMAGE.fullmatch(spec.image) or {"", ".", ".."} & set(spec.image.split("/")):
        yield SpecError("image", "Name a container image, for example registry/name:tag.")
    yield from _declared_errors(spec)
    yield from _declared_errors(spec.requires, "requires.")
    yield from _elastic_errors(spec)
    yield from _network_errors(spec)
    yield from _program_errors(spec)
    yield from _label_errors(spec)
    yield from _checkpoint_errors(spec)
    yield from mount_errors(spec.volumes, spec.scratch, spec.checkpoint_uri if spec.checkpoint_claim else "")
    yield from _pod_errors(spec)
    if (size := _bytes_of(spec)) > MAX_SPEC:
        yield SpecError("job", f"The job takes {size} bytes as JSON; the limit is {MAX_SPEC}.")


def _declared_errors(value: Value, prefix: str = "") -> Iterator[SpecError]:
    """Compare the fields of a value with what `Submitted` declares for them, except the length of texts."""
    for field in submitted_fields(type(value)):
        field_value, rules, field_path = getattr(value, field.name), field.rules, prefix + ".".join(field.path)
        if rules.limits and field_value is not None and not rules.limits[0] <= field_value <= rules.limits[1]:
            yield SpecError(field_path, f"Choose {rules.limits[0]} to {rules.limits[1]} {rules.unit}.")
        elif rules.max_items and len(field_value) > rules.max_items:
            yield SpecError(field_path, f"Give at most {rules.max_items} {rules.unit}.")
        elif isinstance(field_value, str) and field_value != field.field.default and not rules.allows(field_value):
            yield SpecError(field_path, rules.advice)
        elif isinstance(field_value, tuple):
            for index, item in enumerate(field_value):
                if isinstance(item, Value):
                    yield from _declared_errors(item, f"{field_path}.{index}.")
                elif isinstance(item, str) and not rules.allows(item):
                    yield SpecError(f"{field_path}.{index}", rules.advice)


def mount_errors(
    volumes: Iterable[Volume], scratch: Iterable[ScratchFolder], checkpoint_uri: str = ""
) -> Iterator[SpecError]:
    """Yield the errors of claims and scratch folders: their names, their paths, and mounts that hide each other.

    Args:
        volumes: The claims.
        scratch: The scratch folders.
        checkpoint_uri: URI of the checkpoints, if they are on a claim.
    """
    mounts = [("checkpoint.uri", checkpoint_mount(checkpoint_uri))]
    for index, volume in enumerate(volumes):
        field = f"volumes.{index}"
        if not _DNS_SUBDOMAIN.fullmatch(volume.claim):
            yield SpecError(f"{field}.claim", "Name a PersistentVolumeClaim of the job's namespace.")
        if message := why_not_sub_path(volume.sub_path):
            yield SpecError(f"{field}.subPath", message)
        mounts.append((f"{field}.mountPath", volume.mount_path))
    mounts += [(f"scratch.{index}.mountPath", folder.mount_path) for index, folder in enumerate(scratch)]
    usable = []
    for field, path in mounts:
        message = why_not_mountable(path) if path or field != "checkpoint.uri" else ""
        # The other errors of a checkpoint URI are reported with the URI.
        if message and (field != "checkpoint.uri" or _FILE_URI.fullmatch(checkpoint_uri)):
            yield SpecError(field, message)
        elif not message:
            usable.append((field, path))
    yield from (SpecError(field, text) for field, text in overlaps(usable))


def _pod_errors(spec: JobSpec) -> Iterator[SpecError]:
    for index, name in enumerate(spec.image_pull_secrets):
        if not _DNS_SUBDOMAIN.fullmatch(name):
            yield SpecError(f"imagePullSecrets.{index}", "Name a Secret of the job's namespace.")
    if spec.shared_memory_gib and spec.shared_memory_gib > (spec.memory_gib_per_node or 0):
        text = f"/dev/shm is part of the pod's memory. Set memoryGibPerNode to at least {spec.shared_memory_gib}."  # noqa: S108 - inside the pod
        yield SpecError("sharedMemoryGib", text)
    if (spec.huge_pages_mib_per_node or 0) % 2:
        yield SpecError("hugePagesMibPerNode", "Huge pages have 2 MiB: choose an even number.")


def _bytes_of(spec: JobSpec) -> int:
    return len(json.dumps(spec.to_json(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def _elastic_errors(spec: JobSpec) -> Iterator[SpecError]:
    elastic = spec.elastic
    if elastic is None:
        return
    if not 1 <= elastic.min_nodes <= MAX_NODES:
        yield SpecError("elastic.minNodes", f"Allow 1 to {MAX_NODES} nodes.")
    elif not elastic.min_nodes <= elastic.max_nodes <= MAX_NODES:
        yield SpecError("elastic.maxNodes", f"Allow {elastic.min_nodes} (minNodes) to {MAX_NODES} nodes.")
    elif elastic.step is not None and elastic.sizes:
        yield SpecError("elastic.step", "Give a step or sizes, not both.")
    elif elastic.step is not None and not 1 <= elastic.step <= MAX_NODES:
        yield SpecError("elastic.step", f"A step is 1 to {MAX_NODES} nodes.")
    elif len(elastic.sizes) > MAX_SIZES:
        yield SpecError("elastic.sizes", f"Name at most {MAX_SIZES} sizes.")
    elif any(not elastic.min_nodes <= size <= elastic.max_nodes for size in elastic.sizes):
        yield SpecError("elastic.sizes", "Each size lies between minNodes and maxNodes.")
    elif spec.sizes and spec.nodes not in spec.sizes.legal:
        legal = spec.sizes.legal
        shown = ", ".join(map(str, legal[:8])) + (", …" if len(legal) > 8 else "")
        yield SpecError("nodes", f"Choose one of the sizes that elastic allows: {shown}.")
    yield from _throughput_errors(elastic.throughput)
    yield from _mixed_errors(spec)
    if not spec.checkpoint_uri:
        yield SpecError("elastic", "An elastic job resumes from checkpoints: set checkpoint.uri.")


def _mixed_errors(spec: JobSpec) -> Iterator[SpecError]:
    pools = spec.elastic.mixed_pools if spec.elastic else ()
    if not pools:
        return
    if len(pools) > MAX_MIXED_POOLS or len({*pools}) < len(pools):
        yield SpecError("elastic.mixedPools", f"Name at most {MAX_MIXED_POOLS} pools, each once.")
    if spec.kind is not WorkloadKind.JOB:
        yield SpecError("elastic.mixedPools", f"Rented nodes join jobs of kind Job only, and this is a {spec.kind}.")
    if spec.elastic and spec.elastic.min_nodes == spec.elastic.max_nodes:
        yield SpecError("elastic.mixedPools", "Rented nodes join a job as it grows: set maxNodes above minNodes.")


def _network_errors(spec: JobSpec) -> Iterator[SpecError]:
    if spec.required_network_level and spec.preferred_network_level:
        yield SpecError("network.preferredLevel", "Require a level or prefer one, not both.")
    if spec.required_network_level and spec.elastic:
        text = "An elastic job changes its nodes, so it cannot require a level. Set network.preferredLevel instead."
        yield SpecError("network.requiredLevel", text)


def _throughput_errors(points: Sequence[SizeThroughput]) -> Iterator[SpecError]:
    if points and len({point.nodes for point in points}) < max(MIN_POINTS, len(points)):
        yield SpecError("elastic.throughput", "Give the throughput at two or more sizes, each size once.")
    for index, throughput in enumerate(points):
        if not 1 <= throughput.nodes <= MAX_NODES:
            yield SpecError(f"elastic.throughput.{index}.nodes", f"Allow 1 to {MAX_NODES} nodes.")
        if not MIN_PER_SECOND <= throughput.per_second <= MAX_PER_SECOND:
            range_text = f"Allow {MIN_PER_SECOND:g} to {MAX_PER_SECOND:g}."
            yield SpecError(f"elastic.throughput.{index}.perSecond", range_text)


def _program_errors(spec: JobSpec) -> Iterator[SpecError]:
    if not spec.command or not spec.command[0]:
        yield SpecError("command", "Set the command to run.")
    yield from _secret_errors(spec)
    for name in spec.env:
        if name in RESERVED_ENV:
            yield SpecError(f"env.{name}", "Evenkeel sets this variable in every attempt.")
        elif not _ENV_NAME.fullmatch(name):
            shown = name[:40].encode("unicode_escape").decode()
            yield SpecError(f"env.{shown}", "Use letters, digits and underscores, and do not start with a digit.")
    texts = (*spec.command, *spec.args, *spec.env, *spec.env.values())
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) > MAX_TEXT:
        yield SpecError("command", f"Command, arguments and environment may take at most {MAX_TEXT} bytes together.")
    if any(_FORBIDDEN_CHARACTERS.search(text) for text in texts):
        text = "Command, arguments and environment may contain no control characters except tabs and newlines."
        yield SpecError("command", text)


def _secret_errors(spec: JobSpec) -> Iterator[SpecError]:
    for name, source in spec.secret_env.items():
        shown = f"secretEnv.{name[:40].encode('unicode_escape').decode()}"
        if name in RESERVED_ENV:
            yield SpecError(shown, "Evenkeel sets this variable in every attempt.")
        elif not _ENV_NAME.fullmatch(name):
            yield SpecError(shown, "Use letters, digits and underscores, and do not start with a digit.")
        elif name in spec.env:
            yield SpecError(shown, "This variable is also set in env. Set it only once.")
        elif not _DNS_SUBDOMAIN.fullmatch(source.secret):
            yield SpecError(f"{shown}.secret", "Name a Secret of the job's namespace.")
        elif not _SECRET_KEY.fullmatch(source.key):
            yield SpecError(f"{shown}.key", "Name a key of the Secret: letters, digits, dots, dashes and underscores.")


def _label_errors(spec: JobSpec) -> Iterator[SpecError]:
    for key, value in spec.labels.items():
        domain = key.rpartition("/")[0]
        if any(
            domain == reserved_domain or domain.endswith(f".{reserved_domain}")
            for reserved_domain in RESERVED_LABEL_DOMAINS
        ):
            yield SpecError(f"labels.{key[:80]}", "Jobs may not set labels with this prefix.")
        elif not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            shown = key[:80].encode("unicode_escape").decode()
            yield SpecError(f"labels.{shown}", "Use the Kubernetes label format, with at most 63 characters.")


def _checkpoint_errors(spec: JobSpec) -> Iterator[SpecError]:
    if spec.checkpoint_uri and not _is_checkpoint_uri(spec.checkpoint_uri):
        text = "Use s3://bucket/prefix or file:///folder/path with a path that only this job uses, or leave it empty."
        yield SpecError("checkpoint.uri", text)
    elif is_bucket_alias(spec.checkpoint_uri):
        yield SpecError("checkpoint.uri", "Name the bucket itself, not an access point alias.")
    elif spec.keeps_checkpoints_in_cluster and not spec.checkpoint_claim:
        text = "Name the PersistentVolumeClaim that holds the folder. Files written elsewhere are lost with the pod."
        yield SpecError("checkpoint.claim", text)
    elif spec.checkpoint_claim and not spec.keeps_checkpoints_in_cluster:
        yield SpecError("checkpoint.claim", "A claim is allowed only with a file:///folder/path checkpoint URI.")
    elif spec.checkpoint_claim and not _DNS_SUBDOMAIN.fullmatch(spec.checkpoint_claim):
        yield SpecError("checkpoint.claim", "Name a PersistentVolumeClaim of the job's namespace.")


def _is_checkpoint_uri(uri: str) -> bool:
    is_known = _S3_URI.fullmatch(uri) or _FILE_URI.fullmatch(uri)
    segments = uri.partition("://")[2].rstrip("/").split("/")
    # In such a folder, a job would write into the checkpoints of another job.
    is_layout_folder = any(_LAYOUT_NAME.fullmatch(segment) for segment in segments[1:])
    return len(uri) <= MAX_URI and is_known is not None and not {".", ".."} & set(segments) and not is_layout_folder
