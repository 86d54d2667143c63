"""Attention for samples joined in one row, each of which attends only to itself.

With padding, linear layers compute tokens that only fill a rectangle. Joined samples need no padding. Only attention
must know where they begin, so this module replaces it: adjacent samples of one length (a *run*) are one plain causal
attention over a view of the row.

The runs reach it as the attention mask: transformers passes a mask of four dimensions on unchanged.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "onyx_joined"
"""Its name in transformers."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_joined(model: Any) -> None:
    """Make the model accept joined samples, besides all that it accepted before."""
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
    """The interface of transformers. Without joined samples it is transformers' own attention."""
    if attention_mask is None or attention_mask.dtype != torch.int64:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return plain
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # In mixed precision rotated queries and keys are float32. torch's own attention casts them too.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out, _ = joined_attention(query, key, value, attention_mask, scale)
    return out, None


@torch.library.custom_op("onyx::joined_attention", mutates_args=())
def joined_attention(query: Tensor, key: Tensor, value: Tensor, runs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Takes (1, heads, tokens, width) of each, and (1, 1, 1, 2 × runs): number and length of the samples of each run.

    Returns (1, tokens, heads, width), and for backward the log-sum-exp of every token and head. The compiler sees one
    operation, so that one graph serves any number of runs.
    """
    pieces = [_forward(*each, 0.0, True, scale=scale) for each in _runs(runs, query, key, value)]
    out = torch.cat([each.transpose(1, 2).flatten(0, 1) for each, _ in pieces])
    logs = torch.cat([each.transpose(1, 2).flatten(0, 1) for _, each in pieces])
    return out[None], logs


@torch.library.custom_op("onyx::joined_attention_backward", mutates_args=())
def joined_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logs: Tensor, runs: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, in their layout."""
    of_runs = _runs(runs, grad.transpose(1, 2), query, key, value, out.transpose(1, 2), logs.t()[None, :, :, None])
    pieces = [_backward(*five, last.squeeze(-1), 0.0, True, scale=scale) for *five, last in of_runs]
    query_grad, key_grad, value_grad = (
        torch.cat([each.transpose(1, 2).flatten(0, 1) for each in parts])[None].transpose(1, 2)
        for parts in zip(*pieces, strict=True)
    )
    return query_grad, key_grad, value_grad


def _runs(runs: Tensor, *rows: Tensor) -> list[list[Tensor]]:
    """For each run a view (samples, heads, length, width) of every row (1, heads, tokens, width)."""
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
