"""The mode of one incident: the stack's mode, limited by the policy's rules and raised by an approval."""

from collections.abc import Iterable

from evenkeel.domain.policy_section import Mode, ModeRule

_MODE_ORDER = (Mode.OBSERVE, Mode.RECOMMEND, Mode.ACT)


def most_cautious_mode(stack_mode: Mode, rules: Iterable[ModeRule], fault_class: str, pool: str) -> Mode:
    """Return the most cautious of the stack's mode and the modes of all matching rules."""
    matching_modes = [rule.mode for rule in rules if rule.fault_class in ("", fault_class) and rule.pool in ("", pool)]
    return min((stack_mode, *matching_modes), key=_MODE_ORDER.index)


def current_mode(stack_mode: Mode, planned_mode: str, *, is_approved: bool) -> Mode:
    """Return the mode for a step of a planned recovery now.

    The stack's current mode counts, so a change to `observe` also stops recoveries under way. An approval raises
    `recommend` to `act` for the approved plan. Nothing raises `observe`.

    Args:
        stack_mode: The stack's mode now.
        planned_mode: The mode in which the plan was made; empty if there is no plan.
        is_approved: Whether a person approved the plan.
    """
    mode = min((stack_mode, Mode(planned_mode) if planned_mode else stack_mode), key=_MODE_ORDER.index)
    return Mode.ACT if mode is Mode.RECOMMEND and is_approved else mode
