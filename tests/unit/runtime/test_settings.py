"""Settings from the environment: valid, missing and invalid variables."""

import pytest

from evenkeel.domain.policy_section import Mode
from evenkeel.runtime.settings import BadSetting, Settings


def test_mode_is_observe_without_environment_variables() -> None:
    settings = Settings.from_environment({"PATH": "/bin", "AWS_REGION": "eu-west-1"})

    assert (settings.mode, settings.drills_may_act, settings.policy_name) == (Mode.OBSERVE, False, "production")
    assert (settings.kubernetes_clusters, settings.hyperpod_cluster_arn) == ((), "")
    assert (settings.job_namespace, settings.job_service_account) == ("evenkeel-jobs", "trainer")
    assert settings.region == "eu-west-1"


def test_settings_read_every_environment_variable() -> None:
    variables = {
        "EVENKEEL_FLEET": "research",
        "EVENKEEL_MODE": "act",
        "EVENKEEL_DRILLS_MAY_ACT": "true",
        "KUBERNETES_CLUSTERS": "research-eks, burst-eks,",
    }

    settings = Settings.from_environment(variables)

    assert (settings.fleet, settings.mode, settings.drills_may_act) == ("research", Mode.ACT, True)
    assert settings.kubernetes_clusters == ("research-eks", "burst-eks")


def test_empty_environment_variable_counts_as_absent() -> None:
    settings = Settings.from_environment({"EVENKEEL_MODE": "", "HYPERPOD_CLUSTER_ARN": " "})

    assert (settings.mode, settings.hyperpod_cluster_arn) == (Mode.OBSERVE, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("EVENKEEL_MODE", "on"), ("EVENKEEL_DRILLS_MAY_ACT", "maybe"), ("EVENKEEL_POLICY", "../secrets")],
)
def test_error_about_an_unreadable_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=name):
        Settings.from_environment({name: value})


def test_error_about_a_missing_setting_names_its_variable() -> None:
    with pytest.raises(BadSetting, match="CYCLES_QUEUE_URL"):
        Settings.from_environment({}).need("cycles_queue_url")
