"""The documented import path of the library's job service; the code is in `onyx.jobs.service`."""

from onyx.jobs.service import OptimizedFineTuningService

__all__ = ["OptimizedFineTuningService"]
