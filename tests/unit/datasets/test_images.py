import numpy as np
import PIL.Image
import pytest

from outlay.datasets.images import arrays, images
from outlay.errors import DataError


@pytest.fixture
def folder(tmp_path):
    """Three classes of two images, the second twice as large."""
    for grey, name in enumerate(["ant", "bee", "cat"]):
        (tmp_path / name / "more").mkdir(parents=True)
        PIL.Image.new("RGB", (6, 4), (50 * grey, 0, 0)).save(tmp_path / name / "1.png")
        PIL.Image.new("L", (12, 8), 50 * grey).save(tmp_path / name / "more" / "2.png")
    return tmp_path


def test_images_are_scaled_and_labelled_by_folder(folder):
    examples = images(folder)
    batch = examples[:]
    assert (batch["image"].shape, batch["image"].dtype) == ((6, 4, 6, 3), np.uint8)
    assert batch["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["image"][:, 0, 0, 0].tolist() == [0, 0, 50, 50, 100, 100]
    assert examples.classes == ("ant", "bee", "cat")
    assert images(folder, size=(2, 2), channels=1)[[5]]["image"].shape == (1, 2, 2, 1)


def test_what_is_no_folder_of_classes_is_refused(folder):
    PIL.Image.new("L", (4, 4)).save(folder / "loose.png")
    with pytest.raises(DataError, match=r"1 of 7 images .* have no class, such as loose.png"):
        images(folder)
    with pytest.raises(DataError, match=r"1 of 1 images .* have no class"):
        images(folder / "loose.png")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no images: none of its 0 files ends in \.png"):
        images(folder / "empty")


def test_a_broken_image_is_named_when_it_is_read(folder):
    broken = folder / "bee" / "1.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DataError, match=r"bee/1\.png is not a(n| complete) image"):
        images(folder)[:]


def test_arrays_of_a_folder_and_of_one_file(tmp_path):
    image, label = np.arange(12).reshape(6, 2), np.arange(6)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "label.npy", label)
    np.savez(tmp_path / "both.npz", image=image, label=label, note=np.array("of whom"))
    for path in (tmp_path, tmp_path / "both.npz"):
        batch = arrays(path, "image", "label")[[4, 1]]
        assert (batch["image"].tolist(), batch["label"].tolist()) == ([[8, 9], [2, 3]], [4, 1])
    with pytest.raises(DataError, match=r"differ in length: image .*note"):
        arrays(tmp_path / "both.npz")
    with pytest.raises(DataError, match=r"lacks 1 of the 2 arrays asked for:\n  'lable': did you mean 'label'"):
        arrays(tmp_path, "image", "lable")
    (tmp_path / "both.npz").write_bytes((tmp_path / "both.npz").read_bytes()[:400])
    with pytest.raises(DataError, match="it may have been cut short"):
        arrays(tmp_path / "both.npz")


def test_one_in_ten_is_held_out_and_nothing_is_in_both():
    examples = arrays_of(35).held_out()
    train, test = ([int(x) for x in part[:]["x"]] for part in examples)
    assert (test, sorted(train + test)) == ([9, 19, 29], list(range(35)))
    with pytest.raises(DataError, match="9 examples in nine are too few to hold out 1 in 10"):
        arrays_of(9, "nine").held_out()


def arrays_of(num, source="x"):
    from outlay.datasets.examples import Examples

    return Examples(num, lambda numbers: {"x": numbers}, source)
