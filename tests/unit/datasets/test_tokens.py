import numpy as np
import pytest

from outlay.datasets.tokens import tokens
from outlay.errors import DataError


def test_a_folder_of_text_is_bytes_file_after_file(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_bytes(b"efghij")
    (tmp_path / "a.txt").write_bytes(b"abcdX")
    (tmp_path / "picture.png").write_bytes(b"no text")
    examples = tokens(tmp_path, 2)
    batch = examples[:]["tokens"]
    assert [row.tobytes() for row in batch] == [b"ab", b"cd", b"ef", b"gh", b"ij"]  # X is less than a sequence
    assert batch.dtype == np.uint8


@pytest.mark.parametrize("ending", [".bin", ".npy"])
def test_token_files_are_mapped_and_not_read_whole(tmp_path, ending, monkeypatch):
    path = tmp_path / f"corpus{ending}"
    numbers = np.arange(1000, dtype=np.uint32)
    numbers.tofile(path) if ending == ".bin" else np.save(path, numbers)
    examples = tokens(path, 10, dtype="uint32")
    assert (len(examples), examples[[99, 0]]["tokens"][:, 0].tolist()) == (100, [990, 0])
    with path.open("r+b") as file:  # what is changed in the file later is seen: nothing was read before
        file.seek(-4, 2)
        file.write(np.uint32(7).tobytes())
    assert examples[[99]]["tokens"][0, -1] == 7


def test_a_token_file_cut_short_is_named_with_its_bytes(tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "good.bin")
    (tmp_path / "short.bin").write_bytes(b"\0" * 201)
    np.save(tmp_path / "x.npy", np.arange(50, dtype=np.uint16))
    (tmp_path / "short.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:150])
    with pytest.raises(
        DataError, match=r"201 bytes are 100 tokens of uint16 and 1 byte more: it was cut short"
    ) as error:
        tokens(tmp_path, 10)
    assert "not a complete .npy file: 150 bytes" in str(error.value)
    assert "good.bin" not in str(error.value)


def test_other_numbers_than_tokens_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 4), np.float32))
    with pytest.raises(DataError, match=r"it holds float32 \(4, 4\); save one dim of whole numbers"):
        tokens(tmp_path / "x.npy", 2)
    np.save(tmp_path / "x.npy", np.zeros(10, np.uint16))
    (tmp_path / "y.txt").write_text("0123456789")
    with pytest.raises(DataError, match=r"different numbers: x\.npy \(uint16\), y\.txt \(uint8\)"):
        tokens(tmp_path, 2)


def test_a_token_beyond_the_vocabulary_is_found_when_it_is_read(tmp_path):
    np.array([1, 2, 3, 300], np.uint16).tofile(tmp_path / "x.bin")
    examples = tokens(tmp_path / "x.bin", 2, vocabulary=256)
    assert examples[[0]]["tokens"].tolist() == [[1, 2]]
    with pytest.raises(DataError, match="has the token 300, but the vocabulary has 256"):
        examples[[1]]


@pytest.mark.parametrize(
    ("files", "sequence", "message"),
    [
        ({}, 4, "holds no text or token files: none of its 0 files"),
        ({"a.png": b"x"}, 4, r"none of its 1 files ends in .*; there is a\.png"),
        ({"a.txt": b"abc"}, 4, "is as long as a sequence of 4; the longest has 3 tokens"),
        ({"a.txt": b"abc"}, 0, "a sequence of 0 tokens has nothing to learn"),
    ],
)
def test_a_folder_without_enough_is_refused(tmp_path, files, sequence, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        tokens(tmp_path, sequence)
    with pytest.raises(DataError, match=r"there is no .*nowhere"):
        tokens(tmp_path / "nowhere", 4)
