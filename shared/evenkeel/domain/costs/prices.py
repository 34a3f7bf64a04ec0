"""The price of each attempt and node at its admission, with its origin. An unknown price is never zero."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from evenkeel.domain.capacity.list_prices import shipped_prices
from evenkeel.domain.costs.receipt import GpuPrice
from evenkeel.domain.economics import money
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.plurals import count_of
from evenkeel.domain.renting.rental import Rental


def prices_of(
    attempts: Iterable[Attempt], rentals: Iterable[Rental], economy: EconomyPolicy
) -> dict[int, GpuPrice | None]:
    """Return the price of each attempt of a job: its rent, the price that it kept, or the policy's price of that day.

    Args:
        attempts: Attempts of one job.
        rentals: All rentals of the job.
        economy: Prices.
    """
    all_rentals = tuple(rentals)
    return {attempt.attempt: _attempt_price(attempt, all_rentals, economy) for attempt in attempts}


def part_prices_of(
    attempts: Iterable[Attempt], rentals: Iterable[Rental], economy: EconomyPolicy
) -> dict[int, tuple[GpuPrice | None, GpuPrice | None]]:
    """Return the prices of the committed and of the rented nodes of each attempt of a job.

    Args:
        attempts: Attempts of one job.
        rentals: All rentals of the job.
        economy: Prices.
    """
    newest_first = tuple(rentals)[::-1]
    prices: dict[int, tuple[GpuPrice | None, GpuPrice | None]] = {}
    for attempt in attempts:
        rental = next((rental for rental in newest_first if rental.hosts(attempt)), None)
        committed_price = None if attempt.is_rented else _base_price(attempt, economy)
        prices[attempt.attempt] = (committed_price, _rent_price(rental) if rental else None)
    return prices


def _attempt_price(attempt: Attempt, rentals: tuple[Rental, ...], economy: EconomyPolicy) -> GpuPrice | None:
    if attempt.is_rented:
        rental = next((rental for rental in reversed(rentals) if rental.hosts(attempt)), None)
        return None if rental is None else _rent_price(rental)
    base_price = _base_price(attempt, economy)
    if attempt.rented_part is None:
        return base_price
    rental = next((rental for rental in reversed(rentals) if rental.hosts(attempt)), None)
    return None if rental is None or base_price is None else _mixed_price(attempt, base_price, _rent_price(rental))


def _mixed_price(attempt: Attempt, base: GpuPrice, rented_price: GpuPrice) -> GpuPrice:
    """Return the mean price of a GPU-hour over both parts of a mixed attempt."""
    gpus, base_gpus = attempt.accelerators, attempt.priced_accelerators
    micros = base_gpus * base.usd_micros_per_gpu_hour + (gpus - base_gpus) * rented_price.usd_micros_per_gpu_hour
    base_text, rented_text = count_of(base_gpus, "GPU"), count_of(gpus - base_gpus, "GPU")
    origin = f"{base_text}: {base.origin}; {rented_text}: {rented_price.origin}"
    return GpuPrice(usd_micros_per_gpu_hour=round(micros / max(1, gpus)), origin=origin)


def _base_price(attempt: Attempt, economy: EconomyPolicy) -> GpuPrice | None:
    """Return the price of the committed nodes of an attempt."""
    gpu_price = price_at(attempt.instance_type, attempt.admitted_at, attempt.pool, economy)
    if attempt.usd_per_accelerator_hour is None:
        return gpu_price
    micros = _to_micros(attempt.usd_per_accelerator_hour)
    if gpu_price is not None and gpu_price.usd_micros_per_gpu_hour == micros:
        return gpu_price
    return GpuPrice(usd_micros_per_gpu_hour=micros, origin=f"price at the admission on {attempt.admitted_at:%Y-%m-%d}")


def _rent_price(rental: Rental) -> GpuPrice:
    offer = rental.offer
    gpus = max(1, offer.accelerators_per_node)
    origin = f"rent of {offer.pool} ({offer.market}) from {offer.opened_at:%Y-%m-%d}"
    return GpuPrice(usd_micros_per_gpu_hour=round(offer.micros_per_node_hour / gpus), origin=origin)


def base_price_of(attempt: Attempt, economy: EconomyPolicy) -> GpuPrice | None:
    """Return the price of the committed GPUs of an attempt, without a rented part; None if it has none.

    The cost of rented nodes is the bill of their rental.
    """
    return None if attempt.is_rented else _base_price(attempt, economy)


def node_price(incident: Incident, economy: EconomyPolicy) -> GpuPrice | None:
    """Return the policy's price of a GPU-hour of an incident's node; None if there is none."""
    return price_at(incident.instance_type, incident.opened_at, incident.pool, economy)


def price_at(instance_type: str, at: datetime, pool: str, economy: EconomyPolicy) -> GpuPrice | None:
    """Return the policy's price of a GPU-hour on a day; None if there is none."""
    accelerator_price = economy.price_of(instance_type, at, pool)
    return (
        None
        if accelerator_price is None
        else GpuPrice(usd_micros_per_gpu_hour=_to_micros(accelerator_price.usd), origin=accelerator_price.origin)
    )


def price_changes(economy: EconomyPolicy, start: datetime, end: datetime) -> tuple[datetime, ...]:
    """Return the times within a span at which a price may change: the first day of each, and the day after its last."""
    days = {price.starts_on for price in economy.prices}
    days |= {price.ends_on + timedelta(days=1) for price in economy.prices if price.ends_on}
    days |= shipped_prices().days
    midnights = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days)
    return tuple(sorted(midnight for midnight in midnights if start < midnight < end))


def _to_micros(usd: float) -> int:
    return round(usd * money.MICROS_PER_USD)
