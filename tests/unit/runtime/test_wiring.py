"""The composition root, and the policies in the layer."""

import importlib.resources
import json
from functools import cached_property
from typing import Any

import pytest
from pydantic import BaseModel

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.adapters.null_provider import NullProvider
from evenkeel.adapters.system import ALPHABET, RandomIds
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.ports import NotFound
from evenkeel.runtime import wiring
from evenkeel.runtime.settings import BadSetting, Settings
from evenkeel.runtime.wiring import Ports, load_policy
from tests.fakes import FakeWorld

ALL = {
    "EVENKEEL_FLEET": "research",
    "HYPERPOD_CLUSTER_ARN": "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcdefghijkl",
    "KUBERNETES_CLUSTERS": "research-eks",
    "JOBS_TABLE": "jobs",
    "RAW_EVENTS_BUCKET": "raw",
    "DEAD_LETTER_QUEUE_URL": "https://q/dead",
    "CYCLES_QUEUE_URL": "https://q/cycles.fifo",
    "EVENTS_QUEUE_URL": "https://q/events",
    "RECOVER_NODE_ARN": "arn:recover",
    "RUN_JOB_ARN": "arn:run",
    "RESOLVE_WAIT_FUNCTION": "resolve-wait",
    "PAGE_TOPIC_ARN": "arn:topic",
    "CHAT_TOPIC_ARN": "arn:chat",
    "EVENT_BUS_NAME": "evenkeel",
}
PORTS = [name for name, member in vars(Ports).items() if isinstance(member, cached_property)]


def test_each_port_is_built_once() -> None:
    world = Ports(Settings.from_environment(ALL))

    first = [getattr(world, name) for name in PORTS]

    assert len(first) == 21
    assert [getattr(world, name) for name in PORTS] == first
    assert isinstance(world.ledger, DynamoLedger)
    assert isinstance(world.cluster, KubernetesCluster)
    assert isinstance(world.provider, HyperPodProvider)


def test_no_port_is_built_before_its_first_use() -> None:
    world = Ports(Settings.from_environment({}))

    assert set(vars(world)) == {"settings"}
    for name in ("wait_answers", "cycle_requests", "inbox", "on_call", "raw_events", "dead_letters"):
        with pytest.raises(BadSetting):
            getattr(world, name)


def test_fleet_without_hyperpod_has_no_repairable_nodes() -> None:
    provider = Ports(Settings.from_environment({})).provider

    assert isinstance(provider, NullProvider)
    assert (provider.nodes(), provider.node("i-0123456789abcdef0")) == ((), None)
    assert provider.reboot("i-1") is provider.replace("i-1") is RepairAnswer.NO_SUCH_NODE
    with pytest.raises(NotFound):
        provider.cluster()


def test_ports_use_given_port_and_refuses_unknown_port_name() -> None:
    fake = FakeWorld()

    assert Ports(Settings.from_environment({}), ledger=fake.ledger).ledger is fake.ledger
    with pytest.raises(TypeError, match="ledgre"):
        Ports(Settings.from_environment({}), ledgre=fake.ledger)


def test_use_ports_sets_the_ports_of_handlers() -> None:
    world = FakeWorld().as_ports()

    with wiring.use_ports(world):
        assert wiring.ports() is world


def test_id_has_its_kind_and_ten_unambiguous_characters() -> None:
    ids = {RandomIds().new("job") for _ in range(200)}

    assert len(ids) == 200
    for identifier in ids:
        prefix, _, rest = identifier.partition("-")
        assert (prefix, len(rest), set(rest) <= set(ALPHABET)) == ("job", 10, True)


# ---------------------------------------------------------------- policies


def policy_file(name: str) -> Any:
    return json.loads(importlib.resources.files("evenkeel").joinpath("policy", f"{name}.json").read_text("utf-8"))


def test_production_policy_equals_the_defaults() -> None:
    assert load_policy("production") == Policy()
    assert policy_file("production") == Policy().to_json()


@pytest.mark.parametrize("name", ["production", "local"])
def test_policy_file_names_exactly_the_declared_fields(name: str) -> None:
    def keys(document: Any, model: BaseModel) -> None:
        assert set(document) == set(model.model_dump(by_alias=True))
        for field in type(model).model_fields:
            inner = getattr(model, field)
            if isinstance(inner, BaseModel):
                keys(document[type(model).model_fields[field].alias or field], inner)

    keys(policy_file(name), load_policy(name))
    assert load_policy(name).name == name


WIDER = {"testJobsAfter", "testJobCommand", "testJobImage", "deepChecksAfter", "lemonReturns", "maxAttemptsADay"}
"""Overrides of the policy for a fleet of five nodes with permanent faults."""


def test_local_policy_only_shortens_durations_of_the_production_policy() -> None:
    local, production = policy_file("local"), policy_file("production")

    for part in ("repair", "jobs", "watch"):
        for field, value in local[part].items():
            if field not in WIDER and not isinstance(value, dict):
                assert value <= production[part][field], f"{part}.{field}"


def test_error_about_a_missing_policy_names_its_file() -> None:
    with pytest.raises(BadSetting, match="holiday"):
        load_policy("holiday")
