"""`onyx jobs submit`: ask for a fine-tune."""

import getpass
from pathlib import Path
from typing import Annotated, Any

import typer

from onyx.cli.client import Service
from onyx.cli.commands.watch import watch_to_the_end
from onyx.cli.output import DEFAULT_URL, USAGE, CommandFailure, Json, Key, Url, emit, say
from onyx.cli.samples import dataset_of


def submit(
    data: Annotated[Path | None, typer.Argument(help="Samples: a .jsonl, .txt or .csv file.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="A hub id, a job's id, a directory, or onyx/tiny.")] = "",
    data_path: Annotated[str | None, typer.Option(help="A file in the service's data root instead.")] = None,
    hub: Annotated[str | None, typer.Option(help="A data set of the hub instead, by its name.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The greatest learning rate.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Samples of one update: the effective batch.")] = 32,
    accumulation_steps: Annotated[int | None, typer.Option(help="N, where the planner shall not choose.")] = None,
    max_length: Annotated[int, typer.Option(help="Tokens of a sample; more are cut off.")] = 512,
    lora: Annotated[bool, typer.Option("--lora", help="Train adapters instead of all weights.")] = False,
    lora_r: Annotated[int | None, typer.Option(help="The adapters' rank.")] = None,
    lora_alpha: Annotated[float | None, typer.Option(help="The adapters' scale.")] = None,
    lora_dropout: Annotated[float | None, typer.Option(help="The adapters' dropout.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32, bf16 or fp16.")] = None,
    gradient_checkpointing: Annotated[bool, typer.Option(help="Compute activations again to save memory.")] = False,
    evaluation: Annotated[float, typer.Option(help="Share of the samples to hold out and evaluate on.")] = 0.0,
    devices: Annotated[int, typer.Option(min=1, help="On how many devices to train.")] = 1,
    large_batch: Annotated[
        bool,
        typer.Option("--large-batch", help="Ask for it under its other name: nothing else differs."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Of the order and of all random numbers.")] = None,
    user: Annotated[str | None, typer.Option(help="A label; without it, your name here.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it until it is over.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Ask for a fine-tune."""
    if not model:
        raise CommandFailure("say which model to train with --model, such as --model onyx/tiny", USAGE)
    service = Service(url, key)
    training: dict[str, Any] = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "method": "lora" if lora else None,
        "lora_r": lora_r,
        "lora_alpha": lora_alpha,
        "lora_dropout": lora_dropout,
        "precision": precision,
        "gradient_checkpointing": gradient_checkpointing or None,
        "seed": seed,
    }
    source = _source(data, data_path, hub, service)
    body = {
        "model_name": model,
        "dataset_config": source | {"max_length": max_length, "evaluation_fraction": evaluation},
        "training_config": _given(training),
        "user_id": user or getpass.getuser(),
        "target_effective_batch_size": window,
        "accumulation_steps": accumulation_steps,
        "distributed": devices > 1,
        "world_size": devices,
    }
    kind = "large-batch" if large_batch else "with-accumulation"
    _tell(service, service.post(f"/training/{kind}", _given(body)), watch, as_json)


def _tell(service: Service, job: dict[str, Any], watch: bool, as_json: bool) -> None:
    job_id = job["training_id"]
    if watch:
        if not as_json:
            say(job_id)
        watch_to_the_end(service, job_id, as_json)
    elif as_json:
        emit(job)
    else:
        say(job_id)


def _source(data: Path | None, data_path: str | None, hub: str | None, service: Service) -> dict[str, Any]:
    if sum(each is not None for each in (data, data_path, hub)) != 1:
        raise CommandFailure("say what to train on with one of: a file, --data-path, --hub", USAGE)
    if data is not None:
        return dataset_of(data, service)
    return {"path": data_path} if data_path is not None else {"hub": hub}


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
