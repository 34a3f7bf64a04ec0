"""Record decisions and calls of pure functions for `tests/unit/test_decision_corpus.py`.

    python -m tests.simulator.record_decisions simulator    seeds 1..300
    python -m tests.simulator.record_decisions tests        what services decide in their unit tests
    python -m tests.simulator.record_decisions drills       some drills, in a local data centre

Each writes `decisions-….jsonl.gz`; the first two also write `calls-….jsonl.gz`, the arguments and results of pure
functions. All write `policies.jsonl.gz`: every policy that a record refers to, and the policies that Evenkeel ships.
The smallest of similar records is kept. The same code writes the same file of the simulator.

Record again only when answers are meant to change. After a rename, add the name to `translation.json` instead. If
only some functions changed, `--only` records the same calls of these functions again, and keeps all other records:

    python -m tests.simulator.record_decisions simulator 1..0 --only attempts.job_writers
"""

import argparse
import functools
import importlib
import inspect
import itertools
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

import evenkeel
from evenkeel.domain.decisions import OMITTED, Decision
from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy, changed
from evenkeel.domain.replay import CannotReplayError, decide_again
from evenkeel.domain.values import Value
from evenkeel.ports import Key, Row
from evenkeel.runtime.wiring import load_policy
from evenkeel.services.storage.facts_of_decisions import with_facts
from tests.decision_corpus import (
    FACTS,
    FOLDER,
    FUNCTIONS,
    POLICY_REFERENCE,
    TRANSLATION,
    CannotEncodeError,
    DifferenceError,
    Translation,
    arguments_of,
    check_all_read,
    check_same_answer,
    encode,
    is_section,
    read_lines,
    write_lines,
)
from tests.fakes.ledger import InMemoryLedger
from tests.simulator.fuzz import ROOT
from tests.simulator.invariants import InvariantChecker
from tests.simulator.simulation import Simulation

Json = Any
SEEDS = (1, 300)
TESTS = (
    "tests/unit/services_jobs/test_temporary_capacity.py",
    "tests/unit/api/test_faults.py",
    "tests/unit/services_recovery",
    "tests/unit/recovery",
    "tests/unit/services_jobs",
)
EXHAUSTIVE = ("crash", "interleaving", "largest", "long_queues", "race")
"""Test modules with many runs of one scenario: they cost time and add no variety."""
DRILLS = ("app-crash", "gpu-xid79", "node-lost", "poisoned-checkpoint", "spot-reclaim")
SHIPPED_POLICIES = ("local", "production")
LARGEST = 40_000
"""Largest record that is kept, in characters."""
MAX_PER_KIND = 60
"""Decisions of one kind that are kept, of each source."""
MAX_PER_FUNCTION = 40
_CANDIDATES = 8
"""Calls of one shape that are weighed by their size."""
_MAX_SHAPES = 400
_DEPTH = 2
_WITH_DIGIT = re.compile(r"\S*\d\S*")


def interleave(groups: list[list[Any]]) -> Iterator[Any]:
    """Yield the first item of each group, then the second of each, and so on."""
    for row in itertools.zip_longest(*groups):
        yield from (item for item in row if item is not None)


def size_of(document: Json) -> int:
    return len(json.dumps(document))


# ---------------------------------------------------------------- what looks alike


def shape_of(value: Any, depth: int = _DEPTH) -> Any:
    """Return the distinguishing parts of an answer: codes, flags and words of sentences, without ids and numbers."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _WITH_DIGIT.sub("#", value)[:120]
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return (min(len(value), 2), *(shape_of(item, depth - 1) for item in value[:1] if depth))
    if isinstance(value, Value) and depth:
        return tuple(shape_of(getattr(value, name), depth - 1) for name in type(value).model_fields)
    if depth == _DEPTH and isinstance(value, int | float | datetime):
        return str(value)
    return len(f"{value:.0f}") if isinstance(value, int | float) else type(value).__name__


def codes_of(value: Any) -> tuple[Any, ...]:
    """Return only the codes and flags; one call of each combination is recorded first."""
    if isinstance(value, Value):
        return tuple(codes_of(getattr(value, name)) for name in type(value).model_fields)
    return (value.value if isinstance(value, Enum) else value if value is None or isinstance(value, bool) else "",)


def shape_of_decision(record: Decision) -> tuple[Any, ...]:
    options = tuple(sorted({_WITH_DIGIT.sub("#", alternative.option) for alternative in record.alternatives}))
    return (record.kind, record.action, record.mode, _WITH_DIGIT.sub("#", record.reason), options)


# ---------------------------------------------------------------- policies


class Policies:
    """The policies and sections that records refer to, by a hash of their JSON."""

    def __init__(self) -> None:
        self.documents: dict[str, Json] = {}
        self._ids: dict[int, tuple[Any, str]] = {}

    def id_of(self, section: Value) -> str:
        known = self._ids.get(id(section))
        if known is None:
            document = section.to_json()
            text = json.dumps(document, sort_keys=True)
            known = self._ids[id(section)] = (
                section,
                f"{type(section).__name__}-{sha256(text.encode()).hexdigest()[:12]}",
            )
            self.documents.setdefault(known[1], document)
        return known[1]


# ---------------------------------------------------------------- calls


class Calls:
    """Calls of the recorded functions: a few candidates of each shape of answer."""

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.source = ""
        self.fixed: list[Json] = []
        """Calls that are kept in any case."""
        self.found: defaultdict[str, dict[Any, list[Json]]] = defaultdict(dict)
        self.left_out: Counter[str] = Counter()

    def watch_calls(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, watched."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            # An iterator can be read once only, and the function needs it.
            args = tuple(tuple(argument) if isinstance(argument, Iterator) else argument for argument in args)
            kwargs = {
                key: tuple(argument) if isinstance(argument, Iterator) else argument for key, argument in kwargs.items()
            }
            answer = function(*args, **kwargs)
            shapes = self.found[name]
            shape = (codes_of(answer), shape_of(answer))
            if len(shapes) < _MAX_SHAPES or shape in shapes:
                alike = shapes.setdefault(shape, [])
            else:
                alike = [None] * _CANDIDATES
            if len(alike) < _CANDIDATES:
                self._add(name, alike, signature.bind(*args, **kwargs).arguments, answer)
            return answer

        return watched

    def keep(self, name: str, *args: Any) -> None:
        """Call a function and keep the call in any case."""
        arguments = inspect.signature(FUNCTIONS[name]).bind(*args).arguments
        self._add(name, self.fixed, arguments, FUNCTIONS[name](*args))

    def _add(self, name: str, alike: list[Json], arguments: Mapping[str, Any], answer: Any) -> None:
        try:
            document = {
                "from": self.source,
                "function": name,
                "arguments": {to_camel(key): self._argument(argument) for key, argument in arguments.items()},
                "answer": encode(answer),
            }
        except CannotEncodeError as error:
            self.left_out[f"{name}: {error}"] += 1
            return
        if size_of(document) > LARGEST:
            self.left_out[f"{name}: too large"] += 1
        else:
            alike.append(document)

    def _argument(self, value: Any) -> Json:
        return {POLICY_REFERENCE: self.policies.id_of(value)} if is_section(value) else encode(value)

    def chosen(self) -> list[Json]:
        """Return up to this many replayable calls of each function, alternating between combinations of codes and
        shape.
        """
        chosen = self.fixed
        for name in FUNCTIONS:
            by_codes: defaultdict[str, list[list[Json]]] = defaultdict(list)
            for (codes, _), alike in self.found[name].items():
                by_codes[str(codes)].append(alike)
            groups = [
                sorted(by_codes[key], key=lambda alike: (len(alike), json.dumps(alike))) for key in sorted(by_codes)
            ]
            # A call of each shape first; with few shapes, more calls of each.
            shapes = itertools.islice(interleave(groups), MAX_PER_FUNCTION)
            chosen += itertools.islice(interleave([self._replayable(alike) for alike in shapes]), MAX_PER_FUNCTION)
        return chosen

    def _replayable(self, alike: list[Json]) -> list[Json]:
        """Return the calls that can be replayed, each once, the smallest first."""
        chosen: list[Json] = []
        for call in sorted(alike, key=lambda call_alike: (size_of(call_alike), json.dumps(call_alike))):
            name = call["function"]
            try:
                arguments = arguments_of(name, call["arguments"], self.policies.documents)
                check_same_answer(call["answer"], encode(FUNCTIONS[name](**arguments)))
            except (DifferenceError, ValueError, TypeError, AttributeError, KeyError) as error:
                self.left_out[f"{name}: does not replay: {str(error)[:150]}"] += 1
            else:
                if not any(call["arguments"] == chosen_call["arguments"] for chosen_call in chosen):
                    chosen.append(call)
        return chosen


def watch(calls: Calls) -> None:
    """Replace the watched functions in every module of Evenkeel that imports them."""
    for module_info in pkgutil.walk_packages(evenkeel.__path__, "evenkeel."):
        if not module_info.name.startswith("evenkeel.training.__main__"):
            importlib.import_module(module_info.name)
    watched = {id(function): calls.watch_calls(name, function) for name, function in FUNCTIONS.items()}
    for name, module in list(sys.modules.items()):
        if name.startswith("evenkeel.") and name != "evenkeel.domain.replay":
            for attribute, value in list(vars(module).items()):
                if id(value) in watched and callable(value):
                    setattr(module, attribute, watched[id(value)])


def call_with_fixed_inputs(calls: Calls) -> None:
    """Call functions with the event fixtures, each fault and each pair of states."""
    call = {name: functools.partial(calls.keep, name) for name in FUNCTIONS}
    for path in sorted((ROOT / "tests" / "fixtures" / "events").rglob("*.json")):
        calls.source = path.relative_to(ROOT).as_posix()
        call["events.parse"](path.read_bytes())
    calls.source = "the shipped fault catalogue"
    keys = [*sorted(default_catalogue()), "xid:9999", "sxid:9999", "hp:unheard-of", "site:disk-slow", "nonsense"]
    for key in keys:
        call["faults.fault_of"](key)
        for name in SHIPPED_POLICIES:
            call["faults.preview_of"](key, load_policy(name))
    calls.source = "every pair of states"
    for before, after in itertools.product((None, *AttemptState), AttemptState):
        call["attempts.attempt_writers"](before, after)
    for old, new in itertools.product((None, *JobState), JobState):
        call["attempts.job_writers"](old, new)
    calls.source = "the shipped policies"
    for name, returns in itertools.product(SHIPPED_POLICIES, range(5)):
        call["validation.margin_seconds"](returns, load_policy(name).repair)


# ---------------------------------------------------------------- decisions


class Decisions:
    """Recorded decisions: the smallest of each shape."""

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.found: dict[tuple[Any, ...], tuple[int, Json]] = {}
        self.left_out: Counter[str] = Counter()

    def add(self, source: str, record: Decision, policy: Policy) -> None:
        """Compare a decision with the kept decision of its shape."""
        if OMITTED in record.facts:
            return
        shape = shape_of_decision(record)
        document = {"from": source, "policy": self.policies.id_of(policy), "decision": record.to_json()}
        size = size_of(document)
        known = self.found.get(shape)
        if size > LARGEST:
            self.left_out[f"{record.kind}: too large"] += 1
        elif known is None or size < known[0]:
            self.found[shape] = (size, document)

    def chosen(self) -> list[Json]:
        """Return up to this many decisions of each kind, alternating between its actions and modes."""
        by_kind: defaultdict[str, defaultdict[Any, list[Json]]] = defaultdict(lambda: defaultdict(list))
        for (kind, action, mode, *_), (_, document) in sorted(
            self.found.items(), key=lambda entry: (entry[1][0], str(entry[0]))
        ):
            by_kind[kind]["" if kind == "ATTRIBUTION" else action, mode].append(document)
        chosen = []
        for _, groups in sorted(by_kind.items()):
            replayable = map(self._with_other_policies, interleave([groups[key] for key in sorted(groups)]))
            chosen += list(itertools.islice((call for call in replayable if call), MAX_PER_KIND))
        return chosen

    def _with_other_policies(self, document: Json) -> Json | None:
        """Add the decision under each shipped policy; None if the record does not replay."""
        record = Decision.model_validate(document["decision"])
        alternatives = {}
        try:
            check_all_read(document["decision"], record.to_json(), "decision")
            check_all_read(record.facts, FACTS[record.kind].model_validate(record.facts).to_json(), "facts")
            policy = Policy.model_validate(self.policies.documents[document["policy"]])
            check_same_answer("", decide_again(record, policy).differs_from(record), record.kind)
            for name in SHIPPED_POLICIES:
                policy = load_policy(name)
                alternatives[self.policies.id_of(policy)] = decide_again(record, policy).to_json()
        except (DifferenceError, CannotReplayError, ValueError, KeyError) as error:
            self.left_out[f"{record.kind}: {str(error)[:150]}"] += 1
            return None
        return {**document, "others": alternatives}


class Recording:
    """All that is recorded of one source."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.policies = Policies()
        self.calls = Calls(self.policies)
        self.decisions = Decisions(self.policies)

    def write(self, only: Collection[str] = ()) -> None:
        """Write the files of the source, and print their contents in short.

        Args:
            only: Functions whose recorded calls get their present answers; empty = record everything.
        """
        if only:
            self._replace_answers(only)
            return
        decisions, calls = self.decisions.chosen(), self.calls.chosen()
        write_lines(f"decisions-{self.source}.jsonl.gz", decisions)
        if calls:
            write_lines(f"calls-{self.source}.jsonl.gz", calls)
        summarize(decisions, calls, self.decisions.left_out + self.calls.left_out)
        keep_policies(self.policies)

    def _replace_answers(self, only: Collection[str]) -> None:
        """Replace the recorded calls of some functions by the same calls, as they were made now."""
        name, translation = f"calls-{self.source}.jsonl.gz", Translation(json.loads(TRANSLATION.read_text()))

        def identity_of(call: Json) -> str:
            function = call["function"]
            return json.dumps([function, translation.of(function, call["arguments"], "arguments")], sort_keys=True)

        calls_by_identity = {identity_of(call): call for call in self.calls.chosen() if call["function"] in only}
        recorded = read_lines(name)
        replaced = [calls_by_identity.get(identity_of(call), call) for call in recorded]
        write_lines(name, replaced)
        count = sum(before is not after for before, after in zip(recorded, replaced, strict=True))
        print(f"{count} of {len(recorded)} calls recorded again")


def from_simulator(first: int, last: int, only: Collection[str]) -> None:
    recording = Recording("simulator")
    calls, decisions = recording.calls, recording.decisions
    call_with_fixed_inputs(calls)
    watch(calls)
    for seed in range(first, last + 1):
        calls.source = f"seed {seed}"
        world = Simulation(seed, InvariantChecker())
        result = world.run()
        if result.violations:
            raise SystemExit(f"seed {seed} breaks {result.violations[0].invariant}")
        replaced = world.renting.replaced if world.renting else {}
        stored = (Decision.model_validate(row.doc) for row in world.ledger.of("META", "DEC#"))
        for record in with_facts(stored, world.ledger):
            decisions.add(f"seed {seed}", record, replaced.get(record.policy_hash, world.policy))
        if seed % 25 == 0:
            print(f"seed {seed}: {len(decisions.found)} shapes of decisions", flush=True)
    recording.write(only)


class WatchedTests:
    """A pytest plugin that records the decisions of services in their tests, on in-memory ledgers."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.known: dict[str, Policy] = {}
        """Policies by the hash that decisions name."""
        self._test = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from hypothesis import settings  # pytest rewrites it when it is loaded

        items[:] = [item for item in items if not any(word in item.path.name for word in EXHAUSTIVE)]
        settings.register_profile("recording", settings.get_profile("ci"), max_examples=5)
        settings.load_profile("recording")

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = self.recording.calls.source = item.nodeid.partition("[")[0]

    def watch(self) -> None:
        """Watch every hash of a policy and every row that is stored."""
        hash_of, store = vars(Policy)["hash"].func, InMemoryLedger._store

        def known_hash(policy: Policy) -> str:
            name: str = hash_of(policy)
            self.known[name] = policy
            return name

        def watched_store(ledger: InMemoryLedger, key: Key, row: Row | None, stored: bytes) -> None:
            store(ledger, key, row, stored)
            if row is not None and key.pk.startswith("DEC#"):
                # The row with the facts of its cycle may be stored a moment later: then the record is left out.
                (record,) = with_facts((Decision.model_validate(row.doc),), ledger)
                if record.policy_hash in self.known:
                    self.recording.decisions.add(self._test, record, self.known[record.policy_hash])

        setattr(Policy, "hash", property(known_hash))  # noqa: B010 - instead of a cached property
        setattr(InMemoryLedger, "_store", watched_store)  # noqa: B010 - the same


def from_tests(folders: list[str], only: Collection[str]) -> None:
    recording = Recording("tests")
    if only:
        call_with_fixed_inputs(recording.calls)
    watch(recording.calls)
    plugin = WatchedTests(recording)
    plugin.watch()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=0", *folders], plugins=[plugin])
    print(f"pytest ended with {code!r}: what is watched may fail a test that replaces it")
    recording.write(only)


def from_drills(names: list[str]) -> None:
    # The simulator does not need the local data centre.
    from evenkeel_local.data_centre import DataCentre
    from evenkeel_local.drills import DRILLS, run
    from evenkeel_local.drills.decision_replay import incident_rows, recorded_decisions

    recording = Recording("drills")
    base = load_policy("local")
    heard: set[str] = set()
    drills = sorted((DRILLS[name] for name in names), key=lambda drill: repr(drill.fleet))
    for _, alike in itertools.groupby(drills, key=lambda drill: repr(drill.fleet)):
        drills_alike = list(alike)
        with (
            tempfile.TemporaryDirectory() as folder,
            DataCentre.start(Path(folder) / "centre", fleet=drills_alike[0].fleet) as centre,
        ):
            for drill in drills_alike:
                result = run(drill, centre, seed=2026)
                if result.failures():
                    print(f"drill {drill.name} failed: {result.failures()}")
                given = [doc["change"]["changes"] for _, doc in incident_rows(centre, "POLICY#") if "change" in doc]
                known = {policy.hash: policy for policy in (base, *(changed(base, changes) for changes in given))}
                for key, record in recorded_decisions(centre):
                    if key not in heard:
                        heard.add(key)
                        recording.decisions.add(f"drill {drill.name}", record, known.get(record.policy_hash, base))
                print(f"drill {drill.name}: {len(recording.decisions.found)} shapes of decisions", flush=True)
    recording.write()


def keep_policies(policies: Policies) -> None:
    """Write the policies that any file of the corpus refers to."""
    before = read_lines("policies.jsonl.gz") if (FOLDER / "policies.jsonl.gz").exists() else []
    document = {entry["id"]: entry["policy"] for entry in before} | policies.documents
    for name in SHIPPED_POLICIES:
        document.setdefault(policies.id_of(load_policy(name)), load_policy(name).to_json())
    texts = [
        json.dumps(read_lines(path.name)) for path in sorted(FOLDER.glob("*.gz")) if path.name != "policies.jsonl.gz"
    ]
    used = [name for name in sorted(document) if any(f'"{name}"' in text for text in texts)]
    write_lines("policies.jsonl.gz", [{"id": name, "policy": document[name]} for name in used])


def summarize(decisions: list[Json], calls: list[Json], left_out: Mapping[str, int]) -> None:
    """Print the number of kept and dropped records."""
    kinds = Counter(f"{decision['decision']['kind']} {decision['decision']['action'][:30]}" for decision in decisions)
    for name, count in sorted((kinds + Counter(call["function"] for call in calls)).items()):
        print(f"{count:5}  {name}")
    for why, count in sorted(left_out.items()):
        print(f"{count:5}  left out: {why}")
    print(f"{len(decisions)} decisions, {len(calls)} calls")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("simulator", "tests", "drills"))
    parser.add_argument("names", nargs="*", help="the seeds as first..last, folders of tests, or drills")
    parser.add_argument("--only", nargs="+", default=(), choices=FUNCTIONS, metavar="FUNCTION", help="not for drills")
    args = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set decides which call is first
        command = [sys.executable, "-m", "tests.simulator.record_decisions", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0", "CI": "1"}, check=False
        ).returncode
    if args.source == "drills":
        from_drills(args.names or list(DRILLS))
    elif args.source == "tests":
        from_tests(args.names or list(TESTS), args.only)
    else:
        first, _, last = (args.names or [f"{SEEDS[0]}..{SEEDS[1]}"])[0].partition("..")
        from_simulator(int(first), int(last), args.only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
