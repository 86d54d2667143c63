"""Dividing a window among devices. Needs no torch."""

from collections.abc import Sequence


def split(window: int, weights: Sequence[float]) -> list[int]:
    """Whole shares in proportion to the weights that sum to the window: the largest remainders are rounded up."""
    total = sum(weights)
    exact = [window * weight / total for weight in weights]
    shares = [int(each) for each in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: window - sum(shares)]:
        shares[i] += 1
    return shares
