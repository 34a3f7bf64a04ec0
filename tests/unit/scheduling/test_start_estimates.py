from evenkeel.domain.capacity.start_estimates import estimate_start


def test_fitting_job_starts_at_once() -> None:
    start_estimate = estimate_start(8, [], [], 8, [100.0, 200.0, 300.0])

    assert (
        start_estimate.earliest_seconds,
        start_estimate.seconds,
        start_estimate.latest_seconds,
        start_estimate.samples,
    ) == (0.0, 0.0, 0.0, 3)


def test_start_estimate_ranges_from_short_to_long_past_runs() -> None:
    runs = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0]

    start_estimate = estimate_start(0, [(8, 50.0)], [], 8, runs)

    assert (start_estimate.earliest_seconds, start_estimate.seconds, start_estimate.latest_seconds) == (
        150.0,
        550.0,
        950.0,
    )


def test_jobs_ahead_run_first() -> None:
    assert estimate_start(0, [(8, 0.0)], [8], 8, [100.0]).seconds == 200.0


def test_no_start_is_foreseen_for_too_large_jobs() -> None:
    start_estimate = estimate_start(4, [], [], 8, [100.0])

    assert (start_estimate.seconds, start_estimate.earliest_seconds, start_estimate.latest_seconds) == (
        None,
        None,
        None,
    )
