"""The page that follows a run: on this machine alone, from the run folder alone, in a real browser."""

import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest
from tests.chromium import Browser
from tests.unit.cli.command import environment, forked_outlay
from tests.unit.report.test_run_page import chart
from tests.unit.train.run_folders import folder_of_run

from outlay.core.error_types import OutputError, RunFolderError
from outlay.report.live_server import LiveServer, served


@pytest.fixture
def server(tmp_path):
    with served(folder_of_run(tmp_path / "run", steps=4, end="")) as started:
        yield started


def get(server, path, **headers):
    """Ask as a browser does; returns the status, the headers and the page."""
    _, _, here, key, _ = server.address.split("/")
    connection = http.client.HTTPConnection(here, timeout=280)
    connection.request("GET", path.replace("KEY", key), headers=headers)
    answer = connection.getresponse()
    page = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, page


def test_only_the_page_and_only_with_its_key(server, tmp_path):
    assert server.address.startswith("http://127.0.0.1:")
    status, headers, page = get(server, "/KEY/")
    assert (status, "outlay run line" in page) == (200, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for path in ("/", "/KEY", "/KEY/arrays", "/KEY/config.json", "/KEY/../run/config.json", "/x/", "/KEY/%2e%2e/"):
        assert get(server, path)[0] == 404, path
    for host in ("evil.example:80", "evil.example", "127.0.0.1.evil.example:80", ""):
        assert get(server, "/KEY/", Host=host)[0] == 403
    assert get(server, "/KEY/", Host="localhost:9000")[0] == 200  # through a tunnel


def test_what_is_not_new_is_not_sent_again(server, tmp_path):
    tag = get(server, "/KEY/")[1]["ETag"]
    assert get(server, "/KEY/", **{"If-None-Match": tag})[::2] == (304, "")
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": 0.125, "seconds": 2.5}\n')
    status, headers, page = get(server, "/KEY/", **{"If-None-Match": tag})
    assert (status, "0.125" in page) == (200, True)
    assert headers["ETag"] != tag


def test_a_link_in_the_folder_shows_nothing_of_what_it_leads_to(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"recipe": "secret words", "step": 5, "secret metric": 1.0}) + "\n")
    for name in ("config.json", "metrics.jsonl", "times.jsonl", "plan.json"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
        (tmp_path / "run" / name).symlink_to(secret)
    status, _, page = get(server, "/KEY/")
    assert (status, "secret" in page) == (200, False)


def test_a_port_that_is_taken_and_a_folder_that_is_no_run(server, tmp_path):
    port = int(server.address.split(":")[2].partition("/")[0])
    with pytest.raises(OutputError, match=rf"port {port} of 127.0.0.1 cannot be served: .*\n  fix: --port"):
        LiveServer(tmp_path / "run", port)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        LiveServer(tmp_path)


@pytest.fixture(scope="module")
def browser():
    started = Browser()
    yield started
    started.close()


@pytest.mark.processes
def test_the_page_follows_and_stays_zoomed(browser, tmp_path):
    path = folder_of_run(tmp_path / "run", steps=4, end="")
    with served(path) as server:
        browser.open(server.address)
        browser.run(f"{chart('loss')}.chart.show([1.5, 3])")
        browser.run(f"void (window.before = {chart('loss')})")
        threading.Timer(0.2, folder_of_run, [path], {"steps": 6, "after": 4}).start()
        browser.wait_for("document.querySelector('.chips').innerText.startsWith('finished')")
        assert browser.run(f"window.before === {chart('loss')}")
        assert browser.run(f"{chart('loss')}.chart.zoom") == [1.5, 3]
        assert browser.run(f"{chart('loss')}.chart.data.lines[0].x") == [1, 2, 3, 4, 5, 6]
        assert browser.run("document.querySelectorAll('script').length") >= 3
    browser.wait_for("document.getElementById('live').innerText.includes('no longer served')")
    assert browser.problems == []


WAITS = """
import dataclasses, time
from pathlib import Path
from tests.unit.recipes import small

class Waits:
    def __init__(self, data): self.data = data
    def __getitem__(self, step):
        while step == 4 and not Path("seen").exists(): time.sleep(0.01)
        return self.data[step]

def recipe():
    made = small.line()
    return dataclasses.replace(made, steps=6, data=Waits(made.data), evaluate=None)
"""


@pytest.mark.processes
def test_a_run_of_two_processes_is_followed_while_it_trains(browser, tmp_path):
    (tmp_path / "mine.py").write_text(WAITS)
    words = ["run", "mine.py:recipe", "--devices", "4", "--processes", "2", "--watch"]
    with subprocess.Popen(
        [*forked_outlay(), *words], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            address = next(line.partition("watch it at ")[2] for line in run.stderr or () if "watch it at" in line)
            browser.open(address.strip())
            browser.wait_for(f"{chart('loss')}?.chart?.data.lines[0].x.length >= 2")
            assert browser.run("document.querySelectorAll('.chips')[0].innerText").startswith("running")
            (tmp_path / "seen").touch()
            browser.wait_for("document.querySelectorAll('.chips')[0].innerText.startsWith('finished')")
            assert run.wait(280) == 0
        finally:
            run.terminate()
    assert browser.problems == []


@pytest.mark.processes
def test_the_command_prints_the_address_and_ends_well_with_ctrl_c(tmp_path):
    path = folder_of_run(tmp_path / "run")
    command = [sys.executable, "-m", "outlay", "watch", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        address = watching.stdout.readline().strip()
        here = address.split("/")[2]
        connection = http.client.HTTPConnection(here, timeout=280)
        connection.request("GET", address.partition(here)[2])
        assert connection.getresponse().status == 200
        connection.close()
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=280)
    assert watching.returncode == 0, errors
    assert "error" not in errors
