from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.domain.scheduling.queues.objects import PreemptionPolicy, Quota
from evenkeel.domain.scheduling.queues.own import OwnQuotas
from evenkeel.domain.scheduling.teams import (
    FleetQuotas,
    Period,
    Role,
    SetUp,
    Team,
    check_fleet,
    check_set_up,
    check_team,
    identity_of,
    of_quotas,
)

ROLE = "arn:aws:iam::111122223333:role/Research"


def a_team(name: str = "nlp", **changes: Any) -> Team:
    queue = {"cohort": "fleet", "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}]}
    return Team.model_validate({"name": name, "queue": queue, "members": [{"principal": ROLE}], **changes})


def test_an_ordinary_team_has_no_fault() -> None:
    team = a_team(
        namespace="nlp",
        serviceAccount="trainer",
        images=["registry.example/nlp/*", "registry.example/base@sha256:0f"],
        mostAcceleratorsPerUser=8,
        budgets=[{"period": "week", "gpuHours": 500}, {"period": "month", "usd": 10000.5}],
    )

    assert check_team(team) == ()


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"name": "NLP"}, ["name"]),
        ({"queue": {"name": "vision"}}, ["queue.name"]),
        ({"queue": {"borowLimit": 3}}, ["queue.borowLimit"]),
        ({"membres": []}, ["membres"]),
        ({"queue": {"groups": [{"a": {"gpu": -1}}]}}, ["queue.groups"]),
        ({"queue": {"cohort": "x", "groups": [{"a": {"gpu": {"nominal": 1, "lend": 2}}}]}}, ["queue.groups"]),
        ({"queue": {"groups": [{"a": {"gpu": 1}}, {"a": {"cpu": 1}}]}}, ["queue"]),
        ({"members": [{"principal": "Research"}]}, ["members.0.principal"]),
        ({"members": [{"principal": "arn:aws:sts::111122223333:assumed-role/R/s"}]}, ["members.0.principal"]),
        ({"members": [{"principal": ROLE}, {"principal": ROLE, "role": "lead"}]}, ["members"]),
        ({"namespace": "kube-system"}, ["namespace"]),
        ({"serviceAccount": "no good"}, ["serviceAccount"]),
        ({"images": ["registry/*/x"]}, ["images.0"]),
        ({"budgets": [{"period": "day"}]}, ["budgets.0"]),
        ({"budgets": [{"usd": 1}, {"gpuHours": 1}]}, ["budgets"]),
    ],
)
def test_faults_of_a_team_are_named(changes: dict[str, Any], fields: list[str]) -> None:
    assert [fault.field for fault in check_team(a_team(**changes))] == fields


@pytest.mark.parametrize(
    ("fleet", "fields"),
    [
        ({"cohorts": [{"name": "fleet"}], "priorityClasses": {"high": 100}}, []),
        ({"cohorts": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}, ["cohorts", "cohorts"]),
        ({"cohorts": [{"name": "a"}, {"name": "a"}]}, ["cohorts"]),
        ({"cohorts": [{"name": "A"}]}, ["cohorts.0.name"]),
        ({"priorityClasses": {"High!": 1}}, ["priorityClasses.High!"]),
        ({"priorityClasses": {"high": 2**40}}, ["priorityClasses.high"]),
        ({"switches": {"flapGard": 1}}, ["switches.flapGard"]),
        ({"flavors": [{"name": "a"}, {"name": "a"}]}, ["flavors"]),
    ],
)
def test_faults_of_the_fleets_part_are_named(fleet: dict[str, Any], fields: list[str]) -> None:
    assert [fault.field for fault in check_fleet(FleetQuotas.model_validate(fleet))] == fields


def test_two_teams_never_share_a_namespace() -> None:
    setup = SetUp(teams=(a_team("nlp", namespace="shared"), a_team("vision", namespace="shared")))

    assert [fault.field for fault in check_set_up(setup)] == ["namespace"]
    assert check_set_up(SetUp(teams=(a_team("nlp"), a_team("vision")))) == ()


@pytest.mark.parametrize(
    ("arn", "identity"),
    [
        ("arn:aws:sts::111122223333:assumed-role/Research/ana", "111122223333:role/Research"),
        ("arn:aws:iam::111122223333:role/teams/nlp/Research", "111122223333:role/Research"),
        ("arn:aws-us-gov:iam::111122223333:user/ana", "111122223333:user/ana"),
        ("arn:aws:iam::111122223333:root", ""),
        ("arn:aws:sts::111122223333:federated-user/ana", ""),
        ("Research", ""),
    ],
)
def test_a_role_is_the_same_in_every_session(arn: str, identity: str) -> None:
    assert identity_of(arn) == identity


def test_the_higher_of_two_roles_counts_and_nobody_is_in_no_team() -> None:
    fleet = FleetQuotas.model_validate(
        {"members": [{"principal": "arn:aws:iam::111122223333:role/Platform", "role": "lead"}]}
    )
    setup = SetUp(fleet=fleet, teams=(a_team("nlp"), a_team("vision", members=[])))

    assert setup.role_in("nlp", "111122223333:role/Research") is Role.SUBMITTER
    assert setup.role_in("vision", "111122223333:role/Research") is None
    assert setup.role_in("vision", "111122223333:role/Platform") is Role.LEAD
    assert setup.role_in("nlp", "999999999999:role/Research") is None
    assert setup.role_in("nlp", "") is None
    assert setup.teams_of("111122223333:role/Research") == ("nlp",)


def test_a_set_up_becomes_the_engines_queues() -> None:
    fleet = FleetQuotas.model_validate(
        {"cohorts": [{"name": "fleet"}], "fairSharing": False, "switches": {"minRunSeconds": 600}}
    )
    queues = SetUp(fleet=fleet, teams=(a_team("nlp"), a_team("vision"))).queues

    assert [queue.name for queue in queues.queues] == ["nlp", "vision"]
    assert queues.queues[0].groups[0].flavors[0].quotas == {"nvidia.com/gpu": Quota(16)}
    assert [flavor.name for flavor in queues.flavors] == ["ml.p5.48xlarge"]
    assert (queues.rules.fair_sharing, queues.rules.min_run_seconds) == (False, 600)
    assert SetUp().queues.queues == ()


def test_a_class_that_is_gone_or_not_given_has_the_lowest_priority() -> None:
    setup = SetUp(fleet=FleetQuotas(priority_classes={"high": 100, "low": -5}))

    assert [setup.priority_of(each) for each in ("high", "low", "", "gone")] == [100, -5, -5, -5]
    assert SetUp().priority_of("high") == 0


def test_images_are_allowed_by_name_or_by_beginning() -> None:
    team = a_team(images=["registry.example/nlp/*", "base:1"])

    assert team.allows_image("registry.example/nlp/train:3")
    assert team.allows_image("base:1")
    assert not team.allows_image("base:10")
    assert not team.allows_image("registry.example/nlpx/train")
    assert a_team().allows_image("anything")


def test_periods_have_names() -> None:
    instant = datetime(2027, 1, 2, 23, 59, tzinfo=UTC)

    assert [period.key_at(instant) for period in Period] == ["2027-01-02", "2026-W53", "2027-01"]


def test_a_set_up_survives_being_written_and_read() -> None:
    team = a_team(budgets=[{"usd": 5}], queue={"groups": [{"a": {"cpu": "1500m", "gpu": {"nominal": 4, "lend": 1}}}]})

    assert Team.model_validate(team.to_json()) == team
    assert Team.model_validate(team.to_json()).to_queue() == team.to_queue()


def test_a_quota_file_becomes_teams_without_people() -> None:
    quotas = OwnQuotas.model_validate(
        {
            "queues": [
                {"name": "vision", "preemption": {"reclaim": "Any"}},
                {"name": "hyperpod-ns-nlp-clusterqueue", "cohort": "hyperpod"},
            ],
            "priorityClasses": {"high-priority": 90},
        }
    )

    setup = of_quotas(quotas)

    assert [(team.name, team.namespace, team.members) for team in setup.teams] == [
        ("nlp", "hyperpod-ns-nlp", ()),
        ("vision", "", ()),
    ]
    assert setup.by_name["vision"].to_queue().preemption.reclaim is PreemptionPolicy.ANY
    assert setup.fleet.priority_classes == {"high-priority": 90}
    assert [fault for team in setup.teams for fault in check_team(team)] == []


def test_a_teams_local_queue_is_its_own_name_unless_it_says_another() -> None:
    setup = SetUp(teams=(a_team("nlp"), a_team("vision", localQueue="gpu-queue")))

    assert [setup.local_queue_of(name) for name in ("nlp", "vision", "default")] == ["nlp", "gpu-queue", "default"]


def test_a_queue_of_hyperpods_comes_with_the_local_queue_that_hyperpod_makes() -> None:
    quotas = OwnQuotas.model_validate({"queues": [{"name": "hyperpod-ns-nlp-clusterqueue"}, {"name": "vision"}]})

    setup = of_quotas(quotas)

    assert [(team.name, setup.local_queue_of(team.name)) for team in setup.teams] == [
        ("nlp", "hyperpod-ns-nlp-localqueue"),
        ("vision", "vision"),
    ]


def test_a_local_queue_has_a_name_that_kubernetes_takes() -> None:
    (fault,) = check_team(a_team(localQueue="GPU queue"))

    assert fault.field == "localQueue"
