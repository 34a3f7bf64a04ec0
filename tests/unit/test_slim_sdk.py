"""The SDK in the layer has every service and operation that the functions use, with the requests of the whole SDK."""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore
import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, DataNotFoundError
from botocore.loaders import Loader, create_loader

from tests.aws_calls import ADAPTERS, operations_called, recorded
from tests.unit.test_imports import PROJECT

WHOLE = Path(botocore.__file__).parent / "data"
SERVICES = re.search(r"^MODELS := (.*)$", (PROJECT / "shared" / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
MODELS = SERVICES[1].split() if SERVICES else []
SOURCES = sorted((PROJECT / "shared" / "evenkeel" / "adapters").glob("*.py"))
PARTITIONS = json.loads((WHOLE / "partitions.json").read_text("utf-8"))["partitions"]
REGIONS = (
    *("us-west-2", "eu-central-1", "mx-central-1"),
    *(max(name for name in partition["regions"] if not name.endswith("-global")) for partition in PARTITIONS),
    # Regions that this release of the SDK does not know yet.
    *("us-north-9", "cn-south-9", "us-gov-north-9"),
)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder like the built layer, with the data of the SDK but not its code."""
    folder = tmp_path_factory.mktemp("layer")
    data = folder / "botocore" / "data"
    data.mkdir(parents=True)
    for name in (*MODELS, "sesv2"):
        shutil.copytree(WHOLE / name, data / name)
    for file in WHOLE.glob("*.json"):
        shutil.copy(file, data)
    (folder / "evenkeel").symlink_to(PROJECT / "shared" / "evenkeel")
    slim(folder)
    return folder


Sessions = tuple[botocore.session.Session, botocore.session.Session]


def slim(folder: Path) -> None:
    subprocess.run([sys.executable, str(PROJECT / "shared" / "slim_sdk.py"), str(folder), *MODELS], check=True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted((folder / "botocore").rglob("*")) if file.is_file()}


def operations_of(layer: Path) -> set[str]:
    files = (layer / "botocore" / "data").glob("*/*/service-2.json")
    return {
        f"{file.parent.parent.name}:{operation}"
        for file in files
        for operation in json.loads(file.read_text())["operations"]
    }


def a_session(data: Path = WHOLE) -> botocore.session.Session:
    """Return a session that reads one folder of data alone."""
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    loader = create_loader()  # a new loader, because all sessions of the tests share one
    loader.search_paths[:] = [str(data)]
    session.register_component("data_loader", loader)
    return session


@pytest.fixture(scope="module")
def sessions(layer: Path) -> Sessions:
    """Return a session with the whole SDK and one with the layer's. Each parses a model once."""
    whole, slimmed = a_session(), a_session(layer / "botocore" / "data")
    assert set(slimmed.get_available_services()) == set(MODELS) < set(whole.get_available_services())
    return whole, slimmed


def without_texts(part: Any) -> Any:
    if isinstance(part, dict):
        texts = {name for name in ("documentation", "documentationUrl") if isinstance(part.get(name), str)}
        return {name: without_texts(inner) for name, inner in part.items() if name not in texts}
    return [without_texts(inner) for inner in part] if isinstance(part, list) else part


def shapes_of(model: Any, part: Any, shapes: dict[str, Any]) -> dict[str, Any]:
    """Return every shape that a part of a model names, also through other shapes."""
    if isinstance(part, dict):
        name = part.get("shape")
        if isinstance(name, str) and name not in shapes:
            shapes[name] = without_texts(model["shapes"][name])
            shapes_of(model, model["shapes"][name], shapes)
        for inner in part.values():
            shapes_of(model, inner, shapes)
    elif isinstance(part, list):
        for inner in part:
            shapes_of(model, inner, shapes)
    return shapes


def pages_of(session: botocore.session.Session, service: str) -> dict[str, Any]:
    """Return how the pages of each operation follow one another."""
    loader: Any = session.get_component("data_loader")
    try:
        pages: dict[str, Any] = loader.load_service_model(service, "paginators-1")["pagination"]
    except DataNotFoundError:
        return {}
    return pages


def names_of_created_clients() -> Iterator[ast.expr]:
    """Yield the first argument of each call in the adapters that creates a client."""
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"aws.client", "session.create_client"}:
                yield node.args[0]


def test_unused_services_and_operations_are_gone(layer: Path) -> None:
    operations = operations_of(layer)

    assert not (layer / "botocore" / "data" / "sesv2").exists()
    assert "dynamodb:TransactWriteItems" in operations
    assert "dynamodb:CreateTable" not in operations
    assert "sagemaker:CreateTrainingJob" not in operations


def test_layer_has_a_model_for_each_client_of_the_adapters() -> None:
    names = {name.value for name in names_of_created_clients() if isinstance(name, ast.Constant)}

    assert names == set(MODELS)
    assert all(isinstance(name, ast.Constant) for name in names_of_created_clients())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapter_sends_the_same_requests_with_the_slim_sdk(
    layer: Path, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recorded(adapter)
    # An additional folder would not do: the loader falls back on the SDK's own data.
    monkeypatch.setattr(Loader, "BUILTIN_DATA_PATH", str(layer / "botocore" / "data"))
    monkeypatch.setattr(Loader, "CUSTOMER_DATA_PATH", str(layer / "absent"))
    monkeypatch.setattr(botocore.session, "create_loader", create_loader)  # the shared loader has the whole SDK

    assert recorded(adapter) == whole


def test_operations_called_by_adapters_are_kept(layer: Path, sessions: Sessions) -> None:
    kept = {operation.partition(":")[2].lower() for operation in operations_of(layer)}
    called = {name for file in SOURCES for name in operations_called(file.read_text("utf-8"))}
    methods = {name for service in MODELS for name in dir(sessions[0].create_client(service, "us-west-2"))}

    assert {"get_item", "list_objects_v2", "list_cluster_nodes"} <= called
    assert {
        name
        for name in called & methods - {"get_paginator", "exceptions", "close"}
        if name.replace("_", "") not in kept
    } == set()


@pytest.mark.parametrize("service", MODELS)
def test_kept_operations_are_those_of_the_whole_sdk(sessions: Sessions, service: str) -> None:
    """Inputs, outputs, modelled errors, endpoint parameters and pages."""
    models = [session.get_component("data_loader").load_service_model(service, "service-2") for session in sessions]
    clients = [session.create_client(service, "us-west-2") for session in sessions]
    operations = models[1]["operations"]

    assert operations
    for name, operation in operations.items():
        assert without_texts(models[0]["operations"][name]) == without_texts(operation)
        assert shapes_of(models[0], operation, {}) == shapes_of(models[1], operation, {})
    for method, name in clients[1].meta.method_to_api_mapping.items():
        assert name in operations
        assert clients[0].can_paginate(method) == clients[1].can_paginate(method)
    pages = [pages_of(session, service) for session in sessions]
    assert {name: pages[0].get(name) for name in operations} == {name: pages[1].get(name) for name in operations}
    rest = [{name: part for name, part in model.items() if name not in ("operations", "shapes")} for model in models]
    assert without_texts(rest[0]) == without_texts(rest[1])


@pytest.mark.parametrize("fips", [False, True], ids=["usual", "fips"])
@pytest.mark.parametrize("region", REGIONS)
def test_clients_have_the_endpoints_of_the_whole_sdk(sessions: Sessions, region: str, fips: bool) -> None:
    for service in MODELS:
        whole, slimmed = (endpoint_of(session, service, region, fips) for session in sessions)

        assert whole == slimmed


def endpoint_of(session: botocore.session.Session, service: str, region: str, fips: bool) -> tuple[object, ...]:
    """Return the endpoint, region, partition and signature of a client; the error, if it cannot be created."""
    try:
        client = session.create_client(service, region, config=Config(use_fips_endpoint=fips))
    except BotoCoreError as error:
        return (repr(error),)
    meta = client.meta
    signature = meta.config.signature_version  # type: ignore[attr-defined]  # set late
    return (meta.endpoint_url, meta.region_name, meta.partition, signature)


def test_second_run_changes_nothing(layer: Path) -> None:
    before = files_of(layer)
    slim(layer)

    assert files_of(layer) == before


def test_files_that_other_environments_share_stay_whole(tmp_path: Path) -> None:
    """An installer links files to its cache, so a write in place would change every environment of the machine."""
    shared_file = tmp_path / "endpoints.json"
    shutil.copy(Path(botocore.__file__).parent / "data" / "endpoints.json", shared_file)
    before = shared_file.read_bytes()
    data = tmp_path / "layer" / "botocore" / "data"
    data.mkdir(parents=True)
    (data / "endpoints.json").hardlink_to(shared_file)
    (tmp_path / "layer" / "evenkeel").mkdir()

    slim(tmp_path / "layer")

    assert (data / "endpoints.json").stat().st_size < len(before)
    assert shared_file.read_bytes() == before
