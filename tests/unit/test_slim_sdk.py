"""The SDK in the layer has every service and operation that the functions use, with the requests of the whole SDK."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import botocore
import botocore.session
import pytest

from tests.aws_calls import CASES, GOLDEN, operations_called, recorded
from tests.unit.test_imports import PROJECT

SERVICES = re.search(r"^MODELS := (.*)$", (PROJECT / "shared" / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
MODELS = SERVICES[1].split() if SERVICES else []
ADAPTERS = sorted({case.adapter for case in CASES})
REGIONS = ("us-west-2", "eu-central-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1", "mx-central-1")


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder like the built layer, with the data of the SDK but not its code."""
    folder = tmp_path_factory.mktemp("layer")
    whole, data = Path(botocore.__file__).parent / "data", folder / "botocore" / "data"
    data.mkdir(parents=True)
    for name in (*MODELS, "sesv2"):
        shutil.copytree(whole / name, data / name)
    for file in whole.glob("*.json"):
        shutil.copy(file, data)
    (folder / "evenkeel").symlink_to(PROJECT / "shared" / "evenkeel")
    slim(folder)
    return folder


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


def a_session(data: Path | None) -> botocore.session.Session:
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    if data is not None:
        session.get_component("data_loader").search_paths[:] = [str(data)]
    return session


def test_unused_services_and_operations_are_gone(layer: Path) -> None:
    operations = operations_of(layer)

    assert not (layer / "botocore" / "data" / "sesv2").exists()
    assert "dynamodb:TransactWriteItems" in operations
    assert "dynamodb:CreateTable" not in operations
    assert "sagemaker:CreateTrainingJob" not in operations


@pytest.mark.parametrize("adapter", [name for name in ADAPTERS if (GOLDEN / f"{name}.json").exists()])
def test_adapter_sends_the_same_requests_with_the_slim_sdk(
    layer: Path, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recorded(adapter)
    monkeypatch.setenv("AWS_DATA_PATH", str(layer / "botocore" / "data"))

    assert recorded(adapter) == whole


def test_operations_called_by_adapters_are_kept(layer: Path) -> None:
    kept = {operation.partition(":")[2].lower() for operation in operations_of(layer)}
    sources = [file.read_text("utf-8") for file in (PROJECT / "shared" / "evenkeel" / "adapters").glob("*.py")]
    called = {name for source in sources for name in operations_called(source)}
    whole = a_session(None)
    methods = {name for service in MODELS for name in dir(whole.create_client(service, "us-west-2"))}

    assert {"get_item", "list_objects_v2", "list_cluster_nodes"} <= called
    assert {
        name
        for name in called & methods - {"get_paginator", "exceptions", "close"}
        if name.replace("_", "") not in kept
    } == set()


@pytest.mark.parametrize("region", REGIONS)
def test_clients_have_the_endpoints_of_the_whole_sdk(layer: Path, region: str) -> None:
    whole, slimmed = a_session(None), a_session(layer / "botocore" / "data")

    for service in MODELS:
        clients = [session.create_client(service, region).meta for session in (whole, slimmed)]
        assert len({client.endpoint_url for client in clients}) == 1
        assert len({client.region_name for client in clients}) == 1
        assert len({client.config.signature_version for client in clients}) == 1  # type: ignore[attr-defined]  # set late


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
