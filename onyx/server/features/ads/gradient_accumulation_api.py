"""The documented import path of the API's router; the code is in `onyx.api`.

An app embeds the service with `app.include_router(router, prefix="/api/v1")`.
"""

from typing import TYPE_CHECKING, Any

from onyx.api.router import make_router

if TYPE_CHECKING:
    from onyx.accumulation.ads import GradientAccumulationAPI

__all__ = ["GradientAccumulationAPI", "make_router", "router"]

router = make_router()


def __getattr__(name: str) -> Any:
    """Import the accumulators only when they are used: they need torch, which the service must not load."""
    if name == "GradientAccumulationAPI":
        from onyx.accumulation.ads import GradientAccumulationAPI

        return GradientAccumulationAPI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
