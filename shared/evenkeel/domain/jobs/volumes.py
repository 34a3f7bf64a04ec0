"""Folders of a job's pods: claims that are mounted, and scratch folders. Their paths are checked here. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from evenkeel.domain.jobs.pod_rules import MAX_SCRATCH_GIB
from evenkeel.domain.submitted import Submitted
from evenkeel.domain.values import StrictValue

MAX_VOLUMES = 16
MAX_SCRATCH_FOLDERS = 8
MAX_PATH = 253

RESERVED_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin", "/var/run"),
)
"""Folders of the operating system and of Kubernetes. `/run` and `/var/run` hold the token of the service account."""

_PATH = re.compile(r"(/[A-Za-z0-9._=+@-]{1,255}){1,16}", re.ASCII)
_SUB_PATH = re.compile(r"[A-Za-z0-9._=+@-]{1,255}(/[A-Za-z0-9._=+@-]{1,255}){0,15}", re.ASCII)
_PATH_ADVICE = "Use an absolute path of letters, digits and . _ = + @ -, without . or .. and without / at the end."


class Volume(StrictValue):
    """A PersistentVolumeClaim of the job's namespace, mounted into each pod."""

    claim: Annotated[str, Field(max_length=253), Submitted(max_length=253)]
    """Name of the PersistentVolumeClaim."""
    mount_path: Annotated[str, Field(max_length=MAX_PATH), Submitted(max_length=MAX_PATH)]
    """Path in the pods."""
    sub_path: Annotated[str, Field(max_length=MAX_PATH), Submitted(max_length=MAX_PATH)] = ""
    """Folder of the volume to mount. Empty: its root."""
    read_only: Annotated[bool, Submitted()] = True
    """Whether the pods can only read it."""


class ScratchFolder(StrictValue):
    """An empty, writable folder on the disk of the pod's node. It is deleted with the pod."""

    mount_path: Annotated[str, Field(max_length=MAX_PATH), Submitted(max_length=MAX_PATH)]
    """Path in the pods."""
    size_gib: Annotated[int, Submitted(limits=(1, MAX_SCRATCH_GIB), unit="GiB")]
    """Maximum size, in GiB. Kubernetes evicts a pod that writes more."""


def checkpoint_mount(uri: str) -> str:
    """Return the mount path of a checkpoint claim: `/fsx` for `file:///fsx/llama/7b`; empty for other URIs."""
    return f"/{uri.removeprefix('file:///').partition('/')[0]}" if uri.startswith("file:///") else ""


def why_not_mountable(path: str) -> str:
    """Return why a claim or a scratch folder may not be mounted at a path; empty if it may."""
    if len(path) > MAX_PATH or not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        return _PATH_ADVICE
    for tree in RESERVED_TREES:
        if _is_inside(path, tree):
            return f"{tree} belongs to the operating system or to Kubernetes. Choose another path, for example /data."
        if _is_inside(tree, path):
            return f"The mount would hide {tree}. Choose another path, for example /data."
    return ""


def why_not_sub_path(path: str) -> str:
    """Return why a path inside a volume is not valid; empty if it is valid, or empty itself."""
    is_plain = _SUB_PATH.fullmatch(path) and not {".", ".."} & set(path.split("/")) and len(path) <= MAX_PATH
    return "" if not path or is_plain else "Use a relative path without . or .., for example datasets/imagenet."


def overlaps(mounts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield a field and a message for each mount at, inside or around the path of an earlier mount.

    Args:
        mounts: Field name and path of each mount. A mount without a path is left out.
    """
    earlier: list[str] = []
    for field, path in mounts:
        if not path:
            continue
        outer = next(
            (other_path for other_path in earlier if _is_inside(path, other_path) or _is_inside(other_path, path)), ""
        )
        if outer:
            yield field, f"{path} and {outer} overlap, so one mount would hide the other. Give each mount its own path."
        earlier.append(path)


def _is_inside(path: str, tree: str) -> bool:
    """Whether a path is a folder or below it."""
    return path == tree or path.startswith(f"{tree.rstrip('/')}/")
