"""A fine-tune from upload to delete as a user of OpenAI's client writes it. It knows only the service's address.

It also runs as a script (`python openai_workflow.py URL`), with the version of the client that the interpreter has.
"""

import json
import sys
import time
from typing import Any

import openai
from openai import OpenAI

DONE = ("succeeded", "failed", "cancelled")
PATIENCE = 600.0


def lesson(samples: int = 24) -> bytes:
    """A training file: chats as JSONL."""
    chats = [
        [
            {"role": "system", "content": "You know squares."},
            {"role": "user", "content": f"What is {n} squared?"},
            {"role": "assistant", "content": f"It is {n * n}."},
        ]
        for n in range(samples)
    ]
    return "".join(json.dumps({"messages": chat}) + "\n" for chat in chats).encode()


def wait_for_job(client: OpenAI, job_id: str, *states: str) -> Any:
    """Wait until the job is in one of the states, or has ended, and return it."""
    deadline = time.monotonic() + PATIENCE
    while (job := client.fine_tuning.jobs.retrieve(job_id)).status not in (states or DONE):
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
    return job


def story(client: OpenAI) -> None:
    """Upload, fine-tune with "auto", read events and results, chat with the model, and delete everything."""
    uploaded = client.files.create(file=("squares.jsonl", lesson()), purpose="fine-tune")
    assert client.files.wait_for_processing(uploaded.id).status == "processed"
    assert client.files.content(uploaded.id).read() == lesson()
    assert uploaded.id in [file.id for file in client.files.list(purpose="fine-tune", limit=1)]
    job = client.fine_tuning.jobs.create(
        model="onyx/tiny",
        training_file=uploaded.id,
        validation_file=uploaded.id,
        suffix="squares",
        seed=7,
        metadata={"team": "maths"},
        method={
            "type": "supervised",
            "supervised": {
                "hyperparameters": {"n_epochs": "auto", "batch_size": "auto", "learning_rate_multiplier": 2.0}
            },
        },
        extra_body={"onyx": {"lora_r": 4}},
    )
    assert (job.status, job.seed, job.metadata) == ("validating_files", 7, {"team": "maths"})
    numbers = job.hyperparameters
    assert (numbers.n_epochs, numbers.batch_size, numbers.learning_rate_multiplier) == (5, 4, 2.0)
    done = wait_for_job(client, job.id)
    assert done.status == "succeeded", done.error
    look_at_events(client, job.id)
    look_at_results(client, done)
    assert ask(client, done.fine_tuned_model, "What is 3 squared?")
    delete_everything(client, done)


def ask(client: OpenAI, model: str, question: str) -> str:
    """The model's answer to the question."""
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    return answer.choices[0].message.content or ""


def look_at_events(client: OpenAI, job_id: str) -> None:
    events = list(client.fine_tuning.jobs.list_events(job_id, limit=5))  # several pages
    assert len({event.id for event in events}) == len(events) > 10
    assert events[0].message == "The job succeeded"
    assert events[-1].message == "The job was created"
    numbers: Any = next(event for event in events if event.type == "metrics").data
    assert numbers["step"] == 30
    assert numbers["train_loss"] > 0
    assert 0 <= numbers["train_mean_token_accuracy"] <= 1


def look_at_results(client: OpenAI, job: Any) -> None:
    assert job.fine_tuned_model.startswith("ft:onyx/tiny:")
    assert ":squares:" in job.fine_tuned_model
    assert job.trained_tokens > 0
    assert job.finished_at >= job.created_at
    table = client.files.content(job.result_files[0]).read().decode().splitlines()
    assert table[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"
    assert len(table) == 31
    assert all(table[-1].split(","))
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=2))
    assert [each.step_number for each in checkpoints] == [30, 24, 18]
    assert checkpoints[0].metrics.valid_loss is not None
    assert checkpoints[0].metrics.train_mean_token_accuracy is not None
    names = {model.id for model in client.models.list()}
    mine = {job.fine_tuned_model, *(each.fine_tuned_model_checkpoint for each in checkpoints)}
    assert mine | {"onyx/tiny"} <= names
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model
    assert client.fine_tuning.jobs.list(limit=1).data[0].object == "fine_tuning.job"
    assert job.id in [each.id for each in client.fine_tuning.jobs.list(extra_query={"metadata[team]": "maths"})]


def why_not(client: OpenAI, model: str) -> openai.NotFoundError:
    try:
        found = client.models.retrieve(model)
    except openai.NotFoundError as error:
        return error
    raise AssertionError(f"{found.id} is still there")


def delete_everything(client: OpenAI, job: Any) -> None:
    deleted = client.models.delete(job.fine_tuned_model)
    assert (deleted.deleted, deleted.id) == (True, job.fine_tuned_model)
    problem = why_not(client, job.fine_tuned_model)
    assert (problem.code, problem.param) == ("model_not_found", "model")
    assert client.files.delete(job.training_file).deleted
    assert client.fine_tuning.jobs.retrieve(job.id).status == "succeeded"


if __name__ == "__main__":
    story(OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", _strict_response_validation=True))
    sys.stdout.write(openai.__version__)
