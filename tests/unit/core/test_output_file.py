"""Files for users are whole or not there, and replace only what Outlay made."""

import json
import os
import re
import stat

import numpy as np
import pytest
from matplotlib.figure import Figure

import outlay
from outlay.core.error_types import OutputError
from outlay.core.output_file import whole_file, write_output, write_picture, write_whole

CHECKSUM = re.compile(r'<meta name="checksum" content="[0-9a-f]{8}">')
OURS = ["# Chosen by outlay choose lm\n", "# Written by `outlay calibrate`, which\n"]


def test_what_outlay_made_is_replaced_and_nothing_else(tmp_path):
    page = outlay.show({"w": np.ones(8)}).to_html()
    for number, own_output in enumerate([*OURS, page]):
        path = tmp_path / str(number)
        write_output(path, own_output)
        write_output(path, own_output + "\n<!-- again -->")
        assert path.read_text().endswith("again -->")
    for number, other in enumerate(
        ["import os\n", f"'''{page}'''", "<!doctype html>\n<p>", "# Notes on outlay\n", "\0"]
    ):
        path = tmp_path / f"other{number}"
        path.write_text(other)
        with pytest.raises(
            OutputError, match=rf"{path} exists, and Outlay did not make it; nothing was written\n.*--force"
        ):
            write_output(path, page)
        assert path.read_text() == other
        write_output(path, page, force=True)
        assert path.read_text().replace(CHECKSUM.search(path.read_text())[0], "") == page


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.html", "</body>", "<p>my notes</p></body>"),
        ("a.html", "</html>", "</html><!-- mine -->"),
        ("a.html", '<meta name="checksum" content="', '<meta name="checksum" content="f'),
        ("a.toml", "optional", "other"),
        ("a.json", '"traceEvents"', '"mine": 1, "traceEvents"'),
        ("a.svg", "</svg>", "<g/></svg>"),
        ("a.png", "IEND", "IENB"),
    ],
)
def test_what_was_edited_since_is_replaced_only_by_force(name, before, after, tmp_path):
    path, figure = tmp_path / name, Figure(figsize=(0.1, 0.1))
    content = {
        ".html": outlay.show({"w": np.ones(8)}).to_html(),
        ".toml": "# Chosen by outlay choose lm\n# optional\n",
        ".json": json.dumps({"otherData": {"generator": "outlay"}, "traceEvents": []}),
    }

    def write(**options):
        if path.suffix in content:
            write_output(path, content[path.suffix], **options)
        else:
            write_picture(path, figure, **options)

    write()
    write()
    if path.suffix == ".json":
        json.loads(path.read_text())
    edited = path.read_bytes().replace(before.encode(), after.encode())
    assert edited != path.read_bytes()
    path.write_bytes(edited)
    with pytest.raises(
        OutputError, match=rf"{path} exists, and it was edited since Outlay made it; nothing was .*\n.*--f"
    ):
        write()
    assert path.read_bytes() == edited
    write(force=True)
    write()


def test_a_picture_with_its_checksum_is_whole(tmp_path):
    from PIL import Image

    write_picture(tmp_path / "a.png", Figure(figsize=(0.1, 0.1)))
    with Image.open(tmp_path / "a.png") as picture:
        picture.load()
        assert picture.info["Software"] == "outlay"
        assert len(picture.info["Checksum"]) == 8


def test_in_a_folder_of_anybodys_a_link_itself_is_replaced(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    write_whole(tmp_path / "link", "new", through_links=False)
    assert not (tmp_path / "link").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("link", "mine")] == ["new", "mine"]


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_pictures_of_ours_are_known_again(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    write_picture(path, figure)
    write_picture(path, figure)
    figure.savefig(path)  # as somebody else would
    with pytest.raises(OutputError, match="Outlay did not make it"):
        write_picture(path, figure)


def test_a_picture_has_a_format(tmp_path):
    with pytest.raises(OutputError, match=r"ends in '.py', which is not a picture format\n.*\.png"):
        write_picture(tmp_path / "a.py", Figure())


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("before")

    def fail_halfway():
        with whole_file(path) as unfinished:
            unfinished.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail_halfway()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.html"]


def test_mode_and_links_stay(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert (real.read_text(), stat.S_IMODE(real.stat().st_mode)) == ("new", 0o640)


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    from pathlib import Path

    write_output(Path("/dev/null"), "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OutputError, match="/dev/full cannot be written: No space left on device"):
        write_output(Path("/dev/full"), "x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is a folder"),
        ("no/where", "there is no folder"),
        ("n" * 300, "too long"),
        ("a\0b", "null"),
        ("../f/x", "no f"),
        ("circle", "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_written_is_an_error_of_ours(tmp_path, name, message):
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OutputError, match=message):
        write_output(tmp_path / name, "x")
