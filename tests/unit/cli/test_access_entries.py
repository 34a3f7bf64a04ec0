"""The changes of access entries for any state of a cluster."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel_cli.access_entries import EntryAction, EntryChange, PresentEntry, WantedEntry, plan_entries

STACK = "evenkeel-dev"
groups = st.frozensets(st.sampled_from(["evenkeel:readers", "evenkeel:cordoners", "team:admins"]), max_size=3)
entries = st.builds(PresentEntry, groups, st.sampled_from([STACK, "evenkeel-prod", ""]), st.just("STANDARD"))
present = st.dictionaries(st.sampled_from(["arn:a", "arn:b", "arn:c", "arn:d"]), entries)
WANTED = (
    WantedEntry("plan_recovery", "arn:a", frozenset({"evenkeel:readers"})),
    WantedEntry("cordon_node", "arn:b", frozenset({"evenkeel:cordoners"})),
)


def entries_after(before: dict[str, PresentEntry], changes: list[EntryChange]) -> dict[str, PresentEntry]:
    after = dict(before)
    for change in changes:
        if change.action is EntryAction.REMOVE:
            del after[change.role]
        elif change.action is EntryAction.CREATE:
            after[change.role] = PresentEntry(change.groups, STACK)
        else:
            after[change.role] = before[change.role]._replace(groups=change.groups)
    return after


@given(present)
def test_repeated_setup_of_access_entries_changes_nothing(before: dict[str, PresentEntry]) -> None:
    after = entries_after(before, list(plan_entries(WANTED, before, STACK)))

    assert {plan_entry.action for plan_entry in plan_entries(WANTED, after, STACK)} == {EntryAction.KEEP}
    assert all(wanted_entry.groups <= after[wanted_entry.role].groups for wanted_entry in WANTED)


@given(present)
def test_access_entries_of_other_owners_keep_their_groups(before: dict[str, PresentEntry]) -> None:
    after = entries_after(before, list(plan_entries(WANTED, before, STACK)))

    for role, entry in before.items():
        if entry.stack != STACK:
            assert entry.groups <= after[role].groups


def test_access_entry_is_removed_only_if_this_stack_created_it() -> None:
    before = {
        "arn:c": PresentEntry(frozenset({"evenkeel:readers"}), STACK),
        "arn:d": PresentEntry(frozenset({"evenkeel:readers"}), "evenkeel-prod"),
    }

    changes = list(plan_entries((), before, STACK))

    assert [(change.role, change.action) for change in changes] == [("arn:c", EntryAction.REMOVE)]


def test_access_entry_for_nodes_is_reported_and_not_changed() -> None:
    before = {"arn:a": PresentEntry(frozenset(), "", "EC2_LINUX")}

    (change,) = plan_entries(WANTED[:1], before, STACK)

    assert (change.action, "EC2_LINUX" in change.problem) == (EntryAction.KEEP, True)
