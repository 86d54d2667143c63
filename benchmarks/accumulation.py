"""What an accumulator costs: each face against a hand-written loop, at N = 1, 4, 8.

Peer: a hand-written PyTorch loop (loss / N, backward, clip_grad_norm_, step, zero_grad). The functional face has a
hand-written functional loop as its peer (autograd.grad, an in-place sum per leaf, then the division), because passing
gradients around costs the same there. Own cost is the difference per micro-batch on a model so small that nothing
else counts, best of many turns: the noise of the machine, larger than 1 % here, is not in it, and a micro-batch of
10 ms takes 100 µs per per cent. Memory is the peak of live tensor bytes over a window, counted at every operation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.measure import interleave, ratio, table
from onyx.accumulation import engine, functional, system
from onyx.accumulation.ads import GradientAccumulationConfig, GradientAccumulator
from onyx.memory.footprint.live_bytes import Counter

WIDTH, BATCH, MICRO_BATCHES, TURNS = 768, 128, 8, 60
LENGTHS = (1, 4, 8)

Step = Callable[[Tensor, nn.Module], object]


class Case:
    """One contender: a model, its optimizer and a loop over the same batches."""

    def __init__(self, make_step: Callable[[nn.Module, AdamW], Step], width: int = WIDTH) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            *[layer for _ in range(3) for layer in (nn.Linear(width, width), nn.GELU())], nn.Linear(width, 16)
        )
        self.step = make_step(self.model, AdamW(self.model.parameters(), lr=1e-4, fused=True))
        self.batches = [torch.randn(BATCH if width == WIDTH else 1, width) for _ in range(MICRO_BATCHES)]

    def __call__(self) -> None:
        for batch in self.batches:
            self.step(self.model(batch).pow(2).mean(), self.model)


def by_hand(length: int) -> Callable[[nn.Module, AdamW], Step]:
    def make(model: nn.Module, optimizer: AdamW) -> Step:
        count = 0

        def step(loss: Tensor, model: nn.Module) -> None:
            nonlocal count
            (loss / length).backward()
            count += 1
            if count == length:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                count = 0

        return step

    return make


def functional_by_hand(length: int) -> Callable[[nn.Module, AdamW], Step]:
    def make(model: nn.Module, optimizer: AdamW) -> Step:
        sums: list[Tensor] = []
        count = 0

        def step(loss: Tensor, model: nn.Module) -> None:
            nonlocal sums, count
            grads = list(torch.autograd.grad(loss, list(model.parameters())))
            if sums:
                for total, grad in zip(sums, grads, strict=True):
                    total += grad
            else:
                sums = [grad.clone() for grad in grads]
            count += 1
            if count == length:
                _apply([total / length for total in sums], model, optimizer)
                sums, count = [], 0

        return step

    return make


def _apply(grads: list[Tensor], model: nn.Module, optimizer: AdamW) -> None:
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def with_functional(length: int) -> Callable[[nn.Module, AdamW], Step]:
    def make(model: nn.Module, optimizer: AdamW) -> Step:
        accumulator = functional.GradientAccumulator(functional.GradientAccumulatorConfig(accumulation_steps=length))
        step_number = 0

        def step(loss: Tensor, model: nn.Module) -> None:
            nonlocal step_number
            step_number += 1
            accumulator.accumulate(list(torch.autograd.grad(loss, list(model.parameters()))))
            if accumulator.should_update(step_number):
                _apply(accumulator.get_gradients(), model, optimizer)

        return step

    return make


def with_engine(length: int) -> Callable[[nn.Module, AdamW], Step]:
    return lambda model, optimizer: engine.GradientAccumulator(optimizer, length).accumulate


def with_ads(length: int) -> Callable[[nn.Module, AdamW], Step]:
    def make(model: nn.Module, optimizer: AdamW) -> Step:
        accumulator = GradientAccumulator(GradientAccumulationConfig(accumulation_steps=length))
        return lambda loss, model: accumulator.accumulate_gradients(loss, model, optimizer)

    return make


def with_system(length: int) -> Callable[[nn.Module, AdamW], Step]:
    def make(model: nn.Module, optimizer: AdamW) -> Step:
        accumulator = system.GradientAccumulator(
            system.GradientAccumulationConfig(accumulation_steps=length, clipping_norm=1.0)
        )
        accumulator.setup_training(model, optimizer, nn.MSELoss())
        return lambda loss, _: accumulator.accumulate_gradients(loss)

    return make


FACES: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "engine": (with_engine, by_hand),
    "ads": (with_ads, by_hand),
    "system": (with_system, by_hand),
    "functional": (with_functional, functional_by_hand),
}


def peak_bytes(make_step: Callable[[nn.Module, AdamW], Step]) -> int:
    case = Case(make_step)
    case()  # the optimizer's state is there from now on
    counter = Counter()
    with counter:
        counter.hold(case.model.parameters())
        case()
    return counter.peak


def own_cost(face: Callable[[nn.Module, AdamW], Step], peer: Callable[[nn.Module, AdamW], Step]) -> float:
    """Microseconds per micro-batch beyond the peer's, where the model itself costs next to nothing."""
    taken = interleave({"ours": Case(face, width=2), "hand": Case(peer, width=2)}, 200)
    return (min(taken["ours"].wall) - min(taken["hand"].wall)) / MICRO_BATCHES * 1e6


def main() -> str:
    """The table, as Markdown."""
    rows = []
    for length in LENGTHS:
        for name, (face, peer) in FACES.items():
            taken = interleave({"ours": Case(face(length)), "hand": Case(peer(length))}, TURNS)
            cpu = ratio(taken["ours"].cpu, taken["hand"].cpu)
            wall = ratio(taken["ours"].wall, taken["hand"].wall)
            own = own_cost(face(length), peer(length))
            memory = peak_bytes(face(length)) / peak_bytes(peer(length))
            rows.append([str(length), name, str(cpu), str(wall), f"{own:.0f} µs", f"{memory:.4f}"])
    header = ["N", "face", "CPU time, × the loop by hand", "wall time", "own cost per micro-batch", "peak live bytes"]
    return table(header, rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main())
