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
    with pytest.raises(CommandFailed, match="neither YAML nor JSON"):
        yaml_files.load_all(write(tmp_path, '{"a": ['))
