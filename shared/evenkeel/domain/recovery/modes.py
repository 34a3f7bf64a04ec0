"""How far automation may go about one incident: by the stack, by the policy, and by an approval."""

from collections.abc import Iterable

from evenkeel.domain.policy_base import Mode, ModeRule

_MODE_ORDER = (Mode.OBSERVE, Mode.RECOMMEND, Mode.ACT)


def mode_for(stack_mode: Mode, rules: Iterable[ModeRule], fault_class: str, pool: str) -> Mode:
    """Return the least daring of the stack's mode and of every rule that fits."""
    fitting = [rule.mode for rule in rules if rule.fault_class in ("", fault_class) and rule.pool in ("", pool)]
    return min((stack_mode, *fitting), key=_MODE_ORDER.index)


def launch_mode(stack_mode: Mode, *, is_planned: bool) -> Mode:
    """Return how far the launch of an attempt may go.

    In `recommend` only a recovery that a person approved has a plan: it brings back what it stopped, or it would have
    done nothing but harm.
    """
    return Mode.ACT if stack_mode is Mode.RECOMMEND and is_planned else stack_mode


def mode_now(stack_mode: Mode, planned: str, *, is_approved: bool) -> Mode:
    """Return how far a step of a planned recovery may go now.

    The stack's mode is looked at anew, so that a stack set back to `observe` stops what is under way. An approval lifts
    `recommend` to `act`, for the plan that it names; nothing lifts `observe`.

    Args:
        stack_mode: The stack's mode now.
        planned: The mode that the plan was made in; empty where there is none.
        is_approved: Whether a person approved the plan.
    """
    mode = min((stack_mode, Mode(planned) if planned else stack_mode), key=_MODE_ORDER.index)
    return Mode.ACT if mode is Mode.RECOMMEND and is_approved else mode
