"""`make demo`: one model trained in big batches, another in ragged micro-batches. They end in the same place."""

import copy

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from onyx.accumulation.boundary import close
from onyx.accumulation.window import Window

UPDATES = 200
WINDOW = 48
"""Samples of one update."""


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def spirals(count: int) -> tuple[Tensor, Tensor]:
    """Points on two spirals, and which of the two each is on."""
    turn = torch.rand(count).sqrt() * 9
    label = torch.randint(0, 2, (count,))
    angle = turn + label * torch.pi
    return torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 9 + 0.02 * torch.randn(count, 2), label


def cut(total: int) -> list[int]:
    """A window's samples in micro-batches of random sizes."""
    sizes = []
    while total:
        sizes.append(min(total, int(torch.randint(1, 17, ()))))
        total -= sizes[-1]
    return sizes


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, sizes: list[int]) -> float:
    """One update on a window that is cut into `sizes`."""
    window = Window(length=len(sizes), weight=len(x))
    for inputs, labels in zip(x.split(sizes), y.split(sizes), strict=True):
        loss = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
        window.take(loss, reduction="sum").backward()
    close(window, optimizer, max_norm=1.0)
    return float(window.losses) / len(x)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def main() -> None:
    """Train both, side by side, and compare."""
    console = Console()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    big = make_model()
    small = copy.deepcopy(big)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3) for model in (big, small)]
    test = spirals(2000)
    console.print(f"before: {accuracy(small, *test):.1%} of 2000 points on the right spiral")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    micro_batches = 0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=UPDATES * 5)
        for _ in range(UPDATES * 5):
            x, y = spirals(WINDOW)
            sizes = cut(WINDOW)
            micro_batches += len(sizes)
            train(big, optimizers[0], x, y, [WINDOW])
            loss = train(small, optimizers[1], x, y, sizes)
            progress.update(task, advance=1, description=f"training, loss {loss:.3f}")
    ours, theirs = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (small, big))
    difference = float((ours - theirs).norm() / theirs.norm())
    console.print(
        f"after:  {accuracy(small, *test):.1%} in {micro_batches} ragged micro-batches, "
        f"{accuracy(big, *test):.1%} in {UPDATES * 5} big batches of {WINDOW}"
    )
    console.print(f"weights differ by {difference:.1e} of their norm: rounding, and nothing else")


if __name__ == "__main__":
    main()
