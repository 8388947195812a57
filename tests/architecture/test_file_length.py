"""One idea a file: about 150 lines is normal and 400 is the limit, for code and for tests; recorded data is small."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
MAX_BYTES_OF_DATA = 1_000_000


def test_no_file_is_longer_than_the_limit():
    files = [path for folder in ("src", "tests", "packages") for path in (ROOT / folder).rglob("*.py")]
    num_lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    too_long = {path: lines for path, lines in num_lines.items() if lines > MAX_LINES}
    assert num_lines, "no files found: the test looks in the wrong place"
    assert not too_long, f"split these by idea, the limit is {MAX_LINES} lines: {too_long}"


def test_recorded_data_stays_small():
    folders = (ROOT / "tests" / "data", ROOT / "packages" / "outlay-brain" / "brain_tests" / "data")
    sizes = {path.name: path.stat().st_size for folder in folders for path in folder.iterdir()}
    assert 0 < sum(sizes.values()) < MAX_BYTES_OF_DATA, sizes
