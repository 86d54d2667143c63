"""OpenAI's own client against Onyx: only the address differs.

onyx serve &
pip install openai && python examples/openai_client.py [http://127.0.0.1:8000]
"""

import json
import os
import sys
import time

from openai import OpenAI

CHATS = [
    [{"role": "user", "content": f"What is {n} squared?"}, {"role": "assistant", "content": f"It is {n * n}."}]
    for n in range(24)
]
POLL_SECONDS = 0.5


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ONYX_API_KEY", "none"))
    lines = "".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS)
    file = client.files.create(file=("squares.jsonl", lines.encode()), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="onyx/tiny", training_file=file.id, suffix="squares")
    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(POLL_SECONDS)
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.fine_tuned_model is not None, job.error
    for event in client.fine_tuning.jobs.list_events(job.id, limit=5):
        print(event.message)
    answer = client.chat.completions.create(
        model=job.fine_tuned_model, messages=[{"role": "user", "content": "What is 3 squared?"}], max_tokens=16
    )
    print(job.fine_tuned_model, "says:", answer.choices[0].message.content)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["http://127.0.0.1:8000"]))
