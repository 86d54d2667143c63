"""Attention for samples that stand one after another in one row, where each looks at itself only.

Padding is work for nothing: linear layers do it for every token that is there only to fill a rectangle. Joined samples
need none. The one place where a model must know where they begin is attention, so they bring an attention of their own:
samples of one length that stand side by side (a *run*) are one plain causal attention over a view of the row.

Where the runs are travels to it as the mask: transformers hands a mask of four dimensions through as it is.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "onyx_joined"
"""What transformers calls it."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_joined(model: Any) -> None:
    """From here on the model takes joined samples, and what it took before."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it; whatever is not joined goes the way it always went."""
    if attention_mask is None or attention_mask.dtype != torch.int64:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return plain
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # In mixed precision rotated queries and keys are float32, and torch's own attention would cast them as well.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out, _ = joined_attention(query, key, value, attention_mask, scale)
    return out, None


@torch.library.custom_op("onyx::joined_attention", mutates_args=())
def joined_attention(query: Tensor, key: Tensor, value: Tensor, runs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(1, heads, tokens, width) of each, and (1, 1, 1, 2 × runs) numbers and lengths of samples.

    Gives (1, tokens, heads, width), and of every token and head the logarithm that backward needs. One operation to
    the compiler, so that no number of runs needs a graph of its own.
    """
    pieces = [_forward(*each, 0.0, True, scale=scale) for each in _runs(runs, query, key, value)]
    out = torch.cat([each.transpose(1, 2).flatten(0, 1) for each, _ in pieces])
    logs = torch.cat([each.transpose(1, 2).flatten(0, 1) for _, each in pieces])
    return out[None], logs


@torch.library.custom_op("onyx::joined_attention_backward", mutates_args=())
def joined_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logs: Tensor, runs: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, as they lie."""
    of_runs = _runs(runs, grad.transpose(1, 2), query, key, value, out.transpose(1, 2), logs.t()[None, :, :, None])
    pieces = [_backward(*five, last.squeeze(-1), 0.0, True, scale=scale) for *five, last in of_runs]
    query_grad, key_grad, value_grad = (
        torch.cat([each.transpose(1, 2).flatten(0, 1) for each in parts])[None].transpose(1, 2)
        for parts in zip(*pieces, strict=True)
    )
    return query_grad, key_grad, value_grad


def _runs(runs: Tensor, *rows: Tensor) -> list[list[Tensor]]:
    """Of each run a view (samples, heads, length, width) of every row (1, heads, tokens, width)."""
    views, start = [], 0
    for samples, length in runs.view(-1, 2).tolist():
        end = start + samples * length
        views.append([row[0, :, start:end].unflatten(1, (samples, length)).transpose(0, 1) for row in rows])
        start = end
    return views


@joined_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, runs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    _, heads, tokens, width = query.shape
    return query.new_empty(1, tokens, heads, width), query.new_empty(tokens, heads, dtype=torch.float32)


@joined_attention_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logs: Tensor, runs: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    def like(row: Tensor) -> Tensor:
        _, heads, tokens, width = row.shape
        return row.new_empty(1, tokens, heads, width).transpose(1, 2)

    return like(query), like(key), like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, runs, scale = inputs
    ctx.save_for_backward(query, key, value, *output, runs)
    ctx.scale = scale


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    *tensors, runs = ctx.saved_tensors
    return (*joined_attention_backward(grad, *tensors, runs, ctx.scale), None, None)


joined_attention.register_autograd(_differentiate, setup_context=_keep)
