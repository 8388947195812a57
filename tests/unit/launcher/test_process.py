from outlay.launcher.process import LONGEST, Lines


def test_lines_come_whole_however_they_arrive():
    lines = Lines()
    assert lines.add(b"one\ntw") == ["one"]
    assert lines.add(b"o\n\nthree") == ["two", ""]
    assert lines.finish() == ["three"]
    assert lines.finish() == []


def test_a_progress_bar_gives_a_line_each_time_it_is_drawn():
    lines = Lines()
    assert lines.add(b"\r 10%\r 20%") == [" 10%"]
    assert lines.add(b"\r") == []
    assert lines.add(b"\n") == [" 20%"]


def test_bytes_that_are_no_text_do_no_harm():
    assert Lines().add(b"a\xff\n") == ["a\ufffd"]


def test_a_line_without_end_comes_in_pieces():
    lines = Lines()
    pieces = [line for _ in range(40) for line in lines.add(b"z" * (LONGEST // 16))] + lines.add(b"end\nnext")
    assert [len(piece) for piece in pieces] == [LONGEST, LONGEST, LONGEST // 2 + 3]
    assert lines.finish() == ["next"]


def test_the_end_of_a_line_may_arrive_in_two_pieces():
    lines = Lines()
    assert lines.add(b"one\r") == []
    assert lines.add(b"two") == ["one"]
    assert lines.add(b"\r") + lines.add(b"\nthree\n") == ["two", "three"]
