"""Metrics for Prometheus, in a registry of Onyx's own: an app that embeds Onyx keeps its default registry."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onyx.api.app_context import AppContext
from onyx.jobs.disk_quota import free_bytes
from onyx.jobs.runner import bulletin
from onyx.jobs.runner.bulletin import Bulletin
from onyx.jobs.store.inventory import Counts
from onyx.memory.devices.device import Device

REGISTRY = CollectorRegistry()

_REQUESTS = Counter(
    "onyx_http_requests", "Requests by route template and status", ("method", "route", "status"), registry=REGISTRY
)
_SECONDS = Histogram(
    "onyx_http_request_seconds", "Seconds until an answer began", ("method", "route"), registry=REGISTRY
)


def count(method: str, route: str, status: int, seconds: float) -> None:
    """Count an answered request. `route` is the template and not the path: each id would make a new series."""
    _REQUESTS.labels(method, route, str(status)).inc()
    _SECONDS.labels(method, route).observe(seconds)


_GPU_LABELS = ("host", "gpu", "uuid")


@dataclass(frozen=True, eq=False)
class HomeMetrics(Collector):
    """One scrape: jobs, runners, GPUs and disk as metrics."""

    counts: Counts
    bulletins: Sequence[Bulletin]
    free_disk: int
    hot_celsius: float

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("onyx_jobs", "Jobs by status", labels=("status",))
        for status, count in self.counts.jobs.items():
            jobs.add_metric((status,), count)
        yield jobs
        yield GaugeMetricFamily("onyx_queue_seconds", "Age of the oldest queued job", self.counts.waiting_seconds)
        yield GaugeMetricFamily("onyx_runners", "Runners within their lease", self.counts.runners)
        yield GaugeMetricFamily("onyx_devices_lent", "Devices that jobs run on", self.counts.devices_lent)
        yield GaugeMetricFamily("onyx_free_disk_bytes", "Free bytes on the disk of ONYX_HOME", self.free_disk)
        yield self._total("events", "Events that jobs reported", lambda each: each.events)
        yield self._total("trained_tokens", "Label tokens that jobs trained on", lambda each: each.trained_tokens)
        yield from self._gpu_metrics()

    def _total(self, name: str, description: str, count: Callable[[Bulletin], int]) -> Metric:
        """A counter over the runners of each host. It starts at 0 with the runner, as Prometheus expects."""
        family = CounterMetricFamily(f"onyx_{name}", description, labels=("host",))
        for host in sorted({each.host for each in self.bulletins}):
            family.add_metric((host,), sum(count(each) for each in self.bulletins if each.host == host))
        return family

    def _gpu_metrics(self) -> Iterator[Metric]:
        limit = self.hot_celsius
        yield self._gpu("temperature_celsius", "Temperature", lambda gpu: gpu.temperature)
        yield self._gpu("hot", f"1 above {limit:g} °C", lambda gpu: _above(gpu.temperature, limit))
        yield self._gpu("utilization_ratio", "How busy, 0 to 1", lambda gpu: _ratio(gpu.utilization))
        yield self._gpu("power_watts", "Power drawn", lambda gpu: gpu.power_draw)
        yield self._gpu("memory_used_bytes", "Memory in use, by any process", lambda gpu: gpu.memory_used)
        yield self._gpu("memory_total_bytes", "Memory", lambda gpu: gpu.memory_total)

    def _gpu(self, name: str, description: str, reading: Callable[[Device], float | None]) -> Metric:
        """A gauge with the reading of every GPU. A GPU without this reading is left out."""
        family = GaugeMetricFamily(f"onyx_gpu_{name}", f"{description} of a GPU", labels=_GPU_LABELS)
        # A key for each GPU, because several runners on a host report the same ones.
        gpus = {(each.host, gpu.label, gpu.uuid or ""): gpu for each in self.bulletins for gpu in each.gpus}
        for labels, gpu in gpus.items():
            if (value := reading(gpu)) is not None:
                family.add_metric(labels, value)
        return family


async def expose(context: AppContext) -> bytes:
    """The state of this ONYX_HOME in Prometheus's text format."""
    settings = context.settings
    metrics = HomeMetrics(
        counts=await context.store.inventory.counts(),
        bulletins=await asyncio.to_thread(bulletin.read_all, settings.run_dir),
        free_disk=await asyncio.to_thread(free_bytes, settings.home),
        hot_celsius=settings.hot_celsius,
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return generate_latest(registry)


def _above(degrees: float | None, limit: float) -> float | None:
    return None if degrees is None else float(degrees > limit)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
