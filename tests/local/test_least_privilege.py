"""Every permission is missed when it is taken away: generated from the template and from the access manifest.

A probe is a situation in which a function needs what its role grants. With the whole role each probe comes through;
with one action less, one of them is refused for that very action. docs/iam.md lists what neither the engine nor the
local GPU cluster decides by, and nothing else.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from evenkeel_local.data_centre import FLEET
from evenkeel_local.identities import make_user, set_policy
from tests.local.privilege import permission_table
from tests.local.privilege.permission_bench import (
    InvocationResult,
    PermissionBench,
    access_entries,
    access_groups,
    verbs,
)
from tests.local.privilege.probes import PROBES, PermissionProbe, keeps_a_malformed_event, probes_of
from tests.template.documents import Json
from tests.template.statements import FUNCTIONS, Permission, Statement, of_callers
from tests.waiting import until

CALLERS = of_callers()
GROUPS = [(function, group) for function, groups in access_entries().items() for group in groups]
ROUTES = {
    "Read": "GET /v1/status",
    "Submit": "POST /v1/jobs",
    "Operate": f"POST /v1/clusters/{FLEET}/automation/release",
    "Report": "POST /v1/faults",
    "Administer": f"GET /v1/clusters/{FLEET}/policy",
}
"""One route of each statement of the callers' policies."""

MISSED: Final[Counter[str]] = Counter()
"""How often a probe was the one to miss something: those that miss much are asked first, which only saves time."""

LIKELY = {
    "get": "repair_node",
    "watch": "watch_cluster",
    "create": "launch_job",
    "delete": "stop_attempt",
    "localqueues": "schedule_jobs",
    "namespaces": "schedule_jobs",
    "workloads": "open_wait",
}
"""Who needs a verb, or anything of a resource, most likely: asked first, which only saves time."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PermissionBench]:
    with PermissionBench.standing(tmp_path_factory.mktemp("privilege")) as standing:
        yield standing


def refused(stage: PermissionBench, function: str, permission: Permission) -> InvocationResult | None:
    """Return what the first probe saw that was refused for this action; None where none was."""
    for one in sorted(probes_of(function), key=lambda one: -MISSED[str(one)]):
        seen = one.run(stage)
        if seen.refuses(permission.action):
            MISSED[str(one)] += 1
            return seen
    return None


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize("one", PROBES, ids=str)
def test_a_probe_comes_through_with_the_whole_role(stage: PermissionBench, one: PermissionProbe) -> None:
    seen = one.run(stage)

    assert one.comes_through(seen), seen.error_text


@pytest.mark.parametrize("permission", permission_table.proved_of_roles(), ids=str)
def test_a_permission_is_missed_when_it_is_taken_away(stage: PermissionBench, permission: Permission) -> None:
    function = FUNCTIONS[permission.owner]

    with stage.without(permission):
        if permission.action == "eks:DescribeCluster":
            stage.start_cold(function)  # a container asks once where the cluster is, and remembers
        seen = refused(stage, function, permission)
        if seen is None:
            stage.start_cold(function)  # and for a while what the site's policy is
            seen = refused(stage, function, permission)

    assert seen is not None, f"{permission} can go: no probe of {function} misses it"


@pytest.mark.parametrize("owner", sorted(FUNCTIONS))
def test_what_is_listed_as_unproved_goes_unnoticed(stage: PermissionBench, owner: str) -> None:
    first = probes_of(FUNCTIONS[owner])[0]

    with stage.without(*permission_table.unproved_of_roles(owner)):
        seen = first.run(stage)

    assert first.comes_through(seen), seen.error_text


def test_a_queue_is_polled_whatever_the_role_says(stage: PermissionBench) -> None:
    event = keeps_a_malformed_event(stage)["Records"][0]["body"]
    take = [one for one in permission_table.unproved_of_roles("ReceiveEventRole") if one.sid == "TakeEvents"]

    with stage.without(*take), stage.polled("receive_event"):
        stage.sqs.send_message(QueueUrl=stage.centre.outputs["EventsQueueUrl"], MessageBody=event)
        until(lambda: stage.takes("DeadLetterQueueUrl", event), "the event is dead-lettered")


@pytest.mark.parametrize("machine", ["RecoverNode", "RunJob"])
def test_a_workflow_calls_a_function_whatever_its_role_says(stage: PermissionBench, machine: str) -> None:
    with stage.without(*permission_table.unproved_of_roles(f"{machine}MachineRole")):
        end = stage.call_by_workflow(f"{machine}Arn", "mark_running", {"jobId": "job-none", "attempt": 1})

    assert "There is no attempt 1 of job-none" in end["cause"], "the function was called, and does not know that job"


def test_every_function_has_a_probe() -> None:
    assert {one.function for one in PROBES} == set(FUNCTIONS.values())


# ---------------------------------------------------------------- the listing


def test_every_statement_has_a_removal_test_or_is_listed_as_unproved() -> None:
    assert permission_table.every_sid() - permission_table.sids_with_a_test() == set(permission_table.unproved())


def test_roles_of_functions_alone_are_decided_by() -> None:
    assert {one.owner for one in permission_table.proved_of_roles()} <= set(FUNCTIONS)


# ---------------------------------------------------------------- callers of the API


@pytest.mark.parametrize("statement", CALLERS, ids=str)
def test_a_route_is_closed_when_its_statement_is_taken_away(stage: PermissionBench, statement: Statement) -> None:
    granted = stage.granted(statement.owner)
    caller = make_user(stage.centre.deployer, f"caller-{statement.owner}", granted)
    route = ROUTES[statement.sid]

    whole = stage.call(caller, route)
    set_policy(stage.centre.deployer, f"caller-{statement.owner}", without(granted, statement.sid))
    less = stage.call(caller, route)

    assert (whole.is_refused, less.is_refused) == (False, True), (whole, less)


@pytest.mark.parametrize("policy", sorted({statement.owner for statement in CALLERS}))
def test_a_policy_opens_no_more_than_its_own_routes(stage: PermissionBench, policy: str) -> None:
    caller = make_user(stage.centre.deployer, f"only-{policy}", stage.granted(policy))

    open_to_it = {sid for sid, route in ROUTES.items() if not stage.call(caller, route).is_refused}

    assert open_to_it == {statement.sid for statement in CALLERS if statement.owner == policy}


def without(granted: list[Json], sid: str) -> list[Json]:
    return [statement for statement in granted if statement["Sid"] != sid]


# ---------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize(("role", "resource", "verb"), verbs(), ids=["-".join(one) for one in verbs()])
def test_a_verb_is_missed_when_it_is_taken_away(stage: PermissionBench, role: str, resource: str, verb: str) -> None:
    members = [function for function, group in GROUPS if access_groups()[group] == role]
    members.sort(key=lambda function: function not in (LIKELY.get(verb), LIKELY.get(resource)))

    with stage.without_verb(role, resource, verb):
        # A refused watch ends by itself; nothing else has to be refused meanwhile.
        runs = (one.run(stage, alone=verb == "watch") for name in members for one in probes_of(name))
        is_missed = any(seen.refuses_verb(verb, resource) for seen in runs)

    assert is_missed, f"{verb} {resource} can go from {role}: no probe of {', '.join(members)} misses it"


@pytest.mark.parametrize(("function", "group"), GROUPS, ids=["-".join(one) for one in GROUPS])
def test_a_group_is_missed_when_it_is_taken_from_an_access_entry(
    stage: PermissionBench, function: str, group: str
) -> None:
    with stage.without_group(function, group):
        is_missed = any(" cannot " in one.run(stage).error_text for one in probes_of(function))

    assert is_missed, f"{function} needs no {group}"
