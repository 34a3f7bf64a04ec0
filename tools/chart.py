"""The plain access manifest and the table of values: both follow from the Helm chart `charts/evenkeel`."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "evenkeel"
MANIFEST = ROOT / "charts" / "kubernetes-access.yaml"
PAGE = CHART / "README.md"
_TABLE = re.compile(r"(?<=<!-- table: values -->\n).*?(?=<!-- end -->)", re.DOTALL)
_HEAD = """\
# `make generate` writes this file from the Helm chart charts/evenkeel. Apply the chart or this file to every cluster
# of the fleet. Then run `evenkeel access apply`.
#
# It states what Evenkeel may do in a Kubernetes cluster: nine groups, each no wider than its functions need. It grants
# no secrets and no exec. A reader of pods and Jobs sees their specs in every namespace. All other rights concern nodes,
# Karpenter's pools and machines, evictions and the jobs' namespace. In other namespaces, Evenkeel restarts jobs if the
# namespace binds evenkeel-restarter.
"""


def helm() -> Path | None:
    """Return the helm program from `EVENKEEL_HELM` or `make setup`; None if neither has one."""
    named = os.environ.get("EVENKEEL_HELM")
    program = Path(named) if named else ROOT / ".tools" / "kubectl" / "helm"
    return program if program.is_file() else None


def files() -> dict[Path, str]:
    """Return each generated file with its content. Without helm, the manifest is missing and stays as it is."""
    written = {PAGE: _TABLE.sub(lambda _: values_table(), PAGE.read_text(encoding="utf-8"))}
    program = helm()
    return written | ({MANIFEST: access_manifest(program)} if program else {})


def access_manifest(program: Path) -> str:
    """Return the objects with which the chart's default values grant access, in the order of the chart."""
    shown = ("--show-only", "templates/access.yaml", "--show-only", "templates/namespaces.yaml")
    done = subprocess.run(
        [program, "template", "evenkeel", CHART, *shown], capture_output=True, text=True, check=True, timeout=60
    )
    documents = re.split(r"^---\n# Source: \S+\n", done.stdout, flags=re.MULTILINE)[1:]
    return _HEAD + "---\n".join(f"{document.strip()}\n" for document in documents)


def values_table() -> str:
    """Return a table with a row for each value, from the chart's JSON schema."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    rows = ["| value | default | meaning |", "|---|---|---|"]
    rows += [f"| `{path}` | {default} | {text} |" for path, default, text in _rows(schema)]
    return "\n".join(rows) + "\n"


def _rows(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        required = "required" if prefix and name in schema.get("required", ()) else ""
        default = f"`{json.dumps(field['default'])}`" if "default" in field else required
        yield path, default, field["description"].replace("|", r"\|")
        entry = field.get("additionalProperties")
        if isinstance(entry, dict):
            yield from _rows(next(iter(entry.get("oneOf", ())), entry), f"{path}.NAME.")
        yield from _rows(field, f"{path}.")
