"""Remove from a built layer what the SDK would parse at each cold start and the functions never use.

    python slim_sdk.py LAYER MODEL …

MODELs are the services that the functions call. The script removes the other four hundred service models. A model keeps
the operations that the layer's own code names, with their shapes. `endpoints.json` keeps the same services.

The standard library is enough to run this.
"""

import gzip
import json
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

CALLED_BY_SDK: Final = {"CreateSession", "DescribeEndpoints", "HeadBucket"}
"""Operations that the SDK itself calls."""
WHOLE: Final = ("sts",)
"""Services of which each operation stays: the SDK calls them for credentials."""
_MODEL: Final = "service-2.json"


def slim(layer: Path, models: Collection[str]) -> None:
    """Remove the unused parts from `botocore/data` of a layer. Running it again changes nothing."""
    data = layer / "botocore" / "data"
    for folder in data.iterdir():
        if folder.is_dir() and folder.name not in models:
            shutil.rmtree(folder)
    names = names_in(layer / "evenkeel")
    prefixes = set(models)
    for packed in sorted(data.glob(f"*/*/{_MODEL}.gz")):
        service = packed.parent.parent.name
        model = json.loads(gzip.decompress(packed.read_bytes()))
        if service not in WHOLE:
            model = with_operations(model, names)
        (packed.parent / _MODEL).write_text(json.dumps(model, separators=(",", ":")), encoding="utf-8")
        packed.unlink()
    for file in data.glob(f"*/*/{_MODEL}"):
        prefixes.add(json.loads(file.read_text("utf-8"))["metadata"]["endpointPrefix"])
    endpoints = data / "endpoints.json"
    document = json.loads(endpoints.read_text("utf-8"))
    for partition in document["partitions"]:
        partition["services"] = {name: entry for name, entry in partition["services"].items() if name in prefixes}
    endpoints.unlink()  # the file may be a hard link to the cache of uv: a write in place would change each environment
    endpoints.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def names_in(package: Path) -> set[str]:
    """Return every lower-case name in the sources of a package. A client names an operation `list_cluster_nodes`."""
    return {name for file in package.rglob("*.py") for name in re.findall(r"[a-z][a-z0-9_]+", file.read_text("utf-8"))}


def with_operations(model: Json, names: Collection[str]) -> Json:
    """Return a service model with the operations that are named, or that the SDK calls, and their shapes."""
    letters = {name.replace("_", "") for name in names}
    operations = {
        name: _without_documentation(operation)
        for name, operation in model["operations"].items()
        if name.lower() in letters or name in CALLED_BY_SDK
    }
    shapes: Json = {}
    waiting = list(_shapes_named_by(operations))
    while waiting:
        name = waiting.pop()
        if name not in shapes:
            shapes[name] = _without_documentation(model["shapes"][name])
            waiting += _shapes_named_by(shapes[name])
    return {**model, "operations": operations, "shapes": shapes}


def _shapes_named_by(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("shape"), str):
            yield part["shape"]
        for inner in part.values():
            yield from _shapes_named_by(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _shapes_named_by(inner)


def _without_documentation(part: Any) -> Any:
    """Return a part of a model without its texts. A member of the name `documentation` is no text, and stays."""
    if isinstance(part, dict):
        return {
            name: _without_documentation(inner)
            for name, inner in part.items()
            if name != "documentation" or not isinstance(inner, str)
        }
    return [_without_documentation(inner) for inner in part] if isinstance(part, list) else part


if __name__ == "__main__":
    slim(Path(sys.argv[1]), sys.argv[2:])
