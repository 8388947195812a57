"""The published runs that `outlay.explain` shows beside a price: what was measured, and what was predicted of it."""

import csv
import io
from pathlib import Path

from _published_fit import without_its_source

from outlay.analysis.cost import evidence

TABLE = Path(evidence.__file__).with_name("published_runs.csv")
SECONDS = ("published", "predicted", "low", "high", "left_out")


def evidence_text(results):
    """Return the table of runs with a published time, as text."""
    apart = {one.run.id: one.seconds for some in without_its_source(results).values() for one in some}
    lines = [_line(one, apart[one.run.id]) for one in sorted(results, key=lambda one: one.run.id)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write_evidence(results):
    """Write the table into the package; return the number of runs."""
    text = evidence_text(results)
    TABLE.write_text(text, encoding="utf-8")
    return text.count("\n") - 1


def _line(one, left_out):
    row = one.run.row
    num_devices, parameters = int(row["num_devices"]), float(row["params_b"])
    tokens = float(row["seq_len"]) * float(row["global_batch_seqs"])
    seconds = dict(zip(SECONDS, (one.run.seconds, one.seconds, one.low, one.high, left_out), strict=True))
    return {
        "model": row["model"],
        "target": one.run.target,
        "layout": one.run.layout.name,
        "precision": row["precision"],
        "devices": num_devices,
        # Forward and backward pass of matrix products, what a step computes at least (Kaplan et al., arXiv:2001.08361).
        "flops": f"{6e9 * parameters * tokens / num_devices:.4g}",
        **{name: f"{value:.4g}" for name, value in seconds.items()},
        "source": f"{row['source_repo']} {row['source_path']}",
        "date": row["source_date"],
    }
