"""The cluster's state as one document: `--data` keeps it across restarts, the control address reads and restores it.

Processes do not survive a restart. Every machine restarts as after a power cut, with a new boot id, and its pods are
reported as lost. Operations in progress continue.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.cluster import GpuCluster
from evenkeel_local.gpu_cluster.config import AccessEntry, PodIdentity
from evenkeel_local.gpu_cluster.machines import EmptySlot, Machine, ProviderCall

Json = dict[str, Any]
SCHEMA_VERSION = 1
REVISION_GAP = 1_000_000
"""Added to the version when a snapshot is restored. A killed cluster gave more versions after its last snapshot. These
are never used again, and a watch from one of them gets 410."""


MACHINE_FIELDS = {
    "instanceId": "instance_id",
    "logicalId": "logical_id",
    "launchTime": "launch_time",
    **{name: name for name in ("group", "status", "message", "operation", "ip")},
}
"""Fields of a machine by their names in a snapshot. A restored machine has a new boot id."""


class SnapshotRefused(Exception):
    """Raised if this cluster cannot restore a snapshot. The message gives the reason."""


def take_snapshot(cluster: GpuCluster) -> Json:
    """Return the current state."""
    store, fleet = cluster.store, cluster.fleet
    return {
        "schemaVersion": SCHEMA_VERSION,
        "takenAt": time.time(),
        "clusterArn": cluster.config.cluster_arn,
        "createdAt": fleet.created_at,
        "revision": store.revision,
        "objects": [{"type": list(key), "object": obj} for key in store.types_in_use() for obj in store.all(key)],
        "machines": [_machine_document(machine) for machine in fleet.machines],
        "emptySlots": [asdict(empty_slot) for empty_slot in fleet.empty_slots],
        "targets": dict(fleet.targets),
        "nodeRecovery": fleet.node_recovery,
        "autoScaling": fleet.auto_scaling,
        "calls": [asdict(call) for call in fleet.calls],
        "accessEntries": [entry.model_dump(mode="json", by_alias=True) for entry in cluster.access_entries],
        "podIdentities": [identity.model_dump(mode="json", by_alias=True) for identity in cluster.pod_identities],
    }


def _machine_document(machine: Machine) -> Json:
    unhealthy = list(machine.unhealthy) if machine.unhealthy is not None else None
    return {key: getattr(machine, field) for key, field in MACHINE_FIELDS.items()} | {"unhealthy": unhealthy}


def restore_snapshot(cluster: GpuCluster, document: Json) -> None:
    """Restore a snapshot into a cluster that has not started yet.

    Raises:
        SnapshotRefused: the document is of another version or another cluster.
    """
    if document.get("schemaVersion") != SCHEMA_VERSION:
        raise SnapshotRefused(f"the snapshot has schema version {document.get('schemaVersion')}, not {SCHEMA_VERSION}")
    if document.get("clusterArn") != cluster.config.cluster_arn:
        raise SnapshotRefused(f"the snapshot is of {document.get('clusterArn')}, not of {cluster.config.cluster_arn}")
    for name in set(cluster.fleet.groups) - set(document["targets"]):  # deleted before the snapshot was taken
        del cluster.fleet.groups[name], cluster.fleet.targets[name]
    missing_groups = {item["group"] for item in document["machines"]} - set(cluster.fleet.groups)
    if missing_groups:
        raise SnapshotRefused(f"the configuration lacks the instance groups {sorted(missing_groups)}")
    typed_objects = [
        (tuple(item["type"]), item["object"])
        for item in document["objects"]
        if item["type"] != ["karpenter.sh", "nodeclaims"] and not _is_launched_again(item)
    ]
    for key, obj in typed_objects:
        if key == catalogue.DEFINITIONS.key:
            cluster.types.define(obj)
    cluster.store.load(typed_objects, int(document["revision"]) + REVISION_GAP)
    fleet = cluster.fleet
    fleet.created_at = document["createdAt"]
    fleet.node_recovery = document["nodeRecovery"]
    fleet.auto_scaling = document.get("autoScaling")
    fleet.targets.update(document["targets"])
    fleet.calls.extend(ProviderCall(**call) for call in document["calls"])
    cluster.access_entries[:] = [AccessEntry.model_validate(entry) for entry in document["accessEntries"]]
    cluster.pod_identities[:] = [PodIdentity.model_validate(entry) for entry in document["podIdentities"]]
    fleet.empty_slots = [EmptySlot(**slot) for slot in document.get("emptySlots", ())]
    for item in document["machines"]:
        fleet.restore_machine(
            Machine(
                **{field: item.get(key, "") for key, field in MACHINE_FIELDS.items()},
                unhealthy=tuple(item["unhealthy"]) if item["unhealthy"] else None,
            )
        )


def _is_launched_again(item: Json) -> bool:
    labels = item["object"]["metadata"].get("labels") or {}
    return item["type"] == ["", "nodes"] and not labels.keys().isdisjoint(_OTHER_NODES)


_OTHER_NODES = ("karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup")
"""Labels of nodes that a restored cluster launches again."""


def lock_folder(folder: Path) -> None:
    """Lock a folder until this process ends.

    Raises:
        SnapshotRefused: another cluster uses the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock_descriptor = os.open(folder / ".claimed", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_descriptor)
        raise SnapshotRefused(f"the folder {folder} is in use by another cluster") from None


def read_snapshot(folder: Path) -> Json | None:
    """Return the snapshot in a data folder, or None.

    Raises:
        SnapshotRefused: the file is not a snapshot, so it must not be overwritten.
    """
    path = folder / "snapshot.json"
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise SnapshotRefused(f"{path} is no snapshot: {error}") from error
    if not isinstance(document, dict):
        raise SnapshotRefused(f"{path} is no snapshot: it is not an object")
    return document


def write_snapshot(folder: Path, document: Json) -> None:
    """Write a snapshot atomically: a crash leaves the previous one."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / "snapshot.tmp"
    # It holds pod identities: only the owner may read it.
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(document))
    draft.replace(folder / "snapshot.json")
