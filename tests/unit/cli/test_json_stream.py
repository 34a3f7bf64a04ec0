"""JSON documents read from large files."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel_cli.offline import json_stream
from evenkeel_cli.offline.json_stream import documents
from tests.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
OBJECTS = st.dictionaries(
    TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=3), max_size=4
)
FORMS = ("lines", "pretty", "array", "Records", "items", "Events")


def write_documents(documents: list[dict[str, Any]], form: str) -> str:
    match form:
        case "lines":
            return "".join(f"{json.dumps(document)}\n" for document in documents)
        case "pretty":
            return "\n".join(json.dumps(document, indent=2, ensure_ascii=False) for document in documents)
        case "array":
            return json.dumps(documents)
        case _:
            return json.dumps({"apiVersion": "v1", form: documents, "kind": "List", "metadata": {"n": [1]}}, indent=1)


def read_documents(folder: Path, text: str | bytes, *, chunk: int | None = None) -> list[tuple[int, Any, str]]:
    path = folder / "export.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        if chunk:
            patch.setattr(json_stream, "_CHUNK", chunk)
        return [(document.line, document.content, document.problem) for document in documents(path)]


@settings(max_examples=examples(300))
@given(documents=st.lists(OBJECTS, max_size=6), form=st.sampled_from(FORMS), chunk=st.sampled_from([200, 1 << 20]))
def test_every_json_format_gives_equal_documents(
    documents: list[dict[str, Any]], form: str, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("export")

    assert [
        (content, problem)
        for _, content, problem in read_documents(folder, write_documents(documents, form), chunk=chunk)
    ] == [(document, "") for document in documents]


def test_compressed_json_file_is_read(tmp_path: Path) -> None:
    assert [content for _, content, _ in read_documents(tmp_path, gzip.compress(b'{"a":1}\n{"a":2}\n'))] == [
        {"a": 1},
        {"a": 2},
    ]


def test_damaged_archive_keeps_the_documents_before_the_damage(tmp_path: Path) -> None:
    lines = "".join(f'{{"a":{number}}}\n' for number in range(50_000)).encode()

    items = read_documents(tmp_path, gzip.compress(lines)[:-20], chunk=4096)

    assert items[0][1] == {"a": 0}
    assert any("damaged archive" in problem for _, _, problem in items)


@pytest.mark.parametrize("bad", ['{"a":', '{"a" 1}', "{]", '{"a":"x', "nonsense", "[" * 3000])
def test_malformed_json_line_is_reported_and_reading_continues(bad: str, tmp_path: Path) -> None:
    items = read_documents(tmp_path, f'{{"a":1}}\n{bad}\n{{"a":2}}\n')

    assert [content for _, content, problem in items if not problem] == [{"a": 1}, {"a": 2}]
    problems = [(line, problem) for line, _, problem in items if problem]
    assert len(problems) == 1
    assert problems[0][0] == 2


def test_malformed_json_list_reports_the_unread_rest(tmp_path: Path) -> None:
    items = read_documents(tmp_path, '{"Records": [{"a":1},\n{"a":2,,},\n{"a":3}]}\n')

    assert items[0] == (1, {"a": 1}, "")
    assert items[1][0] == 2
    assert items[1][2].endswith("the rest of this list is skipped")


def test_truncated_json_list_is_reported(tmp_path: Path) -> None:
    items = read_documents(tmp_path, '[{"a":1},\n')

    assert items == [(1, {"a": 1}, ""), (2, None, "the file ends inside a list")]


def test_line_numbers_count_across_chunks_of_a_file(tmp_path: Path) -> None:
    text = "".join(f'{{"a":{number}}}\n' for number in range(100))

    assert [line for line, _, _ in read_documents(tmp_path, text, chunk=16)] == list(range(1, 101))


def test_file_is_never_held_completely_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    entry = json.dumps({"text": "x" * 1000})
    path.write_text('{"Records":[' + ",".join([entry] * 16_000) + "]}", encoding="utf-8")

    tracemalloc.start()
    count = sum(1 for _ in documents(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 16_000
    assert peak < path.stat().st_size / 2


@pytest.mark.parametrize("form", FORMS)
def test_byte_order_mark_is_ignored(tmp_path: Path, form: str) -> None:
    body = write_documents([{"a": 1}], form).encode("utf-8-sig")

    assert [content for _, content, _ in read_documents(tmp_path, body)] == [{"a": 1}]
    assert [content for _, content, _ in read_documents(tmp_path, gzip.compress(body))] == [{"a": 1}]
