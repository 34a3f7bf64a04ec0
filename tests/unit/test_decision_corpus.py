"""Recorded decisions have equal results under the present names. `tests/fixtures/decisions/README.md` says how."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.domain.decisions import MAX_ALTERNATIVES, Decision
from evenkeel.domain.policy import Policy
from evenkeel.domain.replay import KINDS, decide_again
from tests.decision_corpus import (
    ADDED_LATER,
    FACTS,
    FOLDER,
    FUNCTIONS,
    SENTENCES,
    TEXTS_FROM_INPUT,
    TRANSLATION,
    DifferenceError,
    Translation,
    arguments_of,
    check_all_read,
    check_same_answer,
    encode,
    read_lines,
    texts_with_spaces,
    without_sentences,
)

Json = Any
DIFFERENCE_ADVICE = """
An answer changed.
If only a name changed, add it to tests/fixtures/decisions/translation.json: fields to "keys", codes to "values".
If only text for people changed, set "sentences" there to "left out".
Otherwise the code decides differently than before: a change of behaviour. README.md beside that file says more."""
DECISIONS = sorted(path.name for path in FOLDER.glob("decisions-*.jsonl.gz"))
CALLS = sorted(path.name for path in FOLDER.glob("calls-*.jsonl.gz"))


@pytest.fixture(scope="module")
def translation() -> Translation:
    return Translation(json.loads(TRANSLATION.read_text()))


@pytest.fixture(scope="module")
def policies(translation: Translation) -> dict[str, Json]:
    """Return every recorded policy and policy section, translated to the present names."""
    return {
        read_line["id"]: translation.of("policy", read_line["policy"]) for read_line in read_lines("policies.jsonl.gz")
    }


def check_decision(record: Json, translation: Translation, policies: dict[str, Json]) -> None:
    """Decide again with the recorded facts, under the recorded policy and the shipped policies."""
    kind = record["decision"]["kind"]
    translated = translation.of(kind, record["decision"])
    decision = Decision.model_validate(translated)
    check_all_read(translated, decision.to_json(), "decision")
    check_all_read(
        translated["facts"], encode(FACTS[decision.kind].model_validate(translated["facts"])), "decision.facts"
    )
    check_equal(translated, answer_of(decision, policies[record["policy"]]), translation, "decision")
    for policy, answer in record["others"].items():
        path = f"others.{policy}"
        check_equal(translation.of(kind, answer), answer_of(decision, policies[policy]), translation, path)


def answer_of(decision: Decision, policy: Json) -> Json:
    answer = decide_again(decision, Policy.model_validate(policy)).to_json()
    return {**answer, "alternatives": answer["alternatives"][:MAX_ALTERNATIVES]}


def check_call(record: Json, translation: Translation, policies: dict[str, Json]) -> None:
    """Call a function again with the recorded arguments."""
    name = record["function"]
    arguments = arguments_of(name, translation.of(name, record["arguments"], "arguments"), policies)
    recorded = translation.of(name, record["answer"], "answer")
    answer = encode(FUNCTIONS[name](**arguments))
    if name == "faults.preview_of":
        # The hash of the catalogue changes with every added fault. The plans of the faults are compared.
        recorded, answer = ({**plan, "catalogueHash": None} for plan in (recorded, answer))
    check_equal({"answer": recorded}, {"answer": answer}, translation, "")


def check_equal(recorded: Json, current: Json, translation: Translation, path: str) -> None:
    """Compare every field of an answer with the record."""
    recorded = {key: recorded[key] for key in current}
    if not translation.compares_sentences:
        recorded, current = without_sentences(recorded), without_sentences(current)
    check_same_answer(recorded, current, path)


def differences(
    records: list[Json],
    check: Callable[[Json, Translation, dict[str, Json]], None],
    translation: Translation,
    policies: dict[str, Json],
) -> list[str]:
    texts = []
    for record in records:
        name = record.get("function") or f"{record['decision']['kind']} {record['decision']['decisionId']}"
        try:
            check(record, translation, policies)
        except (DifferenceError, ValueError, TypeError, KeyError, AttributeError) as error:
            texts.append(f"{record['from']}, {name}: {error}")
    return texts


def difference_text(differing: list[str]) -> str:
    return "\n".join([*differing[:20], f"{len(differing)} records differ." if differing else "", DIFFERENCE_ADVICE])


@pytest.mark.parametrize("file", DECISIONS)
def test_recorded_decisions_replay_to_the_same_answers(
    file: str, translation: Translation, policies: dict[str, Json]
) -> None:
    texts = differences(read_lines(file), check_decision, translation, policies)
    assert not texts, difference_text(texts)


@pytest.mark.parametrize("file", CALLS)
def test_recorded_calls_return_the_same_answers(file: str, translation: Translation, policies: dict[str, Json]) -> None:
    texts = differences(read_lines(file), check_call, translation, policies)
    assert not texts, difference_text(texts)


def test_every_field_of_a_recorded_policy_is_still_known(policies: dict[str, Json]) -> None:
    for name, document in policies.items():
        if name.startswith("Policy-"):
            check_all_read(document, Policy.model_validate(document).to_json(), name)


def test_corpus_has_every_decision_kind_and_recorded_function(translation: Translation) -> None:
    decisions = [record["decision"] for file in DECISIONS for record in read_lines(file)]
    kinds = Counter(translation.of(decision["kind"], decision["kind"], "kind") for decision in decisions)

    assert kinds.keys() | ADDED_LATER == KINDS == FACTS.keys()
    assert {record["function"] for file in CALLS for record in read_lines(file)} == FUNCTIONS.keys()


def test_sentences_of_answers_appear_only_in_listed_fields(translation: Translation) -> None:
    decisions = [record["decision"] for file in DECISIONS for record in read_lines(file)]
    calls = [record for file in CALLS for record in read_lines(file)]
    answers = [translation.of(call["function"], call["answer"], "answer") for call in calls]
    parts = ("action", "reason", "alternatives")
    answers += [translation.of(decision["kind"], {key: decision[key] for key in parts}) for decision in decisions]

    assert {key for answer in answers for key in texts_with_spaces(answer)} <= SENTENCES | TEXTS_FROM_INPUT


def test_translation_renames_keys_and_values_where_its_scope_matches() -> None:
    table = {
        "keys": {"seat": "slot"},
        "values": {"WAIT": "PENDING"},
        "scoped": [{"kind": "RES*", "path": "facts.*.action", "values": {"WAIT": "DELAY"}}],
    }
    record = {"facts": {"jobs": [{"action": "WAIT", "seat": "WAIT"}]}, "action": "WAIT", "text": '{"seat":1}'}

    assert Translation(table).of("RESUME", record) == {
        "facts": {"jobs": [{"action": "DELAY", "slot": "PENDING"}]},
        "action": "PENDING",
        "text": '{"slot":1}',
    }
    assert Translation(table).of("REPAIR", record)["facts"] == {"jobs": [{"action": "PENDING", "slot": "PENDING"}]}


def test_comparison_of_answers_ignores_wording_but_not_codes() -> None:
    answer = {"action": "WAIT", "reason": "It waits.", "option": "rent 2 nodes", "alternatives": [{"option": "RENT"}]}
    rewritten = answer | {"reason": "No node fits.", "option": "2 nodes to rent"}

    check_same_answer(without_sentences(answer), without_sentences(rewritten))
    for changes in ({"alternatives": [{"option": "PREEMPT"}]}, {"option": "rent 3 nodes"}, {"reason": ""}):
        with pytest.raises(DifferenceError):
            check_same_answer(without_sentences(answer), without_sentences(answer | changes))


def test_recorded_field_that_no_class_reads_is_reported() -> None:
    with pytest.raises(DifferenceError, match=r"facts.oldName was recorded as 5 and is unknown now"):
        check_all_read({"oldName": 5}, {"newName": 0}, "facts")
