"""Onyx inside of your own FastAPI app. Including the router is all it takes; settings come from ONYX_….

uvicorn --app-dir examples embedded_app:app
curl http://127.0.0.1:8000/tuning/gradient-accumulation/health
"""

from fastapi import FastAPI

from onyx.server.features.ads.gradient_accumulation_api import router

app = FastAPI(title="An app of your own")
app.include_router(router, prefix="/tuning")


@app.get("/hello")
def hello() -> dict[str, str]:
    """Nothing of the app changes by what it includes."""
    return {"hello": "world"}
