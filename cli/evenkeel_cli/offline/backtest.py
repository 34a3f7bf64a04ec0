"""The backtest on files: read exports, replay them, and draw the verdicts."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from evenkeel.domain.policy import Policy
from evenkeel.domain.shadow import backtest
from evenkeel.domain.shadow.records import Content, ExportedRecord
from evenkeel.domain.shadow.verdicts import ShadowTimes
from evenkeel_cli.offline import exports, json_stream
from evenkeel_cli.render import Printer
from evenkeel_cli.shadow_page import draw_cases, draw_faults, draw_summary
from evenkeel_cli.state_signs import count_of
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".gz")
_MAX_NAMED = 50
"""Maximum number of malformed documents that the answer names. It counts all of them."""
_BATCH = 5_000
_EXPORTS = (
    "docs/operate/shadow.md says how to export each source; evenkeel backtest docs/examples/shadow shows an example"
)
_KINDS: dict[str, type[Content]] = {content_type.__name__: content_type for content_type in get_args(Content)}


class RecordStore:
    """Stores the records of all files in a temporary database on disk, without duplicates and in order of time."""

    def __init__(self) -> None:
        # An empty name is a temporary file that SQLite deletes by itself: https://sqlite.org/inmemorydb.html
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE records (key TEXT PRIMARY KEY, at INTEGER, kind TEXT, content TEXT)")
        self._batch: list[tuple[str, int, str, str]] = []
        self.offered = 0

    def add(self, exported_record: ExportedRecord) -> None:
        """Add a record. A duplicate keeps the earliest time, and the content that names the node slot."""
        self.offered += 1
        content = exported_record.content
        at = round(exported_record.at.timestamp() * 1_000_000)
        self._batch.append((exported_record.key, at, type(content).__name__, content.model_dump_json()))
        if len(self._batch) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._database.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
            " SET at = min(at, excluded.at), content = max(content, excluded.content)",
            self._batch,
        )
        self._batch.clear()

    def finish(self) -> None:
        """Prepare the records for reading."""
        self._flush()
        self._database.execute("CREATE INDEX by_time ON records (at, key)")
        self._database.commit()

    @property
    def count(self) -> int:
        """Number of different records."""
        count: int = self._database.execute("SELECT COUNT(*) FROM records").fetchone()[0]
        return count

    def records(self) -> Iterator[ExportedRecord]:
        """Yield every record in order of time."""
        for key, at, kind, content in self._database.execute("SELECT * FROM records ORDER BY at, key"):
            known_at = datetime.fromtimestamp(at / 1_000_000, UTC)
            yield ExportedRecord.model_construct(
                key=key, at=known_at, content=_KINDS[kind].model_validate_json(content)
            )


class ExportedRecords:
    """The records of all exported files, and the counts of documents that cannot be used."""

    def __init__(self, cluster: str, policy: Policy) -> None:
        self.store = RecordStore()
        self.files = self.documents = self.drills = self.malformed_count = 0
        self.malformed: list[Json] = []
        self.unknown: Counter[str] = Counter()
        self._cluster, self._policy = cluster, policy

    def read(self, paths: Iterable[Path]) -> None:
        """Read files and folders.

        Raises:
            CommandFailed: a file cannot be read, or there is none.
        """
        for path in _files(paths):
            self.files += 1
            try:
                for document in json_stream.documents(path):
                    self._add_document(path, document)
            except OSError as error:
                raise CommandFailed(Exit.USAGE, f"{path}: {error.strerror or error}", code="USAGE") from error
        self.store.finish()

    def _add_document(self, path: Path, document: json_stream.JsonDocument) -> None:
        self.documents += 1
        if document.problem:
            self._add_malformed(path, document.line, document.problem)
            return
        for event in exports.read_events(document.content, self._cluster, self._policy):
            if event.malformed:
                self._add_malformed(path, document.line, event.malformed)
            if event.unknown:
                self.unknown[event.unknown] += 1
            self.drills += event.is_drill
            for exported_record in event.records:
                self.store.add(exported_record)

    def _add_malformed(self, path: Path, line: int, problem: str) -> None:
        self.malformed_count += 1
        if len(self.malformed) < _MAX_NAMED:
            self.malformed.append({"file": str(path), "line": line, "problem": problem})

    def to_json(self) -> Json:
        """Return the counts of everything read."""
        return {
            "files": self.files,
            "documents": self.documents,
            "records": self.store.count,
            "copies": self.store.offered - self.store.count,
            "drills": self.drills,
            "malformed": self.malformed_count,
            "malformedDocuments": self.malformed,
            "unknown": dict(sorted(self.unknown.items(), key=lambda item: (-item[1], item[0]))),
        }


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        inside = (
            sorted(path_inside for path_inside in path.rglob("*") if path_inside.name.endswith(_SUFFIXES))
            if path.is_dir()
            else [path]
        )
        files += inside
    if not files:
        raise CommandFailed(Exit.USAGE, f"No file ends in {', '.join(_SUFFIXES)}.", code="USAGE")
    return files


def run_backtest(paths: Iterable[Path], policy: Policy, cluster: str, *, window_hours: int, node_recovery: str) -> Json:
    """Read the files, replay their events and judge the decisions.

    Raises:
        CommandFailed: a file cannot be read, or no document can be used.
    """
    answers = {"": None, "automatic": True, "none": False}
    if node_recovery.lower() not in answers:
        text = f"--node-recovery is Automatic or None, not {node_recovery!r}."
        raise CommandFailed(Exit.USAGE, text, code="USAGE")
    exported_records = ExportedRecords(cluster, policy)
    exported_records.read(paths)
    if not exported_records.store.count:
        raise CommandFailed(Exit.USAGE, _no_records_text(exported_records), code="NO_RECORDS", hint=_EXPORTS)
    terms = ShadowTimes(window_hours=window_hours)
    result = backtest.run_backtest(
        exported_records.store.records, policy, terms, repairs_by_itself=answers[node_recovery.lower()]
    )
    return {"input": exported_records.to_json(), "policyHash": policy.hash, **result.to_json()}


def _no_records_text(exported_records: ExportedRecords) -> str:
    """Return why an export without a record cannot be replayed, with the first problem."""
    text = (
        f"{count_of(exported_records.documents, 'document')} in "
        f"{count_of(exported_records.files, 'file')}, but no record to replay"
    )
    counts = {
        "malformed": exported_records.malformed_count,
        "of a kind without a parser": sum(exported_records.unknown.values()),
        "of a drill": exported_records.drills,
    }
    totals = ", ".join(f"{count} {noun}" for noun, count in counts.items() if count)
    first_problem = next(
        (f"{document['file']}:{document['line']}: {document['problem']}" for document in exported_records.malformed), ""
    )
    first_problem = first_problem or next(iter(exported_records.unknown), "")
    return f"{text}{f': {totals}' if totals else ''}.{f' The first: {first_problem}.' if first_problem else ''}"


def draw_backtest(out: Printer, document: Json, *, is_wide: bool) -> None:
    """Draw the input, the summary and the cases."""
    counts = document["input"]
    out.line(
        f"{count_of(counts['records'], 'record')} of {count_of(document['nodes'], 'node')}, from "
        f"{count_of(counts['documents'], 'document')} in {count_of(counts['files'], 'file')};"
        f" repeats: {counts['copies']}"
    )
    if document["firstAt"]:
        out.line(f"from {document['firstAt'][:19]}Z to {document['lastAt'][:19]}Z")
    _draw_unused_records(out, document, is_wide=is_wide)
    out.line()
    draw_summary(out, document["summary"])
    if is_wide:
        draw_faults(out, document["summary"]["faults"])
    draw_cases(out, document["cases"], is_wide=is_wide)


def _draw_unused_records(out: Printer, document: Json, *, is_wide: bool) -> None:
    counts = document["input"]
    if counts["malformed"]:
        out.line(out.with_glyph("warn", count_of(counts["malformed"], "malformed document")))
        for malformed_document in counts["malformedDocuments"][: None if is_wide else 5]:
            out.line(f"  {malformed_document['file']}:{malformed_document['line']}: {malformed_document['problem']}")
    if counts["unknown"]:
        out.line(
            out.with_glyph(
                "warn", f"{count_of(sum(counts['unknown'].values()), 'document')} of a kind without a parser"
            )
        )
        for kind, count in list(counts["unknown"].items())[: None if is_wide else 5]:
            out.line(f"  {count} × {kind}")
    if counts["drills"]:
        out.line(f"{count_of(counts['drills'], 'drill')}, left out")
    if document["unmatched"]:
        out.line(
            out.with_glyph(
                "warn",
                f"{count_of(document['unmatched'], 'record')} about unknown nodes:"
                " no record shows the instance behind their names",
            )
        )
