import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from outlay.datasets.tables import table
from outlay.errors import DataError

ROWS = {"input_ids": [[n, n + 1] for n in range(10)], "label": list(range(10)), "text": ["x"] * 10}


@pytest.fixture
def dataset(tmp_path):
    """As Hugging Face's `save_to_disk` leaves it: two streams of Arrow, and a description."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    rows = pyarrow.table(ROWS)
    for number, part in enumerate([rows.slice(0, 6), rows.slice(6)]):
        with pyarrow.ipc.new_stream(folder / f"data-{number:05}-of-00002.arrow", rows.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": []}))
    return folder


def parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.table(rows), path)
    return path


def test_a_dataset_of_several_files_is_one_table(dataset, tmp_path):
    for path in (dataset, parquet(tmp_path / "x.parquet", ROWS)):
        examples = table(path, ["input_ids", "label"])
        batch = examples[np.array([9, 0, 6])]
        assert len(examples) == 10
        assert (batch["input_ids"].tolist(), batch["label"].tolist()) == ([[9, 10], [0, 1], [6, 7]], [9, 0, 6])


def test_a_column_that_is_not_there_is_named_with_the_nearest(dataset, tmp_path):
    for path in (dataset, parquet(tmp_path / "x.parquet", ROWS)):
        with pytest.raises(DataError, match=r"lacks 1 column:\n  'lable': did you mean 'label'"):
            table(path, ["input_ids", "lable"])


def test_what_is_no_array_is_refused(dataset, tmp_path):
    with pytest.raises(DataError, match=r"'text': string\n  fix: columns=\['input_ids', 'label'\]"):
        table(dataset)
    lists = parquet(tmp_path / "lists.parquet", {"x": [[1, 2], [3], [4, 5, 6]]})
    with pytest.raises(DataError, match=r"the lists in column 'x' of .* differ in length"):
        table(lists)[:]
    gaps = parquet(tmp_path / "gaps.parquet", {"x": [1, None, 3]})
    assert table(gaps)[[0, 2]]["x"].tolist() == [1, 3]
    with pytest.raises(DataError, match=r"column 'x' of .* lacks 1 value of a batch"):
        table(gaps)[:]


def test_files_that_are_cut_short_are_all_named(dataset, tmp_path):
    broken = dataset / "data-00001-of-00002.arrow"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(DataError, match=r"1 file of 2 cannot be read:\n  .*data-00001.*it may have been cut short"):
        table(dataset, ["label"])
    path = parquet(tmp_path / "x.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"x\.parquet: .*it may have been cut short"):
        table(path)
    parquet(dataset / "other.parquet", {"weight": [1.0]})
    broken.unlink()
    with pytest.raises(DataError, match="have different columns"):
        table(dataset)


def test_arrays_of_several_dims(tmp_path):
    values = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
    path = parquet(tmp_path / "x.parquet", {"image": values.tolist()})
    batch = table(path)[[3, 1]]["image"]
    np.testing.assert_array_equal(batch, values[[3, 1]])
