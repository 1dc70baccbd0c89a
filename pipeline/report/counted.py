"""A number with its noun."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return "1 message is" or "1,204 messages are"; `many` is `one` with an s if it is empty."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
