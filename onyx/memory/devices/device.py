"""A device: one GPU, or one slice of the CPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Kind = Literal["cuda", "cpu"]

# A card sold as "40 GB" reports 40960 MiB, so the gigabytes people write for a card are binary.
GB = 2**30

MOST_GB = 1_000_000  # a petabyte: what claims more is a typing error
ABSOLUTE_ZERO = -273.15  # °C
LARGEST = 1e9  # no reading is larger; so infinity is refused too, which JSON cannot carry

_IMAGINED_FIELDS = ("name", "memory_gb", "speed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What is known of one device at one moment. A reading that could not be taken is None, never 0."""

    kind: Kind
    """Where tensors live: a GPU ("cuda") or a slice of the CPU ("cpu")."""

    index: int
    """The id in every answer: for a GPU what torch calls it, counted within CUDA_VISIBLE_DEVICES."""

    name: str
    """The maker's name for the model, for people."""

    uuid: str | None = None
    """What names the card whatever the order ("GPU-…"). None for CPU slices and imagined cards."""

    memory_total: int
    """Bytes: the card's memory, or the CPU slice's budget."""

    memory_free: int
    """Bytes not in use, at most memory_total."""

    cores: int | None = None
    """CPU cores of a slice. None for a GPU."""

    utilization: float | None = None
    """How busy the device is: 0–100."""

    temperature: float | None = None
    """Degrees Celsius."""

    power_draw: float | None = None
    """Watts."""

    speed: float | None = None
    """Relative speed when known: a device of speed 2 does twice the work of one of speed 1."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, not {self.kind!r}")
        _whole("index", self.index, least=0)
        _text("name", self.name)
        if self.uuid is not None:
            _text("uuid", self.uuid)
        self._check_memory()
        self._check_readings()

    def _check_memory(self) -> None:
        _whole("memory_total", self.memory_total, least=1)
        _whole("memory_free", self.memory_free, least=0)
        if self.memory_free > self.memory_total:
            raise ValueError(f"memory_free {self.memory_free} is more than memory_total {self.memory_total}")

    def _check_readings(self) -> None:
        if self.cores is not None:
            _whole("cores", self.cores, least=1)
        if self.utilization is not None:
            _number("utilization", self.utilization, least=0, most=100)
        if self.temperature is not None:
            _number("temperature", self.temperature, least=ABSOLUTE_ZERO)
        if self.power_draw is not None:
            _number("power_draw", self.power_draw, least=0)
        if self.speed is not None and _number("speed", self.speed, least=0) == 0:
            raise ValueError("speed must be above 0")

    @property
    def memory_used(self) -> int:
        """Bytes in use, by any process."""
        return self.memory_total - self.memory_free

    @property
    def label(self) -> str:
        """The device's name in plans and log lines, which is also torch's for a GPU: "cuda:0", "cpu:0"."""
        return f"{self.kind}:{self.index}"

    @classmethod
    def imagined(cls, card: Mapping[str, Any], index: int) -> Self:
        """A card that is not here, all of it free: `{"name": "A100", "memory_gb": 40}`, and perhaps its speed."""
        if not isinstance(card, Mapping):
            # A wrong type in a request is a wrong value like any other: one error type for all of them.
            raise ValueError(f'a card is like {{"name": "A100", "memory_gb": 40}}, not {card!r}')  # noqa: TRY004
        unknown = sorted(str(key) for key in card if key not in _IMAGINED_FIELDS)
        if unknown:
            raise ValueError(f"a card has the fields {', '.join(_IMAGINED_FIELDS)}, not {', '.join(unknown)}")
        missing = [key for key in ("name", "memory_gb") if key not in card]
        if missing:
            raise ValueError(f"a card needs {' and '.join(missing)}")
        memory = int(_number("memory_gb", card["memory_gb"], least=0.001, most=MOST_GB) * GB)
        return cls(
            kind="cuda",
            index=index,
            name=card["name"],
            memory_total=memory,
            memory_free=memory,
            speed=card.get("speed"),
        )


def _text(field: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text that is not empty, not {value!r}")


def _whole(field: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{field} must be a whole number of at least {least}, not {value!r}")


def _number(field: str, value: Any, *, least: float, most: float = LARGEST) -> float:
    """The number, if it is one within the bounds. NaN is within none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise ValueError(f"{field} must be a number from {least:g} to {most:g}, not {value!r}")
    return float(value)
