"""The import path that the documentation promises. The code lives in `onyx.api`.

`app.include_router(router, prefix="/api/v1")` in anybody's app is all it takes.
"""

from typing import TYPE_CHECKING, Any

from onyx.api.router import make_router

if TYPE_CHECKING:
    from onyx.accumulation.ads import GradientAccumulationAPI

__all__ = ["GradientAccumulationAPI", "make_router", "router"]

router = make_router()


def __getattr__(name: str) -> Any:
    """Accumulators need torch, and a service must not load it: so they come when somebody asks for them."""
    if name == "GradientAccumulationAPI":
        from onyx.accumulation.ads import GradientAccumulationAPI

        return GradientAccumulationAPI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
