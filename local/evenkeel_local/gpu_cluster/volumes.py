"""Volumes for pods that are plain processes: folders of this machine, and the paths that lead to them.

Nothing can be mounted at an absolute path without a container. So an environment value, or a word of the command,
that *is* a path below a `mountPath` (alone, after `file://`, or after `--option=`) is rewritten to the volume's
folder when the container starts. A claim's folder is shared by all pods of its namespace, as a shared filesystem is;
an emptyDir is the pod's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import Store, TypeKey, namespace_of

_WORD = re.compile(r"^(?P<before>(?:--?[\w.-]+=)?(?:file://)?)(?P<path>/.*)$")
Data = Callable[[TypeKey, Obj], Mapping[str, str] | None]


def claims_of(spec: Obj) -> list[str]:
    """Return the names of the claims that a pod uses."""
    return [
        str(volume["persistentVolumeClaim"]["claimName"])
        for volume in spec.get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    ]


def missing_claim(pod: Obj, store: Store) -> str | None:
    """Return the first claim of a pod that is not there."""
    for name in claims_of(pod["spec"]):
        if store.find(catalogue.VOLUME_CLAIMS.key, namespace_of(pod), name) is None:
            return name
    return None


def prepare(pod: Obj, container: Obj, pod_dir: Path, shared_dir: Path, data: Data) -> dict[str, Path]:
    """Make the folders of a container's volumes; return where each mount path leads."""
    folders: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        folders[volume["name"]] = _folder(volume, pod, pod_dir, shared_dir, data)
    mounted: dict[str, Path] = {}
    for mount in container.get("volumeMounts") or ():
        folder = folders.get(mount["name"])
        if folder is not None:
            target = folder / mount["subPath"] if mount.get("subPath") else folder
            target.mkdir(parents=True, exist_ok=True)
            mounted[str(mount["mountPath"]).rstrip("/")] = target
    return mounted


def _folder(volume: Obj, pod: Obj, pod_dir: Path, shared_dir: Path, data: Data) -> Path:
    if claim := volume.get("persistentVolumeClaim"):
        folder = shared_dir / namespace_of(pod) / str(claim["claimName"])
    elif host := volume.get("hostPath"):
        return Path(str(host["path"]))
    else:
        folder = pod_dir / "volumes" / str(volume["name"])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, key, field in (
        ("configMap", catalogue.CONFIG_MAPS.key, "name"),
        ("secret", catalogue.SECRETS.key, "secretName"),
    ):
        if source := volume.get(kind):
            for name, text in (data(key, {**source, "name": source.get(field)}) or {}).items():
                (folder / name).write_text(text)
    return folder


def rewritten(text: str, mounted: Mapping[str, Path]) -> str:
    """Return a word with a path below a mount path turned to the volume's folder."""
    match = _WORD.match(text)
    if match is None:
        return text
    path = match.group("path")
    for mount in sorted(mounted, key=len, reverse=True):
        if path == mount or path.startswith(f"{mount}/"):
            return f"{match.group('before')}{mounted[mount]}{path[len(mount) :]}"
    return text
