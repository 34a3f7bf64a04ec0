"""Custom resource definitions of the controllers that the cluster simulates: open schemas with a status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from evenkeel_local.gpu_cluster.errors import Obj


def resource_definition(
    group: str,
    plural: str,
    kind: str,
    *,
    version: str = "v1",
    scope: Literal["Cluster", "Namespaced"] = "Cluster",
    short: Sequence[str] = (),
    columns: Iterable[tuple[str, str]] = (),
) -> Obj:
    """Return the custom resource definition of a kind.

    Args:
        group: API group.
        plural: Name in paths.
        kind: Name of the kind.
        version: The only version, which is served and stored.
        scope: `Namespaced` or `Cluster`: where its objects are.
        short: Short names for kubectl.
        columns: Title and JSON path of each column that kubectl prints.
    """
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": list(short)},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"spec": open_schema, "status": open_schema},
                        }
                    },
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": title, "type": "string", "jsonPath": path} for title, path in columns
                    ],
                }
            ],
        },
    }
