"""The load of other programs excludes the time of this process and its children."""

from bench.cpu_usage import Usage


def test_load_of_other_processes_excludes_this_process() -> None:
    before = Usage(all_ticks=1000, busy_ticks=400, own_ticks=100)
    after = Usage(all_ticks=1200, busy_ticks=500, own_ticks=160)

    assert after.others_since(before) == 0.2


def test_ended_process_never_makes_other_load_negative() -> None:
    before = Usage(all_ticks=1000, busy_ticks=400, own_ticks=100)
    after = Usage(all_ticks=1200, busy_ticks=450, own_ticks=190)

    assert after.others_since(before) == 0.0


def test_work_of_this_process_is_not_load_of_others() -> None:
    before = Usage.now()
    while Usage.now().own_ticks < before.own_ticks + 5:
        sum(range(10_000))
    after = Usage.now()

    assert after.busy_ticks >= before.busy_ticks
    assert after.own_ticks >= before.own_ticks + 5
