"""The router in another app and under another prefix: errors keep their shape."""

import subprocess
import sys
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from onyx.api.openai.router import make_openai_router
from onyx.api.router import make_router
from onyx.settings import Settings
from tests.api.openai.helpers import refused


def test_the_router_works_in_another_app_under_a_prefix(home: Path) -> None:
    settings = Settings(home=home, embedded_runner=False)
    app = FastAPI()
    app.include_router(make_openai_router(settings), prefix="/inner/ai")
    app.include_router(make_router(settings), prefix="/inner")

    @app.get("/own")
    def own() -> str:
        return "untouched"

    with TestClient(app) as client:
        assert client.get("/inner/ai/v1/models").json()["data"][0]["id"] == "onyx/tiny"
        assert refused(client.get("/inner/ai/v1/files/file-x"), 404) == ("file_id", "not_found")
        assert refused(client.post("/inner/ai/v1/fine_tuning/jobs", json={}))[0] == "model"
        assert refused(client.post("/inner/ai/v1/chat/nothing"), 404) == ("path", "unknown_url")
        assert refused(client.put("/inner/ai/v1/files"), 404)[1] == "unknown_url"
        assert client.get("/inner/gradient-accumulation/training/x").json().keys() == {"detail"}
        assert client.get("/own").json() == "untouched"
        assert client.get("/nowhere").json() == {"detail": "Not Found"}
        assert "/inner/ai/v1/fine_tuning/jobs" in client.get("/openapi.json").json()["paths"]


def test_importing_the_router_imports_neither_torch_nor_openai() -> None:
    code = "import sys, onyx.api.openai.router; print([name for name in ('torch', 'openai') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
