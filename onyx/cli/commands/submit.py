"""`onyx jobs submit`: create a fine-tuning job."""

import getpass
from pathlib import Path
from typing import Annotated, Any

import typer

from onyx.cli.client import ServiceClient
from onyx.cli.commands.watch import watch_until_done
from onyx.cli.output import DEFAULT_URL, USAGE, CommandError, Json, Key, Url, print_json, print_line
from onyx.cli.samples import dataset_config


def submit(
    data: Annotated[Path | None, typer.Argument(help="Samples: a .jsonl, .txt or .csv file.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="A hub id, a job's id, a directory, or onyx/tiny.")] = "",
    data_path: Annotated[str | None, typer.Option(help="Instead: a file in the service's data root.")] = None,
    hub: Annotated[str | None, typer.Option(help="Instead: a data set of the hub, by its name.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Samples of one update: the effective batch.")] = 32,
    accumulation_steps: Annotated[int | None, typer.Option(help="N; default: the planner chooses it.")] = None,
    max_length: Annotated[int, typer.Option(help="Tokens of a sample; longer ones are truncated.")] = 512,
    lora: Annotated[bool, typer.Option("--lora", help="Train adapters instead of all weights.")] = False,
    lora_r: Annotated[int | None, typer.Option(help="Rank of the adapters.")] = None,
    lora_alpha: Annotated[float | None, typer.Option(help="Scale of the adapters.")] = None,
    lora_dropout: Annotated[float | None, typer.Option(help="Dropout of the adapters.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32, bf16 or fp16.")] = None,
    gradient_checkpointing: Annotated[bool, typer.Option(help="Recompute activations to save memory.")] = False,
    evaluation: Annotated[float, typer.Option(help="Fraction of the samples to hold out for evaluation.")] = 0.0,
    devices: Annotated[int, typer.Option(min=1, help="How many devices to train on.")] = 1,
    large_batch: Annotated[
        bool,
        typer.Option("--large-batch", help="Use the large-batch endpoint: only the job's id differs."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the data order and all random numbers.")] = None,
    user: Annotated[str | None, typer.Option(help="A label; default: your user name.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job until it has ended.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Create a fine-tuning job and print its id."""
    if not model:
        raise CommandError("name the model to train with --model, such as --model onyx/tiny", USAGE)
    service = ServiceClient(url, key)
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
    _print_result(service, service.post(f"/training/{kind}", _given(body)), watch, as_json)


def _print_result(service: ServiceClient, job: dict[str, Any], watch: bool, as_json: bool) -> None:
    job_id = job["training_id"]
    if watch:
        if not as_json:
            print_line(job_id)
        watch_until_done(service, job_id, as_json)
    elif as_json:
        print_json(job)
    else:
        print_line(job_id)


def _source(data: Path | None, data_path: str | None, hub: str | None, service: ServiceClient) -> dict[str, Any]:
    if sum(each is not None for each in (data, data_path, hub)) != 1:
        raise CommandError("name the training data with exactly one of: a file, --data-path, --hub", USAGE)
    if data is not None:
        return dataset_config(data, service)
    return {"path": data_path} if data_path is not None else {"hub": hub}


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
