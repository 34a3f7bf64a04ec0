"""Every granted permission is needed; the tests are generated from the template and the access manifest.

A probe is a situation in which a function needs permissions of its role. With the whole role, each probe succeeds. The
engine logs the requests that the role's policy allowed. A permission is needed if it alone allowed one of them. The
tests marked `exhaustive` remove each permission alone, and a probe must be refused. docs/iam.md lists the permissions
that no local part enforces.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

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
"""For each statement of the caller policies, a route that it opens."""

MISSED: Final[Counter[str]] = Counter()
"""Number of refusals found by each probe. Productive probes run first, which only saves time."""

LIKELY = {
    "get": "repair_node",
    "watch": "watch_cluster",
    "create": "launch_job",
    "delete": "stop_attempt",
    "localqueues": "schedule_jobs",
    "namespaces": "schedule_jobs",
    "workloads": "open_wait",
}
"""Functions that most likely need a verb or a resource run first, which only saves time."""


VERBS_EACH_TIME = ("evenkeel-cordoner", "evenkeel-launcher")
GROUPS_EACH_TIME = ("launch_job", "repair_node")
"""Cluster roles and functions whose Kubernetes rights `make test` removes: those that change nodes and jobs."""


def random_subset(names: Iterable[str], each_time: tuple[str, ...]) -> list[Any]:
    """Return the parameters of a test. `make test` runs only those in `each_time`."""
    return [
        name if name in each_time else pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(set(names))
    ]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PermissionBench]:
    with PermissionBench.started_bench(tmp_path_factory.mktemp("privilege")) as standing:
        yield standing


def first_refused_probe(stage: PermissionBench, function: str, permission: Permission) -> InvocationResult | None:
    """Return the first probe that was refused this action; None if no probe was."""
    for probe in sorted(probes_of(function), key=lambda probe: -MISSED[str(probe)]):
        result = probe.run(stage)
        if result.refuses(permission.action):
            MISSED[str(probe)] += 1
            return result
    return None


def is_needed(stage: PermissionBench, permission: Permission) -> bool:
    """Remove one permission, and return whether a probe is then refused."""
    function = FUNCTIONS[permission.owner]
    with stage.without(permission):
        if permission.action == "eks:DescribeCluster":
            stage.start_cold(function)  # a container caches where the cluster is
        if first_refused_probe(stage, function, permission):
            return True
        stage.start_cold(function)  # a container also caches the site's policy for a while
        return first_refused_probe(stage, function, permission) is not None


Grant = TypeVar("Grant")


def unneeded_grants(
    stage: PermissionBench,
    grants: Iterable[Grant],
    probes: Iterable[PermissionProbe],
    run_without: Callable[[PermissionProbe, list[Grant]], InvocationResult],
    refusals: Callable[[InvocationResult, list[Grant]], list[set[Grant]]],
) -> list[Grant]:
    """Remove all grants, and restore each grant that a probe was refused, until none is left or each probe has run.

    A refusal that several grants can explain proves none of them: the probe runs again without each of them.

    Args:
        stage: The bench on which the probes run.
        grants: The removed grants.
        probes: In the order of their runs.
        run_without: Repeats a probe without some of the grants.
        refusals: Returns, for each refusal of a probe, the missing grants that explain it.

    Returns:
        The grants that no probe was refused.
    """

    def proved(probe: PermissionProbe, left: list[Grant]) -> set[Grant]:
        met = refusals(run_without(probe, left), left)
        grants_refused = {grant for explaining in met if len(explaining) == 1 for grant in explaining}
        for explaining in () if grants_refused else met:
            for grant in explaining:
                grants_left = [grant_left for grant_left in left if grant_left not in explaining or grant_left == grant]
                if {grant} in refusals(run_without(probe, grants_left), grants_left):
                    grants_refused.add(grant)
        return grants_refused

    left = list(grants)
    for probe in probes:
        if not left:
            break
        with probe.under(stage):
            while left and (refused_grants := proved(probe, left)):
                left = [grant for grant in left if grant not in refused_grants]
    return left


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_each_probe_succeeds_with_all_permissions_of_its_role(stage: PermissionBench, probe: PermissionProbe) -> None:
    result = probe.run(stage)

    assert probe.succeeds(result), result.error_text


@pytest.mark.parametrize("owner", sorted(FUNCTIONS))
def test_every_permission_of_a_role_is_used(stage: PermissionBench, owner: str) -> None:
    proved = {permission for permission in permission_table.proved_of_roles() if permission.owner == owner}
    for probe in probes_of(FUNCTIONS[owner]):
        if proved <= stage.used_permissions(owner):
            break  # in a run of the whole module the probes ran before
        probe.run(stage)

    unused = sorted(map(str, proved - stage.used_permissions(owner)))

    assert unused == [], f"no probe of {FUNCTIONS[owner]} uses these: take them out of the template, or add a probe"


@pytest.mark.exhaustive
@pytest.mark.parametrize("permission", permission_table.proved_of_roles(), ids=str)
def test_each_permission_removed_alone_breaks_a_probe(stage: PermissionBench, permission: Permission) -> None:
    assert is_needed(stage, permission), (
        f"remove {permission}, or add a probe: none of {FUNCTIONS[permission.owner]} needs it"
    )


@pytest.mark.parametrize("owner", sorted(FUNCTIONS))
def test_functions_work_locally_without_the_permissions_listed_as_unproven(stage: PermissionBench, owner: str) -> None:
    first = probes_of(FUNCTIONS[owner])[0]

    with stage.without(*permission_table.unproven_of_roles(owner)):
        result = first.run(stage)

    assert first.succeeds(result), result.error_text


def test_emulator_does_not_enforce_permission_to_poll_a_queue(stage: PermissionBench) -> None:
    event = keeps_a_malformed_event(stage)["Records"][0]["body"]
    take = [
        permission
        for permission in permission_table.unproven_of_roles("ReceiveEventRole")
        if permission.sid == "ReceiveEvents"
    ]

    with stage.without(*take), stage.polled("receive_event"):
        stage.sqs.send_message(QueueUrl=stage.centre.outputs["EventsQueueUrl"], MessageBody=event)
        until(lambda: stage.has_message("DeadLetterQueueUrl", event), "the event is dead-lettered")


@pytest.mark.parametrize("machine", ["RecoverNode", "RunJob"])
def test_emulator_does_not_enforce_permission_to_call_a_function(stage: PermissionBench, machine: str) -> None:
    with stage.without(*permission_table.unproven_of_roles(f"{machine}MachineRole")):
        end = stage.call_by_workflow(f"{machine}Arn", "mark_running", {"jobId": "job-none", "attempt": 1})

    assert "job-none has no attempt 1" in end["cause"], "the function was called, and does not know that job"


def test_every_function_has_a_probe() -> None:
    assert {probe.function for probe in PROBES} == set(FUNCTIONS.values())


# ---------------------------------------------------------------- the listing


def test_every_policy_statement_has_removal_test_or_listed_reason() -> None:
    assert permission_table.every_sid() - permission_table.sids_with_a_test() == set(permission_table.unproven())


def test_removal_tests_cover_only_roles_of_functions() -> None:
    assert {permission.owner for permission in permission_table.proved_of_roles()} <= set(FUNCTIONS)


# ---------------------------------------------------------------- callers of the API


@pytest.mark.parametrize("statement", CALLERS, ids=str)
def test_route_is_refused_without_its_statement(stage: PermissionBench, statement: Statement) -> None:
    granted = stage.granted(statement.owner)
    caller = make_user(stage.centre.deployer, f"caller-{statement.owner}", granted)
    route = ROUTES[statement.sid]

    reply = stage.call(caller, route)
    set_policy(stage.centre.deployer, f"caller-{statement.owner}", without_statement(granted, statement.sid))
    less = stage.call(caller, route)

    assert (reply.is_refused, less.is_refused) == (False, True), (reply, less)


@pytest.mark.parametrize("policy", sorted({statement.owner for statement in CALLERS}))
def test_caller_policy_allows_only_its_own_routes(stage: PermissionBench, policy: str) -> None:
    caller = make_user(stage.centre.deployer, f"only-{policy}", stage.granted(policy))

    open_to_it = {sid for sid, route in ROUTES.items() if not stage.call(caller, route).is_refused}

    assert open_to_it == {statement.sid for statement in CALLERS if statement.owner == policy}


def without_statement(granted: list[Json], sid: str) -> list[Json]:
    return [statement for statement in granted if statement["Sid"] != sid]


# ---------------------------------------------------------------- Kubernetes


def members_of(role: str) -> list[str]:
    """Return the functions whose access entries name a group with this role."""
    return [function for function, group in GROUPS if access_groups()[group] == role]


def likely_first(functions: list[str], grants: Iterable[tuple[str, str]]) -> list[str]:
    """Put the functions first that most likely need one of these verbs; the order only saves time."""
    likely = {LIKELY.get(word) for grant in grants for word in grant}
    return sorted(functions, key=lambda function: function not in likely)


def is_verb_needed(stage: PermissionBench, role: str, resource: str, verb: str) -> bool:
    """Remove one verb, and return whether a probe is refused this verb."""
    members = likely_first(members_of(role), [(resource, verb)])
    with stage.without_verbs(role, (resource, verb)):
        # A refused watch ends without another refusal.
        runs = (probe.run(stage, alone=verb == "watch") for name in members for probe in probes_of(name))
        return any(result.refuses_verb(verb, resource) for result in runs)


@pytest.mark.parametrize("role", random_subset({role for role, _, _ in verbs()}, VERBS_EACH_TIME))
def test_every_verb_of_a_role_is_needed(stage: PermissionBench, role: str) -> None:
    granted = [(resource, verb) for name, resource, verb in verbs() if name == role]

    def run_without(probe: PermissionProbe, left: list[tuple[str, str]]) -> InvocationResult:
        with stage.without_verbs(role, *left):
            return probe.repeat(stage, alone=any(verb == "watch" for _, verb in left))

    members = likely_first(members_of(role), granted)
    probes = [probe for name in members for probe in probes_of(name)]

    def refusals(result: InvocationResult, left: list[tuple[str, str]]) -> list[set[tuple[str, str]]]:
        return [{refused_verb} for refused_verb in result.refused_verbs() if refused_verb in left]

    left = unneeded_grants(stage, granted, probes, run_without, refusals)
    unneeded = [f"{verb} {resource}" for resource, verb in left if not is_verb_needed(stage, role, resource, verb)]

    assert unneeded == [], f"no probe of {', '.join(members)} misses these verbs of {role}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("role", "resource", "verb"), verbs(), ids=["-".join(names) for names in verbs()])
def test_each_kubernetes_verb_removed_alone_breaks_a_probe(
    stage: PermissionBench, role: str, resource: str, verb: str
) -> None:
    assert is_verb_needed(stage, role, resource, verb), (
        f"remove {verb} {resource} from {role}, or add a probe: none needs it"
    )


def is_group_needed(stage: PermissionBench, function: str, group: str) -> bool:
    """Remove one group from a function's access entry, and return whether a probe is then refused."""
    with stage.without_groups(function, group):
        return any(" cannot " in probe.run(stage).error_text for probe in probes_of(function))


@pytest.mark.parametrize("function", random_subset(access_entries(), GROUPS_EACH_TIME))
def test_every_group_of_an_access_entry_is_needed(stage: PermissionBench, function: str) -> None:
    grants = {
        group: {(resource, verb) for role, resource, verb in verbs() if role == access_groups()[group]}
        for group in access_entries()[function]
    }

    def run_without(probe: PermissionProbe, left: list[str]) -> InvocationResult:
        with stage.without_groups(function, *left):
            return probe.repeat(stage)

    def refusals(result: InvocationResult, left: list[str]) -> list[set[str]]:
        met = ({group for group in left if verb in grants[group]} for verb in sorted(result.refused_verbs()))
        return [explaining for explaining in met if explaining]

    left = unneeded_grants(stage, grants, probes_of(function), run_without, refusals)
    unneeded = [group for group in left if not is_group_needed(stage, function, group)]

    assert unneeded == [], f"{function} does not need these groups: take them out of its access entry"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("function", "group"), GROUPS, ids=["-".join(names) for names in GROUPS])
def test_each_access_group_removed_alone_breaks_a_probe(stage: PermissionBench, function: str, group: str) -> None:
    assert is_group_needed(stage, function, group), f"remove {group} from {function}, or add a probe: none needs it"
