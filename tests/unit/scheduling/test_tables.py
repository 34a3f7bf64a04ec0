from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.kueue.objects import Cohort, FlavorQuotas, Queue, Quota, ResourceGroup
from evenkeel.domain.quotas.usage_report import usage_rows

KEY = ("h100", "gpu")


def a_group(quota: Quota) -> tuple[ResourceGroup, ...]:
    return (ResourceGroup(("gpu",), (FlavorQuotas("h100", {"gpu": quota}),)),)


def team_table(queues: list[Queue], cohorts: list[Cohort], **used: int) -> dict[str, tuple[int, int, int, int]]:
    """Return allocated, used, borrowed and lent of each team."""
    quota_rows = usage_rows(queues, cohorts, {name: {KEY: amount} for name, amount in used.items()})
    return {name: line[0][1:] if line else (0, 0, 0, 0) for name, line in quota_rows.items()}


def a_queue(name: str, quota: Quota, cohort: str = "fleet") -> Queue:
    return Queue(name, cohort, a_group(quota))


def test_borrowed_quota_is_lent_in_proportion_to_unused_quota() -> None:
    queues = [a_queue(name, Quota(8)) for name in ("nlp", "speech", "vision")]

    quota_table = team_table(queues, [], nlp=14, speech=4, vision=0)

    assert quota_table == {"nlp": (8, 14, 6, 0), "speech": (8, 4, 0, 2), "vision": (8, 0, 0, 4)}


def test_cohort_quota_is_borrowed_before_team_quota() -> None:
    queues = [a_queue("nlp", Quota(8)), a_queue("vision", Quota(8))]

    quota_table = team_table(queues, [Cohort("fleet", groups=a_group(Quota(4)))], nlp=14)

    assert quota_table == {"nlp": (8, 14, 6, 0), "vision": (8, 0, 0, 2)}


def test_guaranteed_quota_is_not_lent() -> None:
    queues = [a_queue("nlp", Quota(8)), a_queue("vision", Quota(8, lend=2)), a_queue("speech", Quota(8))]

    quota_table = team_table(queues, [], nlp=16)

    assert quota_table["vision"][3] + quota_table["speech"][3] == 8
    assert quota_table["vision"][3] <= 2


def test_nearest_cohort_lends_first() -> None:
    queues = [
        a_queue("nlp", Quota(8), "text"),
        a_queue("search", Quota(4), "text"),
        a_queue("vision", Quota(8), "eyes"),
    ]
    cohorts = [Cohort("text", "fleet"), Cohort("eyes", "fleet")]

    assert team_table(queues, cohorts, nlp=11)["vision"] == (8, 0, 0, 0)
    assert team_table(queues, cohorts, nlp=14) == {"nlp": (8, 14, 6, 0), "search": (4, 0, 0, 4), "vision": (8, 0, 0, 2)}


def test_team_without_cohort_borrows_and_lends_nothing() -> None:
    assert team_table([a_queue("alone", Quota(8), ""), a_queue("nlp", Quota(4))], [], alone=3, nlp=4) == {
        "alone": (8, 3, 0, 0),
        "nlp": (4, 4, 0, 0),
    }


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=6))
def test_lent_equals_borrowed_and_used_quota_is_not_lent(teams: list[tuple[int, int, int | None]]) -> None:
    queues = [
        a_queue(f"t{n}", Quota(nominal, lend=None if lend is None else min(lend, nominal)))
        for n, (nominal, _, lend) in enumerate(teams)
    ]
    quota_table = team_table(queues, [], **{f"t{n}": used for n, (_, used, _) in enumerate(teams)})

    borrowed, lent = sum(line[2] for line in quota_table.values()), sum(line[3] for line in quota_table.values())
    let_go = 0
    for (nominal, used, lend), (_, _, _, gave) in zip(teams, quota_table.values(), strict=True):
        most = min(max(0, nominal - used), nominal if lend is None else min(lend, nominal))
        assert gave <= most
        let_go += most
    assert lent == min(borrowed, let_go)
