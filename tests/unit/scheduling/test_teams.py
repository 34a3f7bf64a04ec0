import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.domain.kueue.objects import PreemptionPolicy, Quota
from evenkeel.domain.queue_simulation.short_form import ShortQuotas
from evenkeel.domain.quotas.setup_checks import check_change, check_fleet, check_setup, check_team
from evenkeel.domain.quotas.teams import FleetQuotas, Period, Role, Team, TeamSetup, identity_of, setup_of_quotas

ROLE = "arn:aws:iam::111122223333:role/Research"


def a_team(name: str = "nlp", **changes: Any) -> Team:
    queue = {"cohort": "fleet", "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}]}
    members = [{"principal": ROLE}]
    return Team.model_validate({"name": name, "queue": queue, "members": members, "namespace": name, **changes})


SYSTEM = (
    *("default", "kube-system", "kube-public", "kube-node-lease", "amazon-guardduty", "aws-hyperpod", "eks-x"),
    *("amazon-cloudwatch", "hyperpod", "hyperpod-inference-system", "hyperpod-ns-", "kueue-system", "karpenter"),
    *("evenkeel", "evenkeel-jobs", "evenkeel-system", "cert-manager", "sagemaker-operators", "NLP", "nlp ", "a/b", "-"),
    *("flux-system", "cattle-system", "kserve-system", "kube-system.", "Kube-System", "default.", "nlp-system"),
)
BAD_IMAGES = (
    *("registry/*/x", "*", "registry*", "123.dkr.ecr.us-west-2.amazonaws.com*", "123.dkr.ecr.us-west-2.amazonaws.*"),
    *("registry.example/../*", "registry.example//*", "registry.example/./x", "registry.example/nlp/../vision"),
    *("/x*", "user@registry/x*", "registry/x:*y", "registry/x@sha256:*", "registry/NLP*", ""),
)
BAD_FOLDERS = (
    *("s3://", "s3://Bucket/x", "s3://bucket/../x", "s3://bucket//x", "s3://bucket/%2e%2e/x", "s3://bucket/x*y z"),
    *("https://bucket/x", "file://host/x", "file:///", "/fsx/x", "s3://bucket/./x", "s3://bucket/x\n", "x" * 1025),
)
LONG_FOLDERS = [f"s3://bucket/{n}/{'/'.join(['x' * 240] * 4)}" for n in range(50)]


def test_valid_team_has_no_error() -> None:
    team = a_team(
        namespace="nlp",
        serviceAccount="trainer",
        images=["registry.example/nlp/*", "registry.example/base@sha256:0f"],
        maxAcceleratorsPerUser=8,
        budgets=[{"period": "week", "gpuHours": 500}, {"period": "month", "usd": 10000.5}],
    )

    assert check_team(team) == ()


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"name": "NLP", "namespace": "nlp"}, ["name"]),
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
        *(({"namespace": name}, ["namespace"]) for name in SYSTEM),
        *(({"images": [pattern]}, ["images.0"]) for pattern in BAD_IMAGES),
        *(({"checkpoints": [folder]}, ["checkpoints.0"]) for folder in BAD_FOLDERS),
        ({"checkpoints": [f"s3://bucket/{n}" for n in range(51)]}, ["checkpoints"]),
        ({"priorityClasses": ["High"]}, ["priorityClasses.0"]),
        ({"members": [{"principal": f"{ROLE}{n}{'x' * 40}"} for n in range(101)]}, ["members"]),
        ({"images": [f"registry/{n}{'x' * 500}" for n in range(50)], "checkpoints": LONG_FOLDERS}, [""]),
        ({"budgets": [{"period": "day"}]}, ["budgets.0"]),
        ({"budgets": [{"usd": 1}, {"gpuHours": 1}]}, ["budgets"]),
    ],
)
def test_errors_of_a_team_are_reported(changes: dict[str, Any], fields: list[str]) -> None:
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
        ({"priorityClasses": {"system-node-critical": 1}}, ["priorityClasses.system-node-critical"]),
        ({"priorityClasses": {f"c{n}": n for n in range(101)}}, ["priorityClasses"]),
        ({"switches": {"flapGard": 1}}, ["switches.flapGard"]),
        ({"flavors": [{"name": "a"}, {"name": "a"}]}, ["flavors"]),
    ],
)
def test_errors_of_the_fleet_settings_are_reported(fleet: dict[str, Any], fields: list[str]) -> None:
    assert [fault.field for fault in check_fleet(FleetQuotas.model_validate(fleet))] == fields


def test_two_teams_cannot_share_a_namespace() -> None:
    setup = TeamSetup(teams=(a_team("nlp", namespace="shared"), a_team("vision", namespace="shared")))

    assert [fault.field for fault in check_setup(setup)] == ["namespace"]
    assert check_setup(TeamSetup(teams=(a_team("nlp"), a_team("vision")))) == ()


def test_each_of_two_teams_needs_a_namespace() -> None:
    nlp, vision = a_team("nlp", namespace=""), a_team("vision")

    assert check_setup(TeamSetup(teams=(nlp,))) == ()
    (fault,) = check_setup(TeamSetup(teams=(nlp, vision)))
    assert (fault.field, "Team nlp has no namespace" in fault.message) == ("namespace", True)


def test_teams_without_namespaces_can_get_them_one_by_one() -> None:
    old = TeamSetup(teams=tuple(a_team(name, namespace="") for name in ("a", "b", "c")))

    assert check_change(old, old.with_team(a_team("a")), "a") == ()
    assert [fault.field for fault in check_change(old, old.with_team(a_team("a", namespace="", images=["x"])), "a")]
    assert [fault.field for fault in check_change(old, old.with_team(a_team("d", namespace="")), "d")] == ["namespace"]


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("s3://b/team-a", "s3://b/team-abc", False),
        ("s3://b/team-a/", "s3://b/team-a", True),
        ("s3://b/team-a", "s3://b/team-a/x", True),
        ("s3://b", "s3://b/team-a/x", True),
        ("s3://b/a", "s3://c/a", False),
        ("s3://b/a", "s3://b/A", False),
        ("file:///fsx/a", "file:///fsx/a/b", False),
    ],
)
def test_folders_of_two_teams_cannot_overlap(first: str, second: str, is_refused: bool) -> None:
    for folder, other_folder in ((first, second), (second, first)):
        setup = TeamSetup(
            teams=(a_team("nlp", checkpoints=[folder, "s3://z/1"]), a_team("vision", checkpoints=[other_folder]))
        )
        assert [fault.field for fault in check_setup(setup)] == (["checkpoints"] if is_refused else [])


def test_folder_inside_another_teams_folder_is_reported() -> None:
    nlp = a_team("nlp", checkpoints=["s3://b/a", "s3://b/a/b"])

    assert check_setup(TeamSetup(teams=(nlp, a_team("vision", checkpoints=["s3://b/a/c"]))))


def test_number_of_queues_is_limited() -> None:
    def team(n: int) -> Team:
        group = {f"{hashlib.sha256(f'{n} {k}'.encode()).hexdigest()[:60]}": {"nvidia.com/gpu": 8} for k in range(60)}
        return a_team(f"team-{n:03d}", queue={"groups": [group]})

    assert "queue" in {fault.field for fault in check_setup(TeamSetup(teams=tuple(team(n) for n in range(100))))}
    assert check_setup(TeamSetup(teams=tuple(a_team(f"team-{n:03d}") for n in range(500)))) == ()


@pytest.mark.parametrize(
    ("pattern", "image", "is_allowed"),
    [
        ("r.example/nlp/*", "r.example/nlp/train:1", True),
        ("r.example/nlp/*", "r.example/nlp/train@sha256:0f", True),
        ("r.example/*", "r.example.evil.example/x", False),
        ("r.example/nlp/*", "r.example/nlp/../vision/x", False),
        ("r.example/nlp/*", "r.example/nlp//x", False),
        ("r.example/nlp/*", "R.EXAMPLE/nlp/x", False),
        ("r.example/nlp/*", "r.example:5000/nlp/x", False),
        ("r.example/nlp/*", "r.example@evil.example/nlp/x", False),
        ("r.example/nlp/train:1", "r.example/nlp/train:1", True),
        ("r.example/nlp/train:1", "r.example/nlp/train:10", False),
        ("r.example/nlp/train:1", "r.example/nlp/train:1@sha256:0f", False),
    ],
)
def test_image_pattern_needs_registry_and_path(pattern: str, image: str, is_allowed: bool) -> None:
    team = a_team(images=[pattern])

    assert check_team(team) == ()
    assert team.allows_image(image) is is_allowed


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
def test_role_has_one_identity_in_every_session(arn: str, identity: str) -> None:
    assert identity_of(arn) == identity


def test_higher_role_counts_and_unknown_identity_has_none() -> None:
    fleet = FleetQuotas.model_validate(
        {"members": [{"principal": "arn:aws:iam::111122223333:role/Platform", "role": "lead"}]}
    )
    setup = TeamSetup(fleet=fleet, teams=(a_team("nlp"), a_team("vision", members=[])))

    assert setup.role_in("nlp", "111122223333:role/Research") is Role.SUBMITTER
    assert setup.role_in("vision", "111122223333:role/Research") is None
    assert setup.role_in("vision", "111122223333:role/Platform") is Role.LEAD
    assert setup.role_in("nlp", "999999999999:role/Research") is None
    assert setup.role_in("nlp", "") is None
    assert setup.teams_of("111122223333:role/Research") == ("nlp",)


def test_team_setup_becomes_scheduler_queues() -> None:
    fleet = FleetQuotas.model_validate(
        {"cohorts": [{"name": "fleet"}], "fairSharing": False, "switches": {"minRunSeconds": 600}}
    )
    queues = TeamSetup(fleet=fleet, teams=(a_team("nlp"), a_team("vision"))).scheduler_declarations

    assert [queue.name for queue in queues.queues] == ["nlp", "vision"]
    assert queues.queues[0].groups[0].flavors[0].quotas == {"nvidia.com/gpu": Quota(16)}
    assert [flavor.name for flavor in queues.flavors] == ["ml.p5.48xlarge"]
    assert (queues.rules.fair_sharing, queues.rules.min_run_seconds) == (False, 600)
    assert TeamSetup().scheduler_declarations.queues == ()


def test_unknown_or_omitted_class_has_the_lowest_priority() -> None:
    setup = TeamSetup(fleet=FleetQuotas(priority_classes={"high": 100, "low": -5}))

    assert [setup.priority_of(priority_class) for priority_class in ("high", "low", "", "gone")] == [100, -5, -5, -5]
    assert TeamSetup().priority_of("high") == 0


def test_images_are_allowed_by_name_or_prefix() -> None:
    team = a_team(images=["registry.example/nlp/*", "base:1"])

    assert team.allows_image("registry.example/nlp/train:3")
    assert team.allows_image("base:1")
    assert not team.allows_image("base:10")
    assert not team.allows_image("registry.example/nlpx/train")
    assert a_team().allows_image("anything")


def test_budget_periods_are_keyed_by_day_week_and_month() -> None:
    instant = datetime(2027, 1, 2, 23, 59, tzinfo=UTC)

    assert [period.key_at(instant) for period in Period] == ["2027-01-02", "2026-W53", "2027-01"]


def test_team_setup_is_unchanged_after_writing_and_reading() -> None:
    team = a_team(budgets=[{"usd": 5}], queue={"groups": [{"a": {"cpu": "1500m", "gpu": {"nominal": 4, "lend": 1}}}]})

    assert Team.model_validate(team.to_json()) == team
    assert Team.model_validate(team.to_json()).to_queue() == team.to_queue()


def test_quota_file_becomes_teams_without_members() -> None:
    quotas = ShortQuotas.model_validate(
        {
            "queues": [
                {"name": "vision", "preemption": {"reclaim": "Any"}},
                {"name": "hyperpod-ns-nlp-clusterqueue", "cohort": "hyperpod"},
            ],
            "priorityClasses": {"high-priority": 90},
        }
    )

    setup = setup_of_quotas(quotas)

    assert [(team.name, team.namespace, team.members) for team in setup.teams] == [
        ("nlp", "hyperpod-ns-nlp", ()),
        ("vision", "vision", ()),
    ]
    assert setup.by_name["vision"].to_queue().preemption.reclaim is PreemptionPolicy.ANY
    assert setup.fleet.priority_classes == {"high-priority": 90}
    assert [fault for team in setup.teams for fault in check_team(team)] == []


def test_local_queue_defaults_to_the_team_name() -> None:
    setup = TeamSetup(teams=(a_team("nlp"), a_team("vision", localQueue="gpu-queue")))

    assert [setup.local_queue_of(name) for name in ("nlp", "vision", "default")] == ["nlp", "gpu-queue", "default"]


def test_hyperpod_queue_gets_its_local_queue() -> None:
    quotas = ShortQuotas.model_validate({"queues": [{"name": "hyperpod-ns-nlp-clusterqueue"}, {"name": "vision"}]})

    setup = setup_of_quotas(quotas)

    assert [(team.name, setup.local_queue_of(team.name)) for team in setup.teams] == [
        ("nlp", "hyperpod-ns-nlp-localqueue"),
        ("vision", "vision"),
    ]


def test_local_queue_needs_a_valid_kubernetes_name() -> None:
    (fault,) = check_team(a_team(localQueue="GPU queue"))

    assert fault.field == "localQueue"


def test_team_may_use_hyperpod_namespace_that_ends_in_system() -> None:
    assert check_team(a_team(namespace="hyperpod-ns-vision-system")) == ()


def test_bucket_alias_is_no_checkpoint_folder() -> None:
    faults = check_team(a_team(checkpoints=["s3://nlp", "s3://nlp-ap-x7k2-s3alias/a", "s3://nlp-x7k2--ol-s3"]))

    assert [fault.field for fault in faults] == ["checkpoints.1", "checkpoints.2"]


def test_unknown_priority_class_of_a_team_is_refused() -> None:
    setup = TeamSetup(fleet=FleetQuotas(priority_classes={"high": 10}), teams=(a_team(priority_classes=["hihg"]),))

    (fault,) = check_setup(setup)

    assert (fault.field, "Did you mean high?" in fault.message) == ("priorityClasses", True)
