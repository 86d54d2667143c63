"""The import path that the documentation promises. The code lives in `onyx.jobs.service`."""

from onyx.jobs.service import OptimizedFineTuningService

__all__ = ["OptimizedFineTuningService"]
