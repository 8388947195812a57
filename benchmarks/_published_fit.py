"""The constants that published runs are fitted by, and how well runs are predicted that had no part in the fit.

One share of the peak for each family of hardware, that of large products inside a step, is fitted to the runs on it:
at that one, as many of them are predicted too slow as too fast. And one number for all GPUs says how much longer a step
takes for each doubling of the hosts. All other constants have sources of their own.
"""

import math
import statistics
from collections import defaultdict

import numpy as np
from _published_figures import figures, option
from _published_price import repriced

from outlay.devices.target import Target

# What products alone reach of the peak, best shape of a sweep (benchmarks/data/published_links.csv).
ALONE = {"a100": 0.87, "h100": 0.80, "b200": 0.78, "mi300x": 0.61, "tpu": 0.90, "v5p": 0.90, "v6e": 0.90}
# Inside a step they reach this much of what they reach alone, where no run says better.
INSIDE = 0.82
_ROUNDS = 8


def family_of(run):
    """Return the family whose share a run is priced with."""
    hardware = Target.parse(run.target).hardware
    return hardware.family or hardware.kind


def fit(results):
    """Return the constants that fit some runs, by kind of hardware: those of the families that have runs."""
    by_family = defaultdict(list)
    for one in _whole(results):
        by_family[family_of(one.run)].append(one)
    fitted = {name: {"products": _share(name, some)} for name, some in by_family.items()}
    waiting = waiting_share(results)
    return fitted if waiting is None else {**fitted, "gpu": {**fitted.get("gpu", {}), "slowest": waiting}}


def _whole(results):
    """Return the runs of one program: a pipeline, priced by arithmetic on two, is no source of constants."""
    return [one for one in results if one.run.layout.stages == 1]


def _share(name, some):
    """Find the share at which the median ratio is 1, by halving: more of the peak is faster."""
    low, high = 0.4, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        ratios = [_ratio(one, name, middle) for one in some]
        low, high = (middle, high) if statistics.median(ratios) > 1 else (low, middle)
    return round((low + high) / 2, 3)


_ratios = {}
"""By run, family and share: the fit without one source begins with the same halves as the fit without another."""


def _ratio(one, name, share):
    key = one.run.id, name, share
    if key not in _ratios:
        _ratios[key] = repriced(one, {name: {"products": share}}).ratio
    return _ratios[key]


def waiting_share(results):
    """Return how much longer a step takes for each doubling of its hosts, beyond what is predicted without it.

    Of each series of runs that differ in the number of hosts only the slope is taken, and of these the median.
    """
    series = defaultdict(list)
    for one in _whole(results):
        run = one.run
        hosts = Target.parse(run.target).num_hosts
        if hosts > 1 and not run.target.startswith("tpu"):
            each = int(option(run, "--batch")) / int(run.row["num_devices"])
            series[run.row["group"], option(run, "--accumulate"), each].append((hosts, one))
    slopes = []
    for members in series.values():
        if len({hosts for hosts, _ in members}) > 1:
            ratios = [repriced(one, {"gpu": {"slowest": 0.0}}).ratio for _, one in members]
            slopes.append(-np.polyfit([math.log2(hosts) for hosts, _ in members], np.log(ratios), 1)[0])
    return round(float(statistics.median(slopes)), 4) if slopes else None


def without_its_source(results):
    """Return the runs of each source, priced with constants that were fitted to the other sources."""
    every = {}
    for source in dict.fromkeys(one.run.source for one in results):
        own, others = ([one for one in results if (one.run.source == source) == is_own] for is_own in (True, False))
        usual = {name: {"products": INSIDE * alone} for name, alone in ALONE.items()}
        every[source] = [repriced(one, {**usual, **fit(others)}) for one in own]
    return every


def left_out(results):
    """Return the figures of each source, priced with constants that were fitted to the other sources."""
    every = without_its_source(results)
    together = [one for some in every.values() for one in some]
    return {**{source: figures(some) for source, some in every.items()}, "all": figures(together)}


def inside_share(results):
    """Return the share of their speed alone that products reach inside a step, by the fit: the source of `INSIDE`."""
    fitted = fit(results)
    shares = {name: values["products"] for name, values in fitted.items() if name in ALONE}
    return math.exp(statistics.mean(math.log(share / ALONE[name]) for name, share in shares.items()))
