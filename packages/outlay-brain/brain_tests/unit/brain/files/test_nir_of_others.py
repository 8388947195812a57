"""A NIR file from a stranger reads no other file: external storage, external and soft links, virtual datasets."""

import h5py
import nir
import numpy as np
import pytest

from outlay.brain.files.nir_read import parts_elsewhere, read_nir
from outlay.brain.module import BrainError

WEIGHT = "node/nodes/fc/weight"


def external_storage(file, folder):
    file.create_dataset(WEIGHT, shape=(3, 4), dtype="f8", external=[(str(folder / "secret.bin"), 0, 96)])


def external_link(file, folder):
    file[WEIGHT] = h5py.ExternalLink(str(folder / "other.h5"), "/w")


def link_of_a_group(file, folder):
    del file["node/nodes/fc"]
    file["node/nodes/fc"] = h5py.ExternalLink(str(folder / "other.h5"), "/fc")


def through_a_soft_link(file, folder):
    file["away"] = h5py.ExternalLink(str(folder / "other.h5"), "/w")
    file[WEIGHT] = h5py.SoftLink("/away")


def virtual_dataset(file, folder):
    layout = h5py.VirtualLayout(shape=(3, 4), dtype="f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "w", shape=(3, 4))
    file.create_virtual_dataset(WEIGHT, layout)


def write(path):
    ones = np.ones(3)
    nodes = {
        "in": nir.Input(input_type={"input": np.array([4])}),
        "fc": nir.Linear(weight=np.zeros((3, 4))),
        "lif": nir.LIF(tau=ones / 100, r=ones, v_leak=0 * ones, v_threshold=ones, v_reset=0 * ones),
        "out": nir.Output(output_type={"output": np.array([3])}),
    }
    nir.write(path, nir.NIRGraph(nodes=nodes, edges=[("in", "fc"), ("fc", "lif"), ("lif", "out")]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (external_storage, r"weight\n.*its values lie in the file '.*secret.bin'"),
        (external_link, r"weight\n.*it is a link to '/w' in the file '.*other.h5'"),
        (link_of_a_group, r"fc\n.*it is a link to '/fc' in the file '.*other.h5'"),
        (through_a_soft_link, r"2 parts; none was read"),
        (virtual_dataset, r"weight\n.*put together from the files '.*other.h5'"),
    ],
)
def test_what_lies_elsewhere_is_refused_and_named(make, message, tmp_path):
    np.arange(12.0).tofile(tmp_path / "secret.bin")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["w"] = np.full((3, 4), 777.0)
        other["fc/weight"] = np.full((3, 4), 777.0)
        other["fc/type"] = "Linear"
    path = tmp_path / "theirs.nir"
    write(path)
    with h5py.File(path, "a") as file:
        del file[WEIGHT]
        make(file, tmp_path)
    with pytest.raises(BrainError, match=message):
        read_nir(path)


def test_a_file_of_its_own_is_read_also_with_a_circle_in_it(tmp_path):
    path = tmp_path / "mine.nir"
    write(path)
    assert read_nir(path).kernels["lif"].shape == (3, 4)
    with h5py.File(path, "a") as file:
        file["extra/round"] = file["/"]
    assert parts_elsewhere(path) == []
