"""Parts of models that keep an update from being a sum over samples."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from onyx.recipe.model import drop_balance_loss
from onyx.training.contract.errors import ModelError
from onyx.training.models.exactness import find_inexact, refuse_inexact


def mixtral(**options: object) -> MixtralConfig:
    return MixtralConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        num_local_experts=2, vocab_size=32, **options,  # type: ignore[arg-type]
    )  # fmt: skip


def built(config: object) -> nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call, no-any-return]


def test_a_plain_model_is_exact() -> None:
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    assert find_inexact(built(config)) == []


def test_batch_norm_is_refused() -> None:
    found = find_inexact(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert [each.code for each in found] == ["batch_norm"]
    with pytest.raises(ModelError, match="BatchNorm"):
        refuse_inexact(found)


def test_the_routers_balance_loss_is_left_out_with_a_warning() -> None:
    config = mixtral(output_router_logits=True)
    found = find_inexact(built(config))
    assert [(each.code, each.refused) for each in found] == [("router_balance", False)]
    assert refuse_inexact(found) == [found[0].message]
    drop_balance_loss(config)
    assert not config.output_router_logits


def test_jitter_and_capacity() -> None:
    assert "router_jitter" in {each.code for each in find_inexact(built(mixtral(router_jitter_noise=0.1)))}
    config = mixtral()
    model = built(config)
    model.config.expert_capacity = 8  # type: ignore[union-attr]
    assert any(each.refused for each in find_inexact(model))
