"""Weights that other programs wrote: names, orders of dims, stacks, slices, and files that are not whole."""

import json
import struct
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import save_file

import outlay
from outlay.core.error_types import CheckpointError, CheckpointWarning
from outlay.train.checkpoint.weight_files import open_weights

RANDOM = np.random.default_rng(0)
HUGGING_FACE = {
    "model.embed_tokens.weight": RANDOM.normal(size=(32, 8)).astype(np.float32),
    **{
        f"model.layers.{n}.mlp.{name}.weight": RANDOM.normal(size=size).astype(ml_dtypes.bfloat16)
        for n in range(3)
        for name, size in {"up_proj": (16, 8), "down_proj": (8, 16)}.items()
    },
    "model.norm.weight": np.float32(RANDOM.normal(size=8)),
    "lm_head.weight": np.zeros((32, 8), np.float32),
}
NAMES = [
    ("model.embed_tokens.weight", "params.embed"),
    ("model.layers.*.mlp.*_proj.weight", "params.layers.*.*", (1, 0)),
    ("model.norm.weight", "params.norm"),
    ("lm_head.weight", None),
]
STACKED = [
    NAMES[0],
    ("model.layers.*.mlp.up_proj.weight", "params.layers.up", (1, 0)),
    ("model.layers.*.mlp.down_proj.weight", "params.layers.down", (1, 0)),
    *NAMES[2:],
]


def placed(tree, specs=()):
    mesh = outlay.mesh(data=4, model=2)
    layout = outlay.Layout([*specs, ("**", outlay.replicate())])
    return outlay.arrays.put(tree, layout.plan(tree, mesh), mesh)


def state(specs=(), **more):
    layer = {"up": jnp.zeros((8, 16)), "down": jnp.zeros((16, 8))}
    params = {"embed": jnp.zeros((32, 8)), "layers": [dict(layer) for _ in range(3)], "norm": jnp.zeros(8), **more}
    return placed({"params": params, "step": jnp.int32(7)}, specs)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """In two files, with their index."""
    folder = tmp_path_factory.mktemp("model")
    parts = [dict(list(HUGGING_FACE.items())[:4]), dict(list(HUGGING_FACE.items())[4:])]
    where = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file(part, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def test_names_of_another_program_in_several_files_each_read_to_its_place(model):
    weights = outlay.train.read_weights(model, state([("params.layers.*.up", P("data", "model"))]), NAMES)
    up = weights["params"]["layers"][1]["up"]
    assert up.sharding.spec == P("data", "model")
    expected = HUGGING_FACE["model.layers.1.mlp.up_proj.weight"].astype(np.float32).T
    np.testing.assert_array_equal(up, expected)
    np.testing.assert_array_equal(weights["params"]["embed"], HUGGING_FACE["model.embed_tokens.weight"])
    assert int(weights["step"]) == 7


def test_layers_that_are_stacked_here(model):
    layers = {"up": jnp.zeros((3, 8, 16)), "down": jnp.zeros((3, 16, 8))}
    into = placed(
        {"params": {"embed": jnp.zeros((32, 8)), "layers": layers, "norm": jnp.zeros(8)}},
        [("params.layers.up", P(None, "data", "model"))],
    )
    weights = outlay.train.read_weights(model / "model.safetensors.index.json", into, STACKED)
    for n in range(3):
        for name in ("up", "down"):
            expected = HUGGING_FACE[f"model.layers.{n}.mlp.{name}_proj.weight"].astype(np.float32).T
            np.testing.assert_array_equal(weights["params"]["layers"][name][n], expected)


def test_a_dim_of_the_file_is_several_of_the_leaf(tmp_path):
    """Heads and their features, which files have in one dim; each device reads the rows of its heads."""
    into, out = RANDOM.normal(size=(3, 24, 16)), RANDOM.normal(size=(16, 24))
    weights = {f"h.{n}.q": np.ascontiguousarray(x, np.float32) for n, x in enumerate(into)}
    save_file(weights | {"o": np.float32(out)}, tmp_path / "w.safetensors")
    leaves = {"q": jnp.zeros((3, 16, 4, 6)), "o": jnp.zeros((4, 6, 16))}
    state = placed(leaves, [("q", P(None, None, "data", "model")), ("o", P("data", "model"))])
    names = [("h.*.q", "q", (1, 0, 0)), ("o", "o", (1, 1, 0))]
    read = outlay.train.read_weights(tmp_path / "w.safetensors", state, names)
    np.testing.assert_array_equal(read["q"], np.float32(into).transpose(0, 2, 1).reshape(3, 16, 4, 6))
    np.testing.assert_array_equal(read["o"], np.float32(out).T.reshape(4, 6, 16))
    state = placed({"q": jnp.zeros((3, 16, 4, 5)), "o": leaves["o"]}, [])
    with pytest.raises(CheckpointError, match=r"h\.0\.q and 2 more makes \(3, 16, 24\), the leaf is \(3, 16, 4, 5\)"):
        outlay.train.read_weights(tmp_path / "w.safetensors", state, names)
    with pytest.raises(CheckpointError, match=r"\(0, 1, 0\) is not an order of dims"):
        outlay.train.read_weights(tmp_path / "w.safetensors", state, [("o", "o", (0, 1, 0))])


@pytest.mark.parametrize("order", ["C", "F"])
def test_npz(order, tmp_path):
    values = {"w": np.asarray(RANDOM.normal(size=(16, 8)), order=order), "empty": np.zeros((0, 3)), "scalar": np.pi}
    np.savez(tmp_path / "w.npz", **values)
    into = placed({name: jnp.zeros(np.shape(x)) for name, x in values.items()}, [("w", P("data", "model"))])
    weights = outlay.train.read_weights(tmp_path / "w.npz", into, [("**", "**")])
    for name, x in values.items():
        np.testing.assert_array_equal(weights[name], np.float32(x))


@pytest.mark.parametrize(("is_one_store", "is_zarr3"), [(True, False), (False, True)])
def test_what_orbax_saved_elsewhere(is_one_store, is_zarr3, tmp_path):
    kernels = [RANDOM.normal(size=(16, 8)).astype(ml_dtypes.bfloat16) for _ in range(2)]
    tree = {"model": {"h": [{"kernel": kernel} for kernel in kernels], "name": "m", "none": None}, "step": np.int32(9)}
    handler = orbax.PyTreeCheckpointHandler(use_ocdbt=is_one_store, use_zarr3=is_zarr3)
    with orbax.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "5" / "default", tree)  # as its manager of checkpoints lays them out
    into = placed({"layers": jnp.zeros((2, 16, 8)), "step": jnp.int32(0)}, [("layers", P(None, "data", "model"))])
    names = [("model.h.*.kernel", "layers"), ("step", "step")]
    read = outlay.train.read_weights(tmp_path / "5", into, names)
    np.testing.assert_array_equal(read["layers"], np.stack(kernels).astype(np.float32))
    assert int(read["step"]) == 9
    metadata = tmp_path / "5" / "default" / "_METADATA"
    text = metadata.read_text()
    metadata.write_text(text.replace('"key": "kernel"', '"key": "../../kernel"'))
    with pytest.raises(
        CheckpointError, match=r"not a complete checkpoint of Orbax: .*\.\./kernel', which is not a name"
    ):
        outlay.train.read_weights(tmp_path / "5", placed({"layers": jnp.zeros((2, 16, 8))}), names)
    metadata.write_text(text[:200])
    with pytest.raises(CheckpointError, match="not a complete checkpoint of Orbax"):
        outlay.train.read_weights(tmp_path / "5", placed({"layers": jnp.zeros((2, 16, 8))}), names)


@pytest.mark.parametrize(("stored", "leaf"), [(np.float32, np.float16), (np.float64, np.float32)])
def test_a_number_that_would_become_infinite_is_refused(stored, leaf, tmp_path):
    np.savez(tmp_path / "w.npz", w=np.array([1.0, 1e6 if leaf == np.float16 else 1e300], stored))
    with pytest.raises(CheckpointError, match=r"out of range: w\[0:2\]\n.*at \[1\], which float\d+ cannot hold"):
        outlay.train.read_weights(tmp_path / "w.npz", placed({"w": jnp.zeros(2, leaf)}), [("w", "w")])
    np.savez(tmp_path / "w.npz", w=np.array([1.0, np.inf], stored))
    read = outlay.train.read_weights(tmp_path / "w.npz", placed({"w": jnp.zeros(2, leaf)}), [("w", "w")])
    assert read["w"].tolist() == [1.0, np.inf]


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_each_device_reads_its_slice_and_nothing_twice(suffix, tmp_path, monkeypatch):
    path, value = tmp_path / f"w.{suffix}", np.ones((64, 16), np.float32)
    save_file({"w": value}, path) if suffix == "safetensors" else np.savez(path, w=value)
    asked = []

    def recording(files):
        return {name: replace(stored, read=partial(read, stored)) for name, stored in open_weights(files).items()}

    def read(stored, index):
        asked.append(stored.read(index).shape)
        return stored.read(index)

    monkeypatch.setattr("outlay.train.checkpoint.read_weights.open_weights", recording)
    into = {"w": outlay.arrays.put(np.zeros((16, 64), np.float32), NamedSharding(outlay.mesh(a=4, b=2), P(None, "a")))}
    outlay.train.read_weights(path, into, [("w", "w", (1, 0))])
    assert asked == [(16, 16)] * 4


def test_a_part_and_what_no_name_leads_to(model):
    into = state(bias=jnp.ones(8))
    with pytest.warns(CheckpointWarning, match=r"1 leaf is not in .*\n  params.bias\n  fix: only="):
        into = outlay.train.read_weights(model, into, NAMES)
    into["params"]["norm"] = placed({"x": jnp.full(8, 5.0)})["x"]
    weights = outlay.train.read_weights(model, into, NAMES, only="params.layers.**")
    assert float(weights["params"]["norm"][0]) == 5.0
    assert not weights["params"]["norm"].is_deleted()


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (NAMES[:2], r"2 problems\n  no rule: .*(.*\n)*  no rule: .*\n.*\n.*did you mean|known: 'params.norm'"),
        ([*NAMES, ("modle.norm", None)], r'unused rule: \("modle.norm", None\)\n.*\n    fix: did you mean'),
        ([("model.norm.weight", "params.nrm"), *NAMES], r"leads to params.nrm, which the state lacks.*\n.*params.norm"),
        ([("lm_head.weight", "params.embed"), *NAMES[:3]], "params.embed is made of model.embed_tokens.weight already"),
        ([NAMES[0], (*NAMES[1][:2],), *NAMES[2:]], r'other shape(.*\n)*.*fix: \("model.layers.*", (.*), \(1, 0\)\)'),
        ([("model.norm.weight", "step"), *NAMES], "is float32, the leaf is int32; only floats are converted"),
        ([(*NAMES[0], (1, 0, 2)), *NAMES[1:]], r"\(1, 0, 2\) orders 3 dims, and it has 2"),
        (["model.norm.weight"], r"a rule is \(name in the file, path of the leaf\)"),
        ([("a.*.b", "**")], r"must be the first of 'a.\*.b'"),
        (
            [*NAMES, ("*.norm.weight", "params.norm")],
            "none of 9 names matches with numbers for the stars that the path",
        ),
        ([("a", "b", (1, 2))], r"\(1, 2\) is not an order of dims"),
    ],
)
def test_names_that_do_not_map_are_all_listed_and_nothing_is_read(names, match, model):
    into = state()
    with pytest.raises(CheckpointError, match=match):
        outlay.train.read_weights(model, into, names)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(into))


def test_a_layer_that_is_missing(model):
    names = [("model.layers.0.mlp.up_proj.weight", None), *STACKED]
    layers = {"up": jnp.zeros((3, 8, 16)), "down": jnp.zeros((3, 16, 8))}
    into = placed({"params": {"embed": jnp.zeros((32, 8)), "layers": layers, "norm": jnp.zeros(8)}})
    with pytest.raises(CheckpointError, match=r"not one array: params.layers.up\n.*number 0 is missing, of 3"):
        outlay.train.read_weights(model, into, names)


def grow(path):
    """Give the array of an `.npz` file a shape that it has not: as a file that was cut behind its header, or forged."""
    np.savez(path, v=np.ones(3))
    path.write_bytes(path.read_bytes().replace(b"(3,)", b"(9,)"))


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda folder: cut(folder / "a.safetensors"), r"a.safetensors\n.*, 254 bytes.*\n.*cut short"),
        (
            lambda folder: (folder / "a.safetensors").write_bytes(b"\xff" * 100),
            "not a complete safetensors file, 100 bytes",
        ),
        (
            lambda folder: (folder / "a.safetensors").rename(folder / "b.safetensors"),
            r"no such file\n.*'b.safetensors'",
        ),
        (lambda folder: cut(folder / "a.npz"), "not a complete .npz file"),
        (lambda folder: grow(folder / "a.npz"), r"an array of float64 \(9,\) would end at byte 2.. of 2.."),
        (lambda folder: np.savez_compressed(folder / "a.npz", w=np.ones(3)), r"w.npy is compressed.*\n.*np.savez"),
        (lambda folder: np.savez(folder / "a.npz", w=np.array([{}])), "it holds Python objects"),
        (lambda folder: np.savez(folder / "a.npz", w=np.ones(3)), "name twice: w\n"),
    ],
    ids=["cut", "header", "renamed", "cut npz", "huge npz", "compressed", "objects", "twice"],
)
def test_files_that_cannot_be_read_are_named(spoil, match, tmp_path):
    save_file({"w": np.ones((8, 6), np.float32)}, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", v=np.ones(3))
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=match):
        outlay.train.read_weights([tmp_path / "a.safetensors", tmp_path / "a.npz"], {"w": jnp.ones(3)}, [("**", "**")])


@pytest.mark.parametrize(
    ("weight_map", "match"),
    [
        ({"w": "gone.safetensors"}, r"missing file: .*gone.safetensors\n.*names it"),
        ({"w": "../w.safetensors"}, r"its weight_map names a file that is not beside it"),
        ([], "AttributeError"),
    ],
)
def test_an_index_that_leads_nowhere(weight_map, match, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=match):
        outlay.train.read_weights(tmp_path, {"w": jnp.ones(3)}, [("**", "**")])


def test_a_folder_without_weights_and_leaves_without_a_place(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \.safetensors, \.npz or Orbax checkpoint is in it"):
        outlay.train.read_weights(tmp_path, {"w": jnp.ones(3)}, [("**", "**")])
    with pytest.raises(CheckpointError, match="a ndarray has no place to read to"):
        outlay.train.read_weights(tmp_path, {"w": np.ones(3)}, [("**", "**")])


NARROW = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "BF16": ml_dtypes.bfloat16,
}


def write_tensor(path, name, array):
    """Write a safetensors file by hand: the library's own writer knows no dtypes beyond NumPy's."""
    facts = {"dtype": name, "shape": array.shape, "data_offsets": [0, array.nbytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": facts}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + array.tobytes())


@pytest.mark.parametrize("name", NARROW)
def test_dtypes_that_numpy_lacks(name, tmp_path):
    values = np.array([[1, 2, 4], [0.5, 8, 16]])
    write_tensor(tmp_path / "w.safetensors", name, values.astype(NARROW[name]))
    stored = open_weights(tmp_path / "w.safetensors")["w"]
    assert stored.read((slice(0, 2), slice(1, 2))).tolist() == [[2], [8]]
    read = outlay.train.read_weights(tmp_path / "w.safetensors", placed({"w": jnp.zeros((2, 3))}), [("w", "w")])
    assert np.array_equal(read["w"], values)
    write_tensor(tmp_path / "one.safetensors", name, np.array(4).astype(NARROW[name]))
    assert open_weights(tmp_path / "one.safetensors")["w"].read(()) == 4


def test_a_dtype_that_no_array_has_is_named(tmp_path):
    write_tensor(tmp_path / "w.safetensors", "F4", np.zeros((2, 4), np.uint8))
    path = tmp_path / "w.safetensors"
    path.write_bytes(path.read_bytes().replace(b"[2, 4]", b"[2, 8]"))
    with pytest.raises(CheckpointError, match="w is of dtype F4, which no array has"):
        open_weights(path)
