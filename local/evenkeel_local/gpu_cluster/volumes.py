"""Volumes of pods, which are plain processes here: folders of this machine.

Without a container, nothing can be mounted at an absolute path. So when a container starts, paths below a `mountPath`
are rewritten to the volume's folder. Such a path must be a whole environment value or word of the command, alone or
after `file://` or `--option=`. All pods of a namespace share the folder of a claim. An emptyDir belongs to one pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from evenkeel_local.gpu_cluster.catalogue import CONFIG_MAPS, SECRETS, VOLUME_CLAIMS
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
    """Return the first claim of a pod that does not exist."""
    for name in claims_of(pod["spec"]):
        if store.find(VOLUME_CLAIMS.key, namespace_of(pod), name) is None:
            return name
    return None


def prepare_volumes(pod: Obj, container: Obj, pod_dir: Path, shared_dir: Path, data: Data) -> dict[str, Path]:
    """Create the folders of a container's volumes; return the folder of each mount path."""
    folders: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        folders[volume["name"]] = _volume_folder(volume, pod, pod_dir, shared_dir, data)
    mounted_folders: dict[str, Path] = {}
    for mount in container.get("volumeMounts") or ():
        folder = folders.get(mount["name"])
        if folder is not None:
            target = folder / mount["subPath"] if mount.get("subPath") else folder
            target.mkdir(parents=True, exist_ok=True)
            mounted_folders[str(mount["mountPath"]).rstrip("/")] = target
    return mounted_folders


def _volume_folder(volume: Obj, pod: Obj, pod_dir: Path, shared_dir: Path, data: Data) -> Path:
    if claim := volume.get("persistentVolumeClaim"):
        folder = shared_dir / namespace_of(pod) / str(claim["claimName"])
    elif host := volume.get("hostPath"):
        return Path(str(host["path"]))
    else:
        folder = pod_dir / "volumes" / str(volume["name"])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, key, field in (("configMap", CONFIG_MAPS.key, "name"), ("secret", SECRETS.key, "secretName")):
        if source := volume.get(kind):
            for name, text in (data(key, {**source, "name": source.get(field)}) or {}).items():
                (folder / name).write_text(text)
    return folder


def rewrite_path(text: str, mounted_folders: Mapping[str, Path]) -> str:
    """Return a word with a path below a mount path rewritten to the volume's folder."""
    match = _WORD.match(text)
    if match is None:
        return text
    path = match.group("path")
    for mount in sorted(mounted_folders, key=len, reverse=True):
        if path == mount or path.startswith(f"{mount}/"):
            return f"{match.group('before')}{mounted_folders[mount]}{path[len(mount) :]}"
    return text
