"""The documents of quota facts. The records of one scheduling cycle share most of them, so each is made once."""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from evenkeel.domain.decisions import packed_size
from evenkeel.domain.kueue.objects import Admitted, Amounts, Key
from evenkeel.domain.quotas.quota_holders import admitted_document, sum_document

T = TypeVar("T")
Json = dict[str, Any]
Holder = tuple[Admitted, bool]
"""A workload that holds quota, and whether it had been asked to stop before the cycle."""

_WRITER: TypeAdapter[Any] = TypeAdapter(Any)


class SerializedDocument(dict[str, Any]):
    """A document with its text as compact JSON. It must not change."""

    text: str

    @classmethod
    def of(cls, document: Json) -> "SerializedDocument":
        """Return a document with its text."""
        instance = cls(document)
        instance.text = serialize(document)
        return instance


class DocumentPart(NamedTuple):
    """Consecutive documents that several lists share."""

    documents: tuple[Json, ...]
    size: int
    """Characters of their texts, joined with commas."""

    @property
    def text(self) -> str:
        """Their texts, joined with commas."""
        return ",".join(map(serialize, self.documents))


class SerializedDocuments(tuple[Json, ...]):
    """Documents with their text as a compact JSON list. They must not change."""

    parts: tuple[DocumentPart, ...]

    @classmethod
    def of(cls, document_parts: Iterable[DocumentPart]) -> "SerializedDocuments":
        """Return the documents of these parts."""
        all_parts = tuple(document_parts)
        instance = cls(itertools.chain.from_iterable(document_part.documents for document_part in all_parts))
        instance.parts = all_parts
        return instance

    @property
    def text(self) -> str:
        """The documents as a list. Facts that many records share never need it."""
        return f"[{','.join(document_part.text for document_part in self.parts)}]"


def serialize(document: Any) -> str:
    """Return a document, or several, as compact JSON."""
    if isinstance(document, SerializedDocument | SerializedDocuments):
        return document.text
    return _WRITER.dump_json(document).decode()


class HolderRun:
    """Consecutive holders of one queue with one priority that use the same keys. Preemption rarely distinguishes them.

    A tree has few runs and many holders. So the cost of a decision's facts depends on the number of runs.
    """

    def __init__(self, holders: Sequence[Holder]) -> None:
        """Prepare a run of at least one holder."""
        self.holders = tuple(holders)
        workload = holders[0][0].workload
        self.queue, self.priority = workload.queue, workload.priority
        self.keys = frozenset(holders[0][0].use)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Ids of the workloads."""
        return frozenset(admitted.workload.workload_id for admitted, _ in self.holders)

    @functools.cached_property
    def use(self) -> Amounts:
        """Sum of the use of all holders."""
        total: Amounts = {}
        for admitted, _ in self.holders:
            for key, amount in admitted.use.items():
                total[key] = total.get(key, 0) + amount
        return total

    def split(self, is_single: Callable[[Admitted], bool]) -> "Iterator[tuple[bool, HolderRun]]":
        """Split the run into parts in which all holders, or none, have a property."""
        for has_property, holders in itertools.groupby(self.holders, key=lambda holder: is_single(holder[0])):
            yield has_property, HolderRun(list(holders))


def runs_of(holders: Iterable[Holder]) -> tuple[HolderRun, ...]:
    """Return holders as runs, in their order."""
    alike = itertools.groupby(holders, key=lambda holder: _run_key(holder[0]))
    return tuple(HolderRun(list(group)) for _, group in alike)


def _run_key(admitted: Admitted) -> tuple[str, int, frozenset[tuple[str, str]]]:
    return admitted.workload.queue, admitted.workload.priority, frozenset(admitted.use)


class DocumentCache:
    """The documents of one scheduling cycle."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, ...], SerializedDocument] = {}
        self._holders: dict[tuple[str, float | None, bool], SerializedDocument] = {}
        self._runs: dict[tuple[int, tuple[str, ...]], tuple[tuple[Holder, ...], tuple[HolderRun, ...]]] = {}
        self._documents: dict[HolderRun, DocumentPart] = {}
        self._latest: dict[tuple[str, int, frozenset[Key]], tuple[HolderRun, DocumentPart]] = {}
        """Queue, priority and keys → the run whose documents were made last."""
        self._sums: dict[tuple[str, tuple[tuple[Key, int], ...]], DocumentPart] = {}
        self._lists: dict[Hashable, Any] = {}
        self._measured: dict[tuple[str, ...], tuple[frozenset[int], int]] = {}

    def quotas(self, tree: tuple[str, ...], make: Callable[[], Json]) -> SerializedDocument:
        """Return the queues, cohorts and flavors of a tree, by the names of its queues."""
        if tree not in self._quotas:
            self._quotas[tree] = SerializedDocument.of(make())
        return self._quotas[tree]

    def runs(self, tree: tuple[str, ...], holders: tuple[Holder, ...]) -> tuple[HolderRun, ...]:
        """Return the holders in a tree as runs."""
        cache_key = (id(holders), tree)
        if cache_key not in self._runs:
            names = frozenset(tree)
            runs = tuple(
                map(self._known_run, runs_of(holder for holder in holders if holder[0].workload.queue in names))
            )
            self._runs[cache_key] = (holders, runs)  # this reference keeps the holders alive, so their id stays unique
        return self._runs[cache_key][1]

    def _known_run(self, holder_run: HolderRun) -> HolderRun:
        """Return the run whose documents were made last, if it has the same holders: they need not be made again."""
        latest_run, _ = self._latest.get((holder_run.queue, holder_run.priority, holder_run.keys), (None, None))
        return latest_run if latest_run is not None and latest_run.holders == holder_run.holders else holder_run

    def sum_part(self, queue: str, amounts: Amounts) -> DocumentPart:
        """Return the sum of a queue's use as the document of one holder."""
        cache_key = (queue, tuple(amounts.items()))
        if cache_key not in self._sums:
            document = SerializedDocument.of(sum_document(queue, amounts))
            self._sums[cache_key] = DocumentPart((document,), len(document.text))
        return self._sums[cache_key]

    def documents(self, holder_run: HolderRun) -> DocumentPart:
        """Return the holders of a run in the short form."""
        document_part = self._documents.get(holder_run)
        if document_part is None:
            document_part = self._documents[holder_run] = self._documents_after_latest(holder_run)
        return document_part

    def _documents_after_latest(self, holder_run: HolderRun) -> DocumentPart:
        """Return the documents of a run. Most runs are an earlier run with more holders at the end."""
        run_key = (holder_run.queue, holder_run.priority, holder_run.keys)
        earlier_run, document_part = self._latest.get(run_key, (None, DocumentPart((), -1)))
        known_count = len(earlier_run.holders) if earlier_run else 0
        if earlier_run is not None and holder_run.holders[:known_count] != earlier_run.holders:
            document_part, known_count = DocumentPart((), -1), 0
        new_documents = [self.holder(*holder) for holder in holder_run.holders[known_count:]]
        size = document_part.size + sum(len(document.text) + 1 for document in new_documents)
        document_part = DocumentPart((*document_part.documents, *new_documents), size)
        self._latest[run_key] = (holder_run, document_part)
        return document_part

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, which is made once."""
        if key not in self._lists:
            self._lists[key] = make()
        value: T = self._lists[key]
        return value

    def holder(self, admitted: Admitted, was_evicted: bool) -> SerializedDocument:
        """Return a holder of quota in the short form."""
        cache_key = (admitted.workload.workload_id, admitted.reserved_at, was_evicted)
        if cache_key not in self._holders:
            self._holders[cache_key] = SerializedDocument.of(admitted_document(admitted, was_evicted=was_evicted))
        return self._holders[cache_key]

    def fits_packed(
        self, tree: tuple[str, ...], parts: Iterable[DocumentPart], runs: Iterable[HolderRun], max_size: int
    ) -> bool:
        """Whether some documents of a tree certainly fit into this many characters after compression.

        Packing takes milliseconds, and most records hold a part of the same documents. So all of them are packed once.
        A part of them is assumed to need at most a quarter more than its share. False if that is not certain enough.

        Args:
            tree: Names of the queues of the tree.
            parts: The documents.
            runs: All holders of the tree, to be packed together the first time. Later documents count unpacked.
            max_size: The limit.
        """
        if tree not in self._measured:
            all_parts = [self.documents(holder_run) for holder_run in runs]
            all_documents = [document for part in all_parts for document in part.documents]
            size = packed_size([self._quotas[tree], *all_documents])
            # The cache keeps all of them, so their ids stay unique.
            self._measured[tree] = (frozenset(map(id, (*all_parts, *all_documents))), size)
        measured_ids, size = self._measured[tree]
        # A holder that started or was asked to stop since then has a new document.
        new_documents = (
            document
            for part in parts
            if id(part) not in measured_ids
            for document in part.documents
            if id(document) not in measured_ids
        )
        return (size + sum(len(serialize(document)) for document in new_documents)) * 5 <= max_size * 4
