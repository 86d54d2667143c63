"""A router behind the desk's door: nothing is added to it that anybody reaches unasked."""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from fastapi import APIRouter, Depends

from onyx.api.deps import BEARER
from onyx.api.desk import Opening


def guarded_router(
    opening: Opening, prefix: str, parts: Iterable[ModuleType], responses: Mapping[int | str, dict[str, Any]]
) -> APIRouter:
    """The routers of `parts` under a prefix, on this opening's desk. Anybody's FastAPI app can include it."""
    router = APIRouter(
        prefix=prefix,
        dependencies=[Depends(opening), Depends(BEARER)],
        lifespan=opening.lifespan,
        responses=dict(responses),
    )
    for part in parts:
        router.include_router(part.router)
    return router
