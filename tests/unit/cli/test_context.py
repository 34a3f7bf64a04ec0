"""A command uses only the API that the caller chose, at exactly the named host."""

import json
import os
from pathlib import Path

import pytest

from evenkeel_client import context
from evenkeel_client.errors import CommandFailed

GOOD = {"name": "prod", "url": "https://abc.execute-api.us-west-2.amazonaws.com/api/v1"}


def write_context(folder: Path, document: object = GOOD) -> Path:
    (folder / ".evenkeel").mkdir(parents=True)
    file = folder / ".evenkeel" / "context.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def refusal_of(folder: Path) -> str:
    with pytest.raises(CommandFailed) as error_info:
        context.find_context({"HOME": "/nonexistent"}, folder)
    return error_info.value.code


def test_context_of_the_folder_is_used(tmp_path: Path) -> None:
    file = write_context(tmp_path)

    api_context = context.find_context({"HOME": "/nonexistent"}, tmp_path)

    assert (api_context.name, api_context.region, api_context.source) == ("prod", "us-west-2", str(file))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_context_of_a_parent_folder_is_not_used(tmp_path: Path, depth: int) -> None:
    write_context(tmp_path)
    below = tmp_path.joinpath(*"abcde"[:depth])
    below.mkdir(parents=True)

    assert refusal_of(below) == "NO_CONTEXT"


def test_context_of_the_user_precedes_one_in_a_parent_folder(tmp_path: Path) -> None:
    write_context(tmp_path, GOOD | {"name": "planted"})
    below, home = tmp_path / "work", tmp_path / "home"
    below.mkdir()
    (home / ".config" / "evenkeel").mkdir(parents=True)
    (home / ".config" / "evenkeel" / "context.json").write_text(json.dumps(GOOD), encoding="utf-8")

    assert context.find_context({"HOME": str(home)}, below).name == "prod"


@pytest.mark.parametrize("checked_path", ["", ".evenkeel", ".evenkeel/context.json"])
def test_world_writable_context_is_refused(tmp_path: Path, checked_path: str) -> None:
    write_context(tmp_path)
    (tmp_path / checked_path).chmod(0o777)

    assert refusal_of(tmp_path) == "UNSAFE_CONTEXT"


@pytest.mark.parametrize("checked_path", ["", ".evenkeel", ".evenkeel/context.json"])
@pytest.mark.parametrize(("group", "code"), [(1, "UNSAFE_CONTEXT"), (0, "")])
def test_context_writable_by_another_group_is_refused(
    tmp_path: Path, checked_path: str, group: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_context(tmp_path)
    (tmp_path / checked_path).chmod(0o775)
    monkeypatch.setattr(os, "getegid", lambda: (tmp_path / checked_path).lstat().st_gid + group)

    if code:
        assert refusal_of(tmp_path) == code
    else:
        assert context.find_context({"HOME": "/nonexistent"}, tmp_path).name == "prod"


@pytest.mark.parametrize("checked_path", ["", ".evenkeel", ".evenkeel/context.json"])
def test_context_of_another_user_is_refused(tmp_path: Path, checked_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_context(tmp_path)
    other_path, real_lstat = tmp_path / checked_path, Path.lstat

    def lstat(path: Path) -> os.stat_result:
        result = real_lstat(path)
        # Only root can change the owner of a file.
        return os.stat_result((*result[:4], result.st_uid + 1, *result[5:10])) if path == other_path else result

    monkeypatch.setattr(Path, "lstat", lstat)

    assert refusal_of(tmp_path) == "UNSAFE_CONTEXT"


@pytest.mark.parametrize("checked_path", [".evenkeel", ".evenkeel/context.json"])
def test_context_behind_a_symbolic_link_is_refused(tmp_path: Path, checked_path: str) -> None:
    link_folder, target_folder = tmp_path / "here", tmp_path / "elsewhere"
    write_context(link_folder)
    write_context(target_folder)
    target = link_folder / checked_path
    target.rename(link_folder / "moved")
    target.symlink_to(target_folder / checked_path)

    assert refusal_of(link_folder) == "UNSAFE_CONTEXT"


def test_context_file_given_by_path_is_used_from_any_folder(tmp_path: Path) -> None:
    file = write_context(tmp_path)
    file.chmod(0o666)

    assert context.find_context({"EVENKEEL_CONTEXT": str(file)}, tmp_path / "elsewhere").name == "prod"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.attacker.example/v1",
        "http://localhost.attacker.example/v1",
        "http://127.0.0.1@attacker.example/v1",
        "http://localhost:80@attacker.example/v1",
        "https://user:secret@attacker.example/v1",
        "http://attacker.example/v1",
        "http://10.0.0.1/v1",
        "https:///v1",
        "https://[::1/v1",
        "https://host:port/v1",
        "https://host/v1?x=/v1",
        "https://host/#/v1",
        "ftp://host/v1",
        "file:///v1",
        "https://host/v1\n",
        "https://ho st/v1",
        "https://host/api",
        "https:\\\\host/v1",
    ],
)
def test_context_with_an_api_address_of_another_host_is_refused(url: str) -> None:
    with pytest.raises(CommandFailed) as error_info:
        context.read_context({"url": url, "region": "us-west-2"}, "a test", {})

    assert error_info.value.code == "BAD_CONTEXT"


@pytest.mark.parametrize(
    "url", ["https://evenkeel.example/v1", "http://127.0.0.1:4566/a/v1", "http://localhost/v1", "http://[::1]:80/v1"]
)
def test_context_with_a_usual_api_address_is_accepted(url: str) -> None:
    assert context.read_context({"url": url, "region": "us-west-2"}, "a test", {}).url == url


@pytest.mark.parametrize("url", ["http://127.0.0.1.attacker.example", "https://attacker.example", "http://a@b"])
def test_context_with_a_remote_control_address_is_refused(url: str) -> None:
    with pytest.raises(CommandFailed):
        context.read_context(GOOD | {"controlUrl": url}, "a test", {})


def test_region_is_read_only_from_an_aws_host_name() -> None:
    forged = {"url": "https://abc.execute-api.eu-west-1.amazonaws.com.attacker.example/v1"}

    assert context.read_context(GOOD, "a test", {}).region == "us-west-2"
    assert context.read_context(forged, "a test", {"AWS_REGION": "us-east-1"}).region == "us-east-1"
