"""Window and boundary alone: samples of unequal length, cut in three ways, give one and the same update."""

import torch
from torch import Tensor, nn

from onyx.accumulation.boundary import close
from onyx.accumulation.window import Window

torch.manual_seed(0)
VOCABULARY = 50
SAMPLES = [torch.randint(1, VOCABULARY, (length,)) for length in (3, 17, 5, 9, 4, 12)]


class Model(nn.Module):
    """Predicts the next token from the current one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens))
        return logits


def loss_sum(model: Model, samples: list[Tensor]) -> Tensor:
    """Sum of the losses of all label tokens. Padding is ignored."""
    tokens = nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=0)
    labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    return nn.functional.cross_entropy(
        model(tokens[:, :-1]).transpose(1, 2), labels, ignore_index=-100, reduction="sum"
    )


def update(cut: list[list[Tensor]]) -> Model:
    """One update of the six samples, cut into the given micro-batches."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weight = sum(len(sample) - 1 for part in cut for sample in part)  # label tokens: known before the first forward
    window = Window(length=len(cut), weight=weight)
    for part in cut:
        window.take(loss_sum(model, part), reduction="sum").backward()
    assert close(window, optimizer, max_norm=1.0).stepped
    return model


if __name__ == "__main__":
    at_once = update([SAMPLES])
    by_length = sorted(SAMPLES, key=len)
    one_by_one = update([[sample] for sample in by_length])
    in_two = update([by_length[:5], by_length[5:]])
    for other in (one_by_one, in_two):
        for mine, theirs in zip(at_once.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    print("three cuts of one window: the same update")
