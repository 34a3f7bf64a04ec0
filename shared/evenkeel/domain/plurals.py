"""Numbers in sentences."""


def count_of(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, and with the verb if the forms have one: `1 node is`, `2 nodes are`.

    Args:
        number: The count.
        singular: The words behind 1.
        plural: The words behind any other number; by default `singular` with an s.
    """
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
