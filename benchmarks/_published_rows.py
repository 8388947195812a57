"""Published runs in words that Outlay understands: the options of `lm`, the layout, the mesh and the target.

What cannot be expressed is named with its reason, never left out silently. What a source does not print is filled in by
one rule for all rows, and `assumed` says so.
"""

import csv
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from _published_run import Layout, Run, config_of, experts_of, num_layers, number, printed_layers

from outlay.core.error_types import OutlayError
from outlay.devices.target import Target
from outlay.models.transformer.config import remat_problems
from outlay.models.transformer.published import MODELS

RUNS = Path(__file__).parent / "data" / "published_runs.csv"

# What is taken where a source does not say it, in this order, until a device holds it: of the batch in pieces at most
# so many sequences a device at a time (in a pipeline one, as its bubble asks for), and what is computed again.
MICROBATCHES, STAGED_MICROBATCHES = (4, 3, 2, 1), (1,)
REMATS = ("none", "products", "full")
REMAT = {
    "full": "full",
    "none": "none",
    "attention only (selective)": "attention",
    "minimal_flash": "products",
}


NARROW = ("FP8", "FP4", "FLOAT8", "FLOAT4", "F8", "E4M3", "E5M2", "INT8")
"""Of a precision whose products take narrower numbers than 16 bits, by any of their names."""
CAPACITY = re.compile(r"capacity factor (\d[\d.]*)")
"""How notes say how many places an expert has for each of its tokens."""
FP8_BY_TENSOR, OTHER_SCALES = ("FP8", "FLOAT8"), ("MX", "ROW", "BLOCK")
"""How precisions of 8 bits with a scale for each tensor begin, and what their names have with other scales."""


@dataclass(frozen=True)
class Obstacle:
    """What stands in the way of a row.

    Attributes:
        kind: what it has in common with those of other rows.
        text: what it is here.
    """

    kind: str
    text: str


class CannotExpressError(Exception):
    """A row that `lm` and the layouts have no words for; the message says all that stands in the way."""

    def __init__(self, *obstacles: Obstacle) -> None:
        super().__init__("; ".join(one.text for one in obstacles))
        self.obstacles = obstacles


def obstacles(refused):
    """Return each kind of obstacle with the rows that have it, and those that have no other, the most such first.

    Args:
        refused: why rows cannot be expressed, by name.
    """
    kinds = {one.kind for error in refused.values() for one in error.obstacles}
    every = {kind: [name for name, error in refused.items() if kind in _kinds(error)] for kind in kinds}
    alone = {kind: [name for name in names if len(_kinds(refused[name])) == 1] for kind, names in every.items()}
    return sorted(((kind, every[kind], alone[kind]) for kind in kinds), key=lambda one: (-len(one[2]), -len(one[1])))


def _kinds(error):
    return {one.kind for one in error.obstacles}


def read_rows(path):
    """Read the rows of a file of runs.

    Raises:
        SystemExit: it is no such file; the message lists the columns that it lacks.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with open(RUNS, newline="", encoding="utf-8") as file:
        columns = next(csv.reader(file))
    lacking = [name for name in columns if not rows or name not in rows[0]]
    if lacking:
        raise SystemExit(f"{path} is not a file of runs: it lacks the columns {', '.join(lacking)}")
    return rows


def run_of(row) -> Run:
    """Express a row in Outlay's words, with what is assumed first where its source does not say it.

    Raises:
        CannotExpressError: there are none for it.
    """
    return runs_of(row)[0]


def runs_of(row) -> list[Run]:
    """Express a row in Outlay's words in each way that its source leaves open, in the order in which they are tried.

    Raises:
        CannotExpressError: there are none for it.
    """
    in_the_way, assumed = [*_not_expressed(row)], []
    if not any(one.kind == NOT_PRINTED for one in in_the_way):
        layout = _or_obstacles(_layout, in_the_way, row)
        ways = layout and _or_obstacles(_ways, in_the_way, row, layout, assumed)
        target = _or_obstacles(target_of, in_the_way, row, assumed)
    if in_the_way:
        raise CannotExpressError(*dict.fromkeys(in_the_way))
    return [Run(row, words, layout, target, (*assumed, *taken)) for layout, words, taken in ways]


def _or_obstacles(make, in_the_way, *args):
    """Return what a function makes of a row; or None, with what stands in its way."""
    try:
        return make(*args)
    except CannotExpressError as error:
        in_the_way += error.obstacles
        return None


NOT_PRINTED = "not printed"


def _not_expressed(row):
    if any(narrow in row["precision"].upper() for narrow in NARROW) and not _is_fp8(row):
        yield Obstacle("products of 8 bits with scales of blocks, or of fewer", f"{row['precision']} products")
    if experts_of(row):
        return
    if number(row, "ep", 1) > 1:
        yield Obstacle("a model with experts that has no name here", f"the experts of {row['model']}")
    lacking = [name for name in ("layers", "width", "heads", "ffn_hidden", "seq_len", "num_devices") if not row[name]]
    lacking += [] if row["global_batch_seqs"] or row["microbatch_seqs"] else ["global_batch_seqs"]
    if lacking:
        yield Obstacle(NOT_PRINTED, f"not printed: {', '.join(lacking)}")
    elif row["params_b"] and float(row["params_b"]) > 1.5 * config_of(row).num_params / 1e9:
        yield Obstacle("experts", "experts")


def _is_fp8(row):
    name = row["precision"].upper().partition("(")[0]
    return name.startswith(FP8_BY_TENSOR) and not any(other in name for other in OTHER_SCALES)


def _layout(row) -> Layout:
    stages, context, model, experts = (number(row, name, 1) for name in ("pp", "cp", "tp", "ep"))
    devices, stage = number(row, "num_devices", 1) // stages // context, row["zero_stage"]
    data = devices // model
    inside = number(row, "fsdp", data if stage == "3" else 1)
    if inside * model > devices or devices % (inside * model):
        raise _does_not_divide(f"{devices} devices are not {inside} x {model} or a multiple of it")
    hybrid = 1 < inside < data
    replicas = {"data": data // inside, "fsdp": inside} if hybrid else {"data": data}
    if data % experts:
        raise _does_not_divide(f"experts over {experts} devices, of which {data} share no samples")
    if experts > 1:
        replicas = {"data": data // experts, "expert": experts}
    # Neighbours share what communicates most.
    mesh = {"stage": stages, **replicas, "context": context, "model": model}
    # MaxText splits the features of the residual stream, where sequence parallelism splits its places: as many bytes.
    sequence = model > 1 and (row["sp"] == "1" or "MaxText" in row["framework"])
    split = "fsdp" if hybrid else "data"
    repeats = number(row, "vp", 1) if stages > 1 else 1
    return Layout(
        mesh={axis: size for axis, size in mesh.items() if size > 1 or axis in replicas},
        repeats=repeats,
        params=split if inside > 1 and stage != "2" else "",
        optimizer="data" if stage in ("1", "2") and data > 1 else "",
        gradients=stage == "2",
        sequence=sequence,
    )


def _does_not_divide(text):
    return CannotExpressError(Obstacle("sizes that do not divide", text))


def _ways(row, layout, assumed):
    """Return layouts with the options of `lm`, in each way that a row leaves open, each with what it assumes."""
    config = config_of(row)
    batch, pieces = _pieces(row, layout)
    remats = REMATS if _leaves_remat_open(row) else (REMAT.get(row["remat"], row["remat"]),)
    if problems := remat_problems(remats[0], config.num_layers):
        raise CannotExpressError(*(Obstacle("remat by a name that is unknown", problem) for problem in problems))
    experts = experts_of(row)
    assumed += ["as many tokens for each expert", "experts as in its paper"] if experts else []
    assumed += [] if row["vocab"] or experts else ["vocabulary of 51200"]
    shorter = config.num_layers > printed_layers(row)
    assumed += ["embedding and head where stages have a layer less"] if shorter else []
    numbers = _numbers(row, assumed)
    # Smaller microbatches first: they hold less, and compute nothing again.
    tried = [*((num, remats[0]) for num in pieces), *((pieces[-1], remat) for remat in remats[1:])]
    ways = []
    for num, remat in tried:
        of, staged = _expert_words(row) if experts else _model_words(config), num if layout.stages > 1 else 1
        options = {"sequence": row["seq_len"], "batch": batch, "accumulate": num // staged, "remat": remat}
        of += _flags({**options, **numbers})
        taken = [] if _says_pieces(row) else [f"microbatch of {batch // layout.replicas // num}"]
        taken += [f"remat {remat}" if remat != "none" else "no remat"] if len(remats) > 1 else []
        ways.append((dataclasses.replace(layout, microbatches=staged), tuple(of), taken))
    return ways


def same_in_all_layouts(row):
    """Return the options that a row has however it is laid out: the model, the batch and the numbers of its step."""
    options = {"sequence": row["seq_len"], "batch": row["global_batch_seqs"], **_numbers(row, [])}
    return (*(_expert_words(row) if experts_of(row) else _model_words(config_of(row))), *_flags(options))


def _numbers(row, assumed):
    """Return in what numbers a row computes and keeps its state."""
    numbers = {"dtype": "bfloat16", **_dtypes(row, assumed)}
    if _is_fp8(row):
        numbers["precision"] = "fp8"
        assumed.append("FP8 of all kernels of layers, scaled by their largest entries now")
    return numbers


def _flags(options):
    return [word for name, value in options.items() for word in (_flag(name), str(value))]


def _leaves_remat_open(row):
    return row["remat"] in ("", "not stated")


def _says_pieces(row):
    return bool(row["microbatch_seqs"] or row["grad_accum"])


def _pieces(row, layout):
    """Return the batch, and the numbers of microbatches of a replica that are tried."""
    batch, micro, num = (number(row, name, 0) for name in ("global_batch_seqs", "microbatch_seqs", "grad_accum"))
    if not batch:
        batch = micro * layout.replicas * max(num, 1)
    if batch % layout.replicas:
        raise _does_not_divide(f"a batch of {batch} does not divide over {layout.replicas} replicas")
    each = batch // layout.replicas
    sizes = STAGED_MICROBATCHES if layout.stages > 1 else MICROBATCHES
    if _says_pieces(row):
        pieces = [num or max(1, each // micro)]
    else:
        pieces = [each // size for size in sizes if each % size == 0]
    if each % pieces[0]:
        raise _does_not_divide(f"{each} sequences of a replica are not {pieces[0]} microbatches")
    if layout.stages > pieces[0]:
        raise _does_not_divide(f"{pieces[0]} microbatches are fewer than {layout.stages} stages")
    return batch, pieces


def _dtypes(row, assumed):
    state = row["state_dtype"]
    if state.startswith("bfloat16 all"):
        return {"param-dtype": "bfloat16", "optimizer-dtype": "bfloat16"}
    is_mixed = row["precision"] in ("fp16", "BF16") or any(name in row["framework"] for name in ("Megatron", "NeMo"))
    if state.startswith("bf16 params") or (not state and is_mixed):
        if not state:
            assumed.append("16-bit parameters with float32 masters")
        return {"param-dtype": "bfloat16", "optimizer-dtype": "float32"}
    return {"param-dtype": "float32"}


def _expert_words(row):
    """Return the model with experts, each of which takes as many tokens as the others: sources measure so.

    Where a source says how much room for more each has, that is computed too, as empty places are.
    """
    room = CAPACITY.search(row["notes"])
    layers = ["--layers", str(num_layers(row))] if num_layers(row) != printed_layers(row) else []
    return ["--model", experts_of(row), "--capacity-factor", room[1] if room else "1", *layers]


def _model_words(config):
    """Return the nearest published model, and the options that make the rest of the difference."""
    how = {"dtype": config.dtype, "param_dtype": config.param_dtype, "num_positions": config.num_positions}

    def differences(name):
        other = dataclasses.replace(MODELS[name].config, **how)
        return {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if getattr(config, field.name) != getattr(other, field.name) and field.name != "rotary_base"
        }

    name = min(MODELS, key=lambda name: len(differences(name)))
    flags = {"num_layers": "layers", "num_heads": "heads", "num_kv_heads": "kv_heads"}
    words = ["--model", name]
    for field, value in differences(name).items():
        words.append(_flag(flags.get(field, field)))
        words.append(str(value).lower() if isinstance(value, bool) else str(value))
    return words


def _flag(name):
    return f"--{name.replace('_', '-')}"


def target_of(row, assumed=None):
    """Return the target of a row; A3 hosts have a network of their own, and a domain of GB200 and GB300 has 72 GPUs."""
    text, devices = row["outlay_target"].strip(" *"), number(row, "num_devices", 1)
    if text.startswith("missing: "):
        key = text.removeprefix("missing: ")
        each = next(size for size in (72, 64, 36, 32, 16, 8, 4, 2, 1) if devices % size == 0 and _holds(key, size))
        text = f"{key}:{devices // each}x{each}"
        if assumed is not None:
            assumed.append(f"hosts of {each}")
    if "A3" in row["hardware"] and text.startswith("h100:"):
        text = text.replace("h100:", "h100-a3:")
    try:
        target = Target.parse(text)
    except OutlayError as error:
        text = f"target {row['outlay_target']!r}: {str(error).splitlines()[0]}"
        raise CannotExpressError(Obstacle("no such target", text)) from None
    if target.num_devices != devices:
        text = f"{text} has {target.num_devices} devices, the run {devices}"
        raise CannotExpressError(Obstacle("a target of another size", text))
    return str(target)


def _holds(key, size):
    try:
        Target.parse(f"{key}:1x{size}")
    except OutlayError:
        return False
    return True
