"""The facts of the decisions that one scheduling cycle records. Parts that several decisions share are stored once.

    facts of job-1 ─┐   quotas    the queues and cohorts of each tree, as text
    facts of job-2 ─┼─▶ holders   the holders of quota, by queue, as texts
    facts of job-3 ─┘   facts     decision → its other facts; its holders are runs of the list

The holders of a fleet are thousands, and each admission of a cycle was decided in sight of them all. Without sharing,
the records of one cycle grow with the product of the two.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import model_validator

from evenkeel.domain.admission.decide_job import AdmissionFacts
from evenkeel.domain.decisions import OMITTED, PACKED, unpacked
from evenkeel.domain.quotas.quota_documents import SerializedDocuments, serialize
from evenkeel.domain.quotas.quota_holders import is_sum
from evenkeel.domain.values import Value

Json = dict[str, Any]
POINTER = "cycleFacts"
"""Key of a record's facts that names the row with the facts of its cycle."""


class CycleFacts(Value):
    """The facts of the decisions of one cycle."""

    quotas: tuple[str, ...] = ()
    """The quotas of each tree, as the text of a record."""
    holders: tuple[str, ...] = ()
    """Each holder of quota as text. Holders of one queue are adjacent, in the order of the records."""
    facts: dict[str, Json] = {}
    """Decision → its facts. `quota.quotas` is an index of `quotas`, and `quota.jobs` are runs of `holders`."""

    @model_validator(mode="before")
    @classmethod
    def _unpack(cls, document: Any) -> Any:
        if not isinstance(document, Mapping) or PACKED not in document:
            return document
        unpacked_fields = {name: value for name, value in document.items() if name != PACKED}
        return {**unpacked({PACKED: document[PACKED]}), **unpacked_fields}

    def facts_of(self, decision_id: str) -> Json | None:
        """Return the facts of a decision, as its own record would hold them; None if they are not here."""
        own_facts = self.facts.get(decision_id)
        if own_facts is None or own_facts.get("quota") is None:
            return own_facts
        quota = own_facts["quota"]
        holders = (
            text for first_index, count in quota["jobs"] for text in self.holders[first_index : first_index + count]
        )
        jobs = f"[{','.join(holders)}]"
        return {**own_facts, "quota": {**quota, "quotas": self.quotas[quota["quotas"]], "jobs": jobs}}


def pointer_to(digest: str) -> Json:
    """Return a record's pointer to the facts of its cycle. A release that cannot follow it shows the text instead."""
    return {OMITTED: "they are stored with the cycle, and this release does not read them there", POINTER: digest}


def without_cycle(reason: str) -> Json:
    """Return what a record shows if the facts of its cycle cannot be read."""
    return {OMITTED: reason}


def cycle_facts(facts_by_decision: Mapping[str, AdmissionFacts]) -> CycleFacts:
    """Return the facts of several decisions of one cycle. Parts that they share are stored once."""
    quotas = _Texts()
    holders = _Texts()
    own_facts: dict[str, Json] = {}
    lists: dict[str, Sequence[Json]] = {}
    indexes: dict[int, list[int]] = {}
    for decision_id, facts in facts_by_decision.items():
        own_facts[decision_id] = facts.model_dump(mode="json", by_alias=True, exclude={"quota": {"quotas", "jobs"}})
        if facts.quota is None:
            continue
        own_facts[decision_id]["quota"]["quotas"] = quotas.index_of(facts.quota.quotas)
        lists[decision_id] = facts.quota.jobs
        for documents in _parts_of(facts.quota.jobs):
            if id(documents) not in indexes:
                indexes[id(documents)] = list(map(holders.index_of, documents))
    # All records list the holders of a queue in the same order, so sorting by queue gives the longest runs.
    order = sorted(range(len(holders.texts)), key=holders.group_of)
    positions = {index: position for position, index in enumerate(order)}
    runs = {
        part_id: _runs_of_numbers((positions[index], 1) for index in part_indexes)
        for part_id, part_indexes in indexes.items()
    }
    runs_of_list: dict[int, list[list[int]]] = {}
    for decision_id, jobs in lists.items():
        if id(jobs) not in runs_of_list:
            runs_of_list[id(jobs)] = _runs_of_numbers(run for part_id in _parts_of(jobs) for run in runs[id(part_id)])
        own_facts[decision_id]["quota"]["jobs"] = runs_of_list[id(jobs)]
    return CycleFacts.model_construct(
        quotas=tuple(quotas.texts), holders=tuple(holders.texts[index] for index in order), facts=own_facts
    )


class _Texts:
    """Texts of documents, each text once. Decisions of a cycle share objects, so an object is serialized only once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._documents: list[Json] = []
        self._by_identity: dict[int, int] = {}
        self._by_text: dict[str, int] = {}

    def index_of(self, document: Json) -> int:
        """Return the index of a document's text in `texts`, and add the text if it is new."""
        position = self._by_identity.get(id(document))
        if position is None:
            text = serialize(document)
            position = self._by_text.setdefault(text, len(self.texts))
            if position == len(self.texts):
                self.texts.append(text)
                self._documents.append(document)
            self._by_identity[id(document)] = position
        return position

    def group_of(self, index: int) -> tuple[bool, str]:
        """Return the sort key of a holder: its queue. Sums come last, as in a record."""
        document = self._documents[index]
        return is_sum(document["name"]), document["queue"]


def _parts_of(documents: Sequence[Json]) -> Iterable[Sequence[Json]]:
    """Return the parts of a list that other lists may share; the whole list if it was read from a record."""
    return (
        [document_part.documents for document_part in documents.parts]
        if isinstance(documents, SerializedDocuments)
        else [documents]
    )


def _runs_of_numbers(number_runs: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return runs `(first, count)` of indexes, joined where there is no gap."""
    runs: list[list[int]] = []
    run_end = -1
    for run_start, count in number_runs:
        if run_start == run_end:
            runs[-1][1] += count
        else:
            runs.append([run_start, count])
        run_end = run_start + count
    return runs
