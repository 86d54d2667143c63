import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from onyx import logs
from onyx.logs import configure, hide_secrets, log_ids
from onyx.settings import Settings

log = logging.getLogger("onyx.somewhere")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Log lines go here, and afterwards where they went before."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail_with(error: str, message: str) -> None:
    log.error(message, exc_info=RuntimeError(error))


def test_a_json_line_has_the_ids_of_its_task_and_its_own(stream: io.StringIO) -> None:
    configure(Settings(log_format="json"), stream)

    async def work(job_id: str) -> None:
        with log_ids(job_id=job_id, attempt=2):
            await asyncio.sleep(0)
            log.info("hello %s", "you", extra={"action": "greeted"})

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    log.debug("too quiet")
    first, second = lines(stream)
    assert first.pop("time")
    assert first == {
        "level": "info",
        "logger": "onyx.somewhere",
        "message": "hello you",
        "job_id": "a",
        "attempt": 2,
        "action": "greeted",
    }
    assert second["job_id"] == "b"


def test_a_traceback_is_part_of_its_line(stream: io.StringIO) -> None:
    configure(Settings(log_format="json"), stream)
    fail_with("broken", "it broke")
    (line,) = lines(stream)
    assert "RuntimeError: broken" in str(line["traceback"])


def test_lines_for_people(stream: io.StringIO) -> None:
    configure(Settings(log_format="text", log_level="warning"), stream)
    log.info("unheard")
    log.warning("one\nERROR forged", extra={"action": "warned"})
    first, second = stream.getvalue().splitlines()
    assert first.endswith("WARNING onyx.somewhere: one")
    assert second == "    ERROR forged  action=warned"


def test_auto_is_json_where_there_is_no_terminal(stream: io.StringIO) -> None:
    configure(Settings(), stream)
    log.info("hello")
    assert lines(stream)[0]["message"] == "hello"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_ever_reaches_a_line(form: str, stream: io.StringIO) -> None:
    settings = Settings.model_validate(
        {
            "log_format": form,
            "hub_token": SecretStr("my-very-own-token"),
            "database_url": "postgresql://onyx:pass-word@db/onyx",
        }
    )
    configure(settings, stream)
    key = "onyx_" + "k" * 43
    log.info("got %s", {"Authorization": f"Bearer {key}"})
    log.info("key %s", key, extra={"given": f"bearer {key}", "hub": "hf_" + "a" * 34})
    log.error("cannot connect to %s", settings.store_url)
    fail_with(f"token my-very-own-token and {key}", "failed with my-very-own-token")
    text = stream.getvalue()
    for secret in (key, "my-very-own-token", "pass-word", "a" * 34):
        assert secret not in text
    assert text.count(logs.HIDDEN) >= 6
    if form == "json":
        assert len(lines(stream)) == 4  # hiding leaves them whole


def test_what_is_no_secret_stays() -> None:
    text = "accumulation_1763420000_0123456789 at http://localhost:8000/healthz by onyx_runner"
    assert hide_secrets(text) == text


def test_importing_changes_no_logging() -> None:
    code = (
        "import logging; before = (logging.root.level, logging.root.handlers[:])\n"
        "import onyx.logs, onyx.api.app, onyx.jobs.runner.main\n"
        "assert before == (logging.root.level, logging.root.handlers[:])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
