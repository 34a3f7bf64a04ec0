"""Write the table for reading Kubernetes' protobuf in the local cluster, from the Go types.

    .venv/bin/python tools/protobuf_fields.py <checkout of kubernetes/api> <checkout of kubernetes/apimachinery>

A line of the table is a message: its name, then `field=number:type` for each field. A type is `s` (string), `i`
(integer), `b` (boolean), `y` (bytes), a leaf of `LEAVES`, or the name of a message. The prefix `[]` means a list, and
`{}` a map of strings. With the prefix `^`, JSON writes the message's fields in place of the message. With the suffix
`?`, JSON omits the field at its zero value; Go's protobuf writes it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "local/evenkeel_local/gpu_cluster/protobuf_fields.txt"
PACKAGES = {
    "core": ("", "v1"),
    "apps": ("apps", "v1"),
    "authentication": ("authentication.k8s.io", "v1"),
    "authorization": ("authorization.k8s.io", "v1"),
    "autoscaling": ("autoscaling", "v1"),
    "batch": ("batch", "v1"),
    "coordination": ("coordination.k8s.io", "v1"),
    "policy": ("policy", "v1"),
    "rbac": ("rbac.authorization.k8s.io", "v1"),
    "scheduling": ("scheduling.k8s.io", "v1"),
}
ROOTS = {
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authentication": "SelfSubjectReview TokenRequest",
    "authorization": "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview LocalSubjectAccessReview",
    "autoscaling": "Scale",
    "batch": "CronJob Job",
    "coordination": "Lease",
    "core": "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
    "PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount",
    "meta": "DeleteOptions",
    "policy": "Eviction PodDisruptionBudget",
    "rbac": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling": "PriorityClass",
}
LEAVES = {
    "meta/Time": "time",
    "meta/MicroTime": "microtime",
    "meta/FieldsV1": "json",
    "runtime/RawExtension": "json",
    "resource/Quantity": "quantity",
    "intstr/IntOrString": "intorstring",
}
SCALARS = {"string": "s", "bool": "b", "int": "i", "int32": "i", "int64": "i", "uint32": "i", "[]byte": "y"}
NAMED = re.compile(r"^type (\w+) (?!struct\b)(\S+)$", re.MULTILINE)
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r'^\s+(?:\w+ +)?(\S+) +`json:"([^"]*)"[^`]*? protobuf:"([^"]*)"', re.MULTILINE)
ALIASES = {"v1": "core", "apiv1": "core", "corev1": "core", "metav1": "meta", "types": "types"}


class Types:
    """The Go types of the packages: structs and aliases by qualified name."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.names = {"types/UID": "string"}
        self.structs: dict[str, str] = {}
        for package, text in sources.items():
            self.names.update({f"{package}/{name}": kind for name, kind in NAMED.findall(text)})
            self.structs.update({f"{package}/{name}": body for name, body in STRUCT.findall(text)})

    def message(self, name: str) -> tuple[str, set[str]]:
        """Return a message's line, and the messages it refers to."""
        parts, used = [name], set()
        for go_type, json_tag, protobuf_tag in FIELD.findall(self.structs[name]):
            number, stated = protobuf_tag.split(",")[1], protobuf_tag.rpartition("name=")[2]
            json_name, _, options = json_tag.partition(",")
            kind = self.kind(go_type.lstrip("*"), name.partition("/")[0])
            has_zero = kind in ("s", "i", "b", "y") or kind.startswith(("[]", "{}"))
            may_vanish = "omitempty" in options and has_zero and not go_type.startswith("*")
            inline = "^" if "inline" in options else ""
            parts.append(f"{json_name or stated}={number}:{inline}{kind}{'?' if may_vanish else ''}")
            if "/" in kind:
                used.add(kind.removeprefix("[]").removeprefix("{}"))
        return " ".join(parts), used

    def kind(self, go_type: str, package: str) -> str:
        """Return how the table writes a Go type as seen from a package."""
        if go_type in SCALARS:
            return SCALARS[go_type]
        if go_type.startswith("[]"):
            return f"[]{self.kind(go_type[2:].lstrip('*'), package)}"
        if entry := re.match(r"map\[\w+\](.*)", go_type):
            return f"{{}}{self.kind(entry[1], package)}"
        qualifier, _, bare = go_type.rpartition(".")
        name = f"{ALIASES.get(qualifier, qualifier) or package}/{bare}"
        if name in LEAVES:
            return LEAVES[name]
        if name in self.names:
            return self.kind(self.names[name], name.partition("/")[0])
        if name not in self.structs:
            sys.exit(f"{go_type} of {package} is not known")
        return name


def main() -> None:
    api, machinery = Path(sys.argv[1]), Path(sys.argv[2])
    sources = {
        package: (api / package / version / "types.go").read_text() for package, (_, version) in PACKAGES.items()
    }
    sources["meta"] = (machinery / "pkg/apis/meta/v1/types.go").read_text()
    types = Types(sources)
    wanted = {f"{package}/{kind}" for package, kinds in ROOTS.items() for kind in kinds.split()}
    groups = {package: f"{group}/{version}".strip("/") for package, (group, version) in PACKAGES.items()}
    roots = [f"! {name} {groups.get(name.partition('/')[0], '*')}" for name in sorted(wanted)]
    lines: dict[str, str] = {}
    while wanted:
        name = wanted.pop()
        lines[name], used = types.message(name)
        wanted |= used - lines.keys()
    TARGET.write_text("\n".join([*roots, *(lines[name] for name in sorted(lines))]) + "\n")


if __name__ == "__main__":
    main()
