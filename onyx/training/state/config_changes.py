"""Changes of config while a job runs: control.json, which the runner replaces atomically."""

import logging
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from onyx.training.contract.spec import Count, Frozen

logger = logging.getLogger(__name__)


class ConfigChangeLine(Frozen):
    """What control.json says."""

    seq: Count
    """The change's number. Each change is applied once."""

    accumulation_steps: Count | None = None
    gradient_clipping: Annotated[float, Field(gt=0)] | None = None
    """An explicit null turns clipping off. Without the field, clipping stays as it is."""

    @property
    def sets_clipping(self) -> bool:
        return "gradient_clipping" in self.model_fields_set


class ConfigChanges:
    """Reads control.json on rank 0. Costs one `stat` a window."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._change: ConfigChangeLine | None = None

    def change(self, after: int) -> ConfigChangeLine | None:
        """The change in the file, if its number is above `after`."""
        try:
            status = self.path.stat()
            if (status.st_mtime_ns, status.st_ino) != self._seen:
                self._seen = (status.st_mtime_ns, status.st_ino)
                self._change = ConfigChangeLine.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            logger.warning("control.json is invalid and ignored: %s", error, extra={"action": "control"})
            self._change = None
        return self._change if self._change is not None and self._change.seq > after else None
