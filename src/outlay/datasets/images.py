"""Images with labels: handwritten digits, a folder for each class, or arrays in `.npz` and `.npy` files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from outlay.core.error_types import DataError
from outlay.core.input_file import check_input
from outlay.core.suggest import did_you_mean
from outlay.datasets.examples import CUT_SHORT, Examples, files_of, open_all

_NUM_TEST_DIGITS = 360
_MAX_PIXEL = 16

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return handwritten digits as training and held-out examples: real data that come with Outlay.

    Each digit has the same share in both parts.

    Source:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998
        (doi:10.24432/C50P49, CC BY 4.0): the 1,797 images of its test set, 8 x 8 pixels each.

    Returns:
        Two dictionaries of `image` (n, 64) float32 from 0 to 1 and `label` (n,) int32; n is 1,437 and 360.

    Example:
        >>> train, test = outlay.datasets.digits()
        >>> train["image"].shape, test["label"][:4].tolist()
        ((1437, 64), [7, 6, 3, 7])
    """
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        image = (file["image"] / _MAX_PIXEL).astype(np.float32)
        label = file["label"].astype(np.int32)
    parts = slice(None, -_NUM_TEST_DIGITS), slice(-_NUM_TEST_DIGITS, None)
    train, test = ({"image": image[part], "label": label[part]} for part in parts)
    return train, test


def images(path: str | Path, *, size: tuple[int, int] | None = None, channels: int = 3) -> Examples:
    """Open images with labels from a folder that has a subfolder for each class.

    A batch reads only its own images, with Pillow. Classes are numbered by name.

    Args:
        path: the folder, such as `photos`, with images like `photos/cat/1.jpg`.
        size: (height, width) to which all images are scaled; that of the first image if None.
        channels: 3 for colour, 1 for grey.

    Returns:
        Examples of `image` (n, height, width, channels) uint8 and `label` (n,) int32.

    Raises:
        DataError: the folder is missing or holds no images, images lie outside of class folders, or an image of a batch
            cannot be read.

    Example:
        >>> import PIL.Image
        >>> folder = getfixture("tmp_path")
        >>> for name, grey in {"day": 200, "night": 10}.items():
        ...     (folder / name).mkdir()
        ...     PIL.Image.new("L", (6, 4), grey).save(folder / name / "1.png")
        >>> batch = outlay.datasets.images(folder, channels=1)[:]
        >>> batch["image"].shape, batch["image"][:, 0, 0, 0].tolist(), batch["label"].tolist()
        ((2, 4, 6, 1), [200, 10], [0, 1])
    """
    folder = Path(path)
    files = files_of(folder, IMAGES, "images")
    if loose := [file.name for file in files if file.parent == folder or file == folder]:
        raise DataError(
            f"{len(loose)} of {len(files)} images in {path} have no class, such as {loose[0]}: a class is a folder"
            f"\n  fix: {folder.name}/CLASS/{loose[0]}"
        )
    classes = sorted({file.relative_to(folder).parts[0] for file in files})
    labels = np.array([classes.index(file.relative_to(folder).parts[0]) for file in files], np.int32)
    if size is None:
        with _opened(files[0]) as first:
            size = (first.height, first.width)

    def read(numbers: np.ndarray) -> dict[str, np.ndarray]:
        pixels = np.empty((len(numbers), *size, channels), np.uint8)
        for row, number in enumerate(numbers.tolist()):
            pixels[row] = _pixels(files[number], size, channels)
        return {"image": pixels, "label": labels[numbers]}

    return Examples(len(files), read, str(path), tuple(classes))


def _opened(file: Path) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("images are read with Pillow, which is not installed\n  fix: pip install pillow") from error
    try:
        check_input(file)
        return Image.open(file)
    except OSError as error:
        raise DataError(
            f"{file} is not an image that Pillow can read: {error}\n  fix: remove it from the folder"
        ) from error


def _pixels(file: Path, size: tuple[int, int], channels: int) -> np.ndarray:
    """Read one image, (height, width, channels) uint8."""
    height, width = size
    with _opened(file) as image:
        try:
            scaled = image.convert("L" if channels == 1 else "RGB").resize((width, height))
        except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: Pillow's word for a broken PNG file
            raise DataError(f"{file} is not a complete image: {error}\n  fix: remove it from the folder") from error
    return np.asarray(scaled).reshape(height, width, channels)


def arrays(path: str | Path, *names: str) -> Examples:
    """Open arrays with one entry per example: an `.npz` file, or the `.npy` files of a folder.

    Files of a folder are memory-mapped, so that a batch reads only its own entries; an `.npz` file is read completely.

    Args:
        path: the file or the folder.
        names: the arrays to open; all if none is named.

    Raises:
        DataError: the files are missing or were cut short, there is no array of a name, or the lengths differ.

    Example:
        >>> path = getfixture("tmp_path") / "digits.npz"
        >>> np.savez(path, image=np.zeros((5, 8, 8, 1), np.uint8), label=np.arange(5))
        >>> examples = outlay.datasets.arrays(path, "image", "label")
        >>> len(examples), examples[[4]]["label"].tolist()
        (5, [4])
    """
    there = _loaded(Path(path))
    if missing := [name for name in names if name not in there]:
        lines = [f"  {name!r}: {did_you_mean(name, there)}" for name in missing]
        raise DataError("\n".join([f"{path} lacks {len(missing)} of the {len(names)} arrays asked for:", *lines]))
    columns = {name: there[name] for name in names or there}
    lengths = {array.shape[:1] for array in columns.values()}
    if len(lengths) != 1 or () in lengths:  # `()`: a scalar, which has no entries
        shapes = ", ".join(f"{name} {array.shape}" for name, array in columns.items())
        raise DataError(
            f"the arrays in {path} differ in length: {shapes}"
            "\n  fix: store one entry per example in each, or name the arrays that have one"
        )
    num = next(iter(columns.values())).shape[0]
    return Examples(num, lambda numbers: {name: array[numbers] for name, array in columns.items()}, str(path))


def _loaded(path: Path) -> dict[str, np.ndarray]:
    files = files_of(path, (".npy",), "arrays")
    opened = open_all(files, _arrays_of, (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error), CUT_SHORT)
    return {name: array for arrays in opened for name, array in arrays.items()}


def _arrays_of(file: Path) -> dict[str, np.ndarray]:
    check_input(file)
    # A file from elsewhere must not run code, as a pickle in it could.
    if file.suffix != ".npz":
        return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False)}
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
