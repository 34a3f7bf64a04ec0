"""Values of the Helm chart for tests, and the program that renders it."""

import platform
from pathlib import Path
from typing import Any, Final

import pytest

from tools import chart

BURST: Final[dict[str, Any]] = {
    "nodeClasses": {"burst": {"role": "karpenter-node", "discovery": "research-eks", "ami": "al2023@v20260801"}},
    "nodePools": {
        "burst-on-demand": {
            "nodeClass": "burst",
            "market": "on-demand",
            "instanceType": "p5.48xlarge",
            "zone": "us-west-2a",
            "taints": [{"key": "burst", "value": "true", "effect": "NoSchedule"}],
        },
        "burst-spot": {"nodeClass": "burst", "market": "spot", "instanceType": "p5.48xlarge"},
    },
}
TEAMS: Final[dict[str, Any]] = {
    "namespaces": {"nlp": {"podSecurity": "restricted", "resourceQuota": {"requests.nvidia.com/gpu": "64"}}},
    "restartNamespaces": ["research"],
}


def helm() -> Path:
    """Return the helm program. Skip the test if the machine has none."""
    program = chart.helm()
    if program is None and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the wheel has helm for x86_64 Linux alone; EVENKEEL_HELM can name another")
    assert program is not None, "helm is missing: run `make setup`"
    return program


def key_of(item: dict[str, Any]) -> tuple[str, str, str]:
    """Return kind, namespace and name of an object."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
