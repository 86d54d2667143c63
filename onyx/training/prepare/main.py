"""Prepares a job in a helper process: finds the model, checks and tokenizes the data, plans. Uses no device."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from onyx import fs
from onyx.training.contract.attempt import Exit, Failure
from onyx.training.contract.child_process import watch_inherited_lifeline
from onyx.training.contract.errors import DataError, ModelError, UserError
from onyx.training.contract.prepared import HUB_TOKEN_VARIABLE, PreparedJob, PrepareRequest
from onyx.training.contract.spec import JobSpec
from onyx.training.data.dataset import prepare_data, refuse_too_many_rows
from onyx.training.data.token_store import Meta, PreparedSamples, open_data
from onyx.training.models.exactness import find_inexact, refuse_inexact
from onyx.training.models.load import build_empty, load_config
from onyx.training.models.resolve import allows_remote_code, resolve
from onyx.training.models.tokenizer import load_tokenizer

SILENCE_SECONDS = 30.0
"""The helper exits after this much silence on its lifeline."""


def main(request_path: str) -> int:
    """Read the request and write prepared.json or error.json into its `out`. The exit status is one of `Exit`."""
    request = PrepareRequest.model_validate_json(Path(request_path).read_bytes())
    _set_up_process(request)
    request.out.mkdir(parents=True, exist_ok=True)
    try:
        prepared = prepare(request, hub_token=os.environ.get(HUB_TOKEN_VARIABLE) or None)
    except UserError as error:
        write_failure(request.out / "error.json", error.failure())
        return Exit.USER_ERROR
    fs.write_text(request.out / "prepared.json", prepared.model_dump_json(indent=2) + "\n")
    return Exit.DONE


def prepare(request: PrepareRequest, *, hub_token: str | None = None) -> PreparedJob:
    """Everything that can be known of a job without a device. UserError says what the user must change."""
    spec, roots = request.spec, request.roots
    code = allows_remote_code(spec.model, roots)
    model_dir = resolve(spec.model, roots, hub_token=hub_token)
    config = load_config(model_dir, remote_code=code)
    model = build_empty(config, remote_code=code)
    inexact = refuse_inexact(find_inexact(model))
    _check_length(spec, config)
    tokenizer = load_tokenizer(model_dir, remote_code=code)
    data_dir = prepare_data(
        spec.data,
        tokenizer,
        roots.home / "data",
        objective=spec.training.objective,
        seed=spec.training.seed,
        roots=roots.data,
        hub_token=hub_token,
        most_rows=request.most_rows,
    )
    data = open_data(data_dir)
    meta = PreparedSamples.read_meta(data_dir)
    rows = meta.samples + meta.evaluation_samples + meta.bad_lines
    refuse_too_many_rows(rows, request.most_rows)  # the data may be from an earlier job with another limit
    _check_vocabulary(meta, config)
    planned = None
    if request.devices:
        from onyx.training.prepare.plan_job import plan_job

        held = data.evaluation
        lengths = np.concatenate([data.lengths, held.lengths]) if held else data.lengths
        planned = plan_job(spec, config, model, lengths // data.rows, len(data), request.devices)
    return PreparedJob(
        model_dir=model_dir,
        data_dir=data_dir,
        remote_code=code,
        inexact=inexact,
        planned=planned,
        **meta.model_dump(exclude={"format", "key", "highest_token", "rows"}),
    )


def write_failure(path: Path, failure: Failure) -> None:
    """Write error.json atomically."""
    fs.write_text(path, json.dumps(failure.model_dump(mode="json"), indent=2) + "\n")


def _check_length(spec: JobSpec, config: Any) -> None:
    from onyx.memory.footprint.model_builder import is_causal, positions
    from onyx.memory.recipe import Recipe

    if not is_causal(config, Recipe(model=config)):
        raise ModelError(
            "model_not_causal", "only causal language models can be trained: this one does not predict the next token"
        )
    limit = positions(config)
    if limit is not None and spec.data.max_length > limit:
        raise UserError(
            "max_length",
            f"max_length {spec.data.max_length} is more than the model's {limit} positions: give at most {limit}",
            param="data.max_length",
        )


def _check_vocabulary(meta: Meta, config: Any) -> None:
    size = config.get_text_config().vocab_size
    if meta.highest_token >= size:
        raise DataError(
            "tokenizer_mismatch",
            f"the tokenizer made token {meta.highest_token}, but the model's vocabulary has only {size} tokens",
            param="model",
        )


def _set_up_process(request: PrepareRequest) -> None:
    """One thread, no progress bars, the runner's home, and an exit when the runner is gone."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["ONYX_HOME"] = str(request.roots.home)
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    watch_inherited_lifeline(SILENCE_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
