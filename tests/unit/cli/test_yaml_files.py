"""JSON files are read by the JSON parser, with the values that YAML gives."""

from pathlib import Path
from unittest import mock

import pytest
import yaml

from evenkeel_cli import yaml_files
from evenkeel_client.errors import CommandFailed


def write(folder: Path, text: str) -> Path:
    file = folder / "file"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.5, null, true, "2026-01-01T00:00:00Z", "\\u00e9"], "a b": {}}',
        "[]",
        '{"a": 1e3}',
        '{"a": 1.5E3}',
        '{"a": NaN}',
        "{a: 1, b: [x]}",
        '{"a": 1}\n---\n{"a": 2}\n',
        '[{"a": 1}]  # comment',
    ],
)
def test_json_file_has_the_values_of_yaml(tmp_path: Path, text: str) -> None:
    assert yaml_files.load_all(write(tmp_path, text)) == list(yaml.load_all(text, Loader=yaml_files._Loader))


def test_plain_json_is_not_read_as_yaml(tmp_path: Path) -> None:
    with mock.patch.object(yaml, "load_all", side_effect=AssertionError):
        assert yaml_files.load_all(write(tmp_path, '[{"a": 1.5}]')) == [[{"a": 1.5}]]


def test_broken_json_is_refused_as_broken_yaml(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="not valid YAML or JSON"):
        yaml_files.load_all(write(tmp_path, '{"a": ['))


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", '{"a": 1,\n "b": 2,\n "a": 3}', "x:\n- {a: 1, a: 2}\n"])
def test_repeated_key_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(CommandFailed, match=r"line [23] repeats the key 'a'; write each key once"):
        yaml_files.load_all(write(tmp_path, text))


def test_merged_object_may_repeat_key(tmp_path: Path) -> None:
    text = "one: &one {a: 1, b: 1}\ntwo: &two {<<: *one, a: 2}\nthree: {<<: *two, b: 3}\nagain: {<<: [*two, *one]}\n"

    (document,) = yaml_files.load_all(write(tmp_path, text))

    assert document["two"] == {"a": 2, "b": 1}
    assert document["three"] == {"a": 2, "b": 3}
    assert document["again"] == {"a": 2, "b": 1}


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: {c: *a}}\n"])
def test_alias_to_its_own_container_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CommandFailed, match="alias refers to the object or list that contains it"):
        yaml_files.load_all(write(tmp_path, text))


def test_aliases_that_expand_too_far_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 9)]

    with pytest.raises(CommandFailed, match="expand to more than 1000000 values"):
        yaml_files.load_all(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    "text", ["a: !!bool perhaps\n", "a: !!timestamp noon\n", "a: !!int x\n", "a: !!python/name:x\n"]
)
def test_value_that_does_not_fit_its_tag_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CommandFailed, match="not valid YAML or JSON"):
        yaml_files.load_all(write(tmp_path, text))


def test_syntax_error_names_its_line_once(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as refusal:
        yaml_files.load_all(write(tmp_path, "name: a\nnodes: [1\n"))

    assert str(refusal.value).endswith(
        "file is not valid YAML or JSON: line 3, column 1: did not find expected ',' or ']'"
    )


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfe")

    with pytest.raises(CommandFailed, match=r"file is not text in UTF-8\.$"):
        yaml_files.load_all(tmp_path / "file")
