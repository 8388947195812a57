from outlay.launch.lines import Lines


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
