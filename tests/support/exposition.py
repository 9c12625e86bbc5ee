"""A page of metrics as Prometheus parses it, compared with the registry of names."""

from collections.abc import Collection, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from towpath.schemas.telemetry import Metric, published

# For each counter and histogram, the client adds a gauge with its creation time.
_CREATED: Final = "_created"


def mistakes(page: str, prefixes: tuple[str, ...], absent: Collection[str] = ()):
    """
    List the differences between a page and the registry, in both directions.

    Args:
        page: The page's text.
        prefixes: The beginnings of the names that the page should show.
        absent: Metrics that it may lack, because nothing was recorded for them.
    """
    wanted = {name: name for name in published() if name.startswith(prefixes)}
    shown: dict[str, Family] = {}
    for family in text_string_to_metric_families(page):
        if family.name.startswith("towpath_") and not family.name.endswith(_CREATED):
            shown[_published_name(family)] = family
    found = [f"{name}: not in the registry" for name in shown if name not in wanted]
    found += [
        f"{name}: not on the page"
        for name in wanted
        if name not in shown and name not in absent
    ]
    for name in sorted(shown.keys() & wanted.keys()):
        found += _differences(shown[name], wanted[name])
    return found


def _published_name(family: Family) -> str:
    # The parser cuts off the suffix of counters.
    return f"{family.name}_total" if family.type == "counter" else family.name


def _differences(family: Family, metric: Metric) -> Iterator[str]:
    # The text format turns an info metric into a gauge.
    kind = "gauge" if metric.kind == "info" else metric.kind
    if family.type != kind:
        yield f"{metric}: is a {family.type}, the registry says {kind}"
    if family.documentation != metric.help:
        yield f"{metric}: has the description: {family.documentation}"
    for labels in {tuple(sorted({*s.labels} - {"le"})) for s in family.samples}:
        if labels != tuple(sorted(metric.labels)):
            yield f"{metric}: has the labels {labels}"
