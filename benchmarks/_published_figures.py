"""How well predictions agree with what was published: figures, tables and the plot."""

import itertools
import math
import statistics
from collections import Counter, defaultdict

import numpy as np

BARS = {"median": 0.12, "near": 0.90, "inside": 0.80, "spearman": 0.90, "width": 1.6}
NEAR, MEMORY_NEAR, APART = 1.35, 1.15, 1.02


def figures(results):
    """Return the figures of some rows by name."""
    logs = [abs(math.log(one.ratio)) for one in results]
    return {
        "rows": len(results),
        "median": statistics.median(logs),
        "near": sum(log <= math.log(NEAR) for log in logs) / len(results),
        "inside": sum(one.is_inside for one in results) / len(results),
        "width": max(one.high / one.low for one in results),
    }


def spearman_in_groups(results):
    """Return Spearman's rank correlation of seconds per step in each group of three runs or more, and the mean."""
    groups = defaultdict(list)
    for one in results:
        groups[one.run.row["group"]].append(one)
    each = {}
    for name, members in groups.items():
        published = [one.run.seconds for one in members]
        if len(set(published)) >= 3:
            each[name] = _spearman(published, [one.seconds for one in members])
    return each, (statistics.mean(each.values()) if each else math.nan)


def pairs_in_order(results):
    """Return how many pairs in a group are predicted in the published order, and how many are well apart."""
    groups = defaultdict(list)
    for one in results:
        groups[one.run.row["group"]].append(one)
    apart = [
        sorted(pair, key=lambda one: one.run.seconds)
        for members in groups.values()
        for pair in itertools.combinations(members, 2)
        if abs(math.log(pair[0].run.seconds / pair[1].run.seconds)) > math.log(APART)
    ]
    return sum(first.seconds < second.seconds for first, second in apart), len(apart)


def _spearman(first, second):
    a, b = (_ranks(values) for values in (first, second))
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values):
    """Return ranks from 0; equal values share their mean rank."""
    values = np.asarray(values, float)
    return np.array([(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values])


def memory_figures(results):
    """Return the rows with a published peak, those within 15 % of it, and all runs that are said not to fit."""
    known = [one for one in results if one.run.memory]
    near = [one for one in known if 1 / MEMORY_NEAR <= one.peak / one.run.memory <= MEMORY_NEAR]
    return len(known), len(near), [one for one in results if not one.fits]


def option(run, name):
    """Return the value that a run has for an option of `lm`."""
    return run.words[run.words.index(name) + 1]


def plot(results, path):
    """Plot published against predicted times, every row a dot, coloured by source."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 6.2))
    ends = [min(one.run.seconds for one in results) / 1.5, max(one.run.seconds for one in results) * 1.5]
    axes.plot(ends, ends, color="0.3", linewidth=1)
    axes.fill_between(ends, [e / NEAR for e in ends], [e * NEAR for e in ends], color="0.9", label=f"within {NEAR}")
    sources = Counter(one.run.source for one in results)
    for number, (source, count) in enumerate(sources.most_common()):
        some = [one for one in results if one.run.source == source]
        axes.plot(
            [one.run.seconds for one in some],
            [one.seconds for one in some],
            "osD^vP*X"[number % 8],
            color=f"C{number}",
            markersize=5,
            alpha=0.75,
            markeredgewidth=0,
            label=f"{source} ({count})",
        )
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="published, s a step", ylabel="predicted, s a step"
    )
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))  # beside all runs, wherever they are
    axes.set_aspect("equal")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if str(path).endswith("svg") else None)
    pyplot.close(figure)
