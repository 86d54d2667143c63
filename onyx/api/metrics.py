"""Numbers for Prometheus, in a registry of Onyx's own: an app that embeds Onyx keeps its default one to itself."""

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()

_REQUESTS = Counter(
    "onyx_http_requests", "Requests by route template and status", ("method", "route", "status"), registry=REGISTRY
)
_SECONDS = Histogram(
    "onyx_http_request_seconds", "Seconds until an answer began", ("method", "route"), registry=REGISTRY
)


def count(method: str, route: str, status: int, seconds: float) -> None:
    """A request was answered. `route` is the template, never the path: ids would make a series each."""
    _REQUESTS.labels(method, route, str(status)).inc()
    _SECONDS.labels(method, route).observe(seconds)
