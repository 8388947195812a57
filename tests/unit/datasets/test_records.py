import struct

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from outlay.datasets.records import records
from outlay.errors import DataError


def tf_record(path, values):
    """The file's layout: length, its checksum, data, their checksum; the checksums are not looked at."""
    each = (np.array(value, np.int32).tobytes() for value in values)
    path.write_bytes(b"".join(struct.pack("<Q4x", len(data)) + data + b"\0" * 4 for data in each))
    return path


def array_record(path, values):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for value in values:
        writer.write(np.array(value, np.int32).tobytes())
    writer.close()
    return path


def parse(record):
    return {"x": np.frombuffer(record, np.int32), "size": len(record)}


@pytest.mark.parametrize(("write", "ending"), [(tf_record, ".tfrecord"), (array_record, ".array_record")])
def test_records_of_several_files_by_number(tmp_path, write, ending):
    write(tmp_path / f"a{ending}", [[n, n] for n in range(5)])
    write(tmp_path / f"b{ending}", [[n, n] for n in range(5, 8)])
    examples = records(tmp_path, parse)
    batch = examples[[7, 0, 5]]
    assert len(examples) == 8
    assert (batch["x"].tolist(), batch["size"].tolist()) == ([[7, 7], [0, 0], [5, 5]], [8, 8, 8])
    train, test = records(tmp_path / f"a{ending}", parse).held_out(5)
    assert (len(train), test[:]["x"].tolist()) == (4, [[4, 4]])


def test_files_cut_short_are_all_named(tmp_path):
    good = tf_record(tmp_path / "good.tfrecord", [[1], [2], [3]])
    (tmp_path / "cut.tfrecord").write_bytes(good.read_bytes()[:-6])
    (tmp_path / "text.tfrecord").write_text("these are not records, but words that somebody wrote")
    path = array_record(tmp_path / "cut.array_record", [[n] for n in range(100)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="3 files of 4 cannot be read") as error:
        records(tmp_path, parse)
    message = str(error.value)
    assert "cut.tfrecord: after 2 records one goes beyond its 54 bytes: it was cut short" in message
    assert "text.tfrecord: after 0 records" in message
    assert "cut.array_record: " in message


def test_examples_of_other_shapes_are_refused(tmp_path):
    examples = records(tf_record(tmp_path / "x.tfrecord", [[1], [2, 3]]), parse)
    assert examples[[1]]["x"].tolist() == [[2, 3]]
    with pytest.raises(DataError, match=r"x\.tfrecord have different shapes: .*\n  fix: let parse pad or cut them"):
        examples[:]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no records"):
        records(tmp_path / "empty", parse)
