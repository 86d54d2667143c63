"""Operations per second of this machine in plain float32 products. `python -m benchmarks.speed.peak`"""

import time

EDGE, TRIES = 2048, 10


def main() -> float:
    """The best of some tries."""
    import torch

    matrix = torch.ones(EDGE, EDGE)
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2 * EDGE**3 / best


if __name__ == "__main__":
    print(main())
