"""The view of a sweep under way: real folders that grow, real requests, a real browser, a stranger's folder."""

import http.client
import io
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from analysis.marks import SOLID
from faultline.cli import main
from harness.errors import UserError
from harness.run import jsonl
from harness.run.folder import RunFolder
from sweeps.ledger import Sweep
from sweeps.watch import follow
from sweeps.watch.follow import Follower
from sweeps.watch.server import WatchServer
from sweeps.watch.summary import duration, summarise
from sweeps.watch.terminal import view, watch_in_terminal
from tests.analysis.synthetic import FP8, FP32, rows, write
from tests.waiting import PATIENCE

HOSTILE = "<script>alert(1)</script>\x1b[2J[bold]"


def under_way(sweep, *overrides, until=50, **more):
    """A run of 100 steps of which `until` are recorded, an evaluation every 5."""
    return write(sweep, *overrides, until=until, state="running", **more)


@contextmanager
def served(follower):
    with WatchServer(follower, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(server, name="", method="GET", host=None, secret=True):
    """(status, text) of a request below the secret."""
    place = urlsplit(server.address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
    path = f"{place.path}{name}" if secret else f"/{name}"
    connection.request(method, path, headers={"Host": host or place.netloc})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_each_look_reads_what_was_appended_and_nothing_else(tmp_path, monkeypatch):
    """Evaluations of steps 0, 5 .. 45 are ten points; a resume from step 40 writes 40 and 45 again, and goes on to 50."""
    runs = [under_way(tmp_path, FP32, seed=seed) for seed in range(3)]
    follower = Follower(tmp_path)
    follower.look()
    first = follower.runs[runs[0].path.name]
    assert [point.step for point in first.points] == list(range(0, 50, 5)) and first.points[9].reward > 0.9
    size = (runs[0].path / "metrics.jsonl").stat().st_size
    assert first.rows.offset == size

    opened, read = [], RunFolder.read

    def opening(path, *mode):
        opened.append(path)
        return open(path, *mode)

    for module in ("follow", "summary"):
        monkeypatch.setattr(f"sweeps.watch.{module}.open", opening, raising=False)
    monkeypatch.setattr(RunFolder, "read", lambda folder, name: opened.append(name) or read(folder, name))
    follower.look()
    summarise(follower)
    assert opened == []

    again = [row for row in rows("fp32", 0, 100) if 40 <= row["step"] < 51]
    jsonl.append(runs[0].path / "metrics.jsonl", again)
    with (runs[0].path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 55, "eval/reward": 0.5')  # its end is still being written
    follower.look()
    assert opened == [f"{runs[0].path}/metrics.jsonl"] and first.rows.offset > size
    assert [point.step for point in first.points] == list(range(0, 51, 5))
    with (runs[0].path / "metrics.jsonl").open("ab") as file:
        file.write(b"}\n")
    follower.look()
    assert first.points[-1] == (55, 0.5, None)
    os.replace(runs[1].path / "metrics.jsonl", runs[0].path / "metrics.jsonl")  # another file: from its beginning
    follower.look()
    assert [point.step for point in first.points] == list(range(0, 50, 5))


def test_nothing_of_the_sweep_is_touched(tmp_path):
    under_way(tmp_path, FP32)
    write(tmp_path, FP8, state="failed", until=10, error="no space")
    before = snapshot(tmp_path)
    follower = Follower(tmp_path)
    with served(follower) as server:
        assert ask(server)[0] == ask(server, "state")[0] == ask(server, "curves?since=0")[0] == 200
    watch_in_terminal(follower, Console(record=True, file=io.StringIO()))
    assert snapshot(tmp_path) == before


def test_a_large_sweep_is_read_in_parts(tmp_path, monkeypatch):
    for seed in range(4):
        under_way(tmp_path, FP32, seed=seed)
    size = (tmp_path / "fp32-0" / "metrics.jsonl").stat().st_size
    monkeypatch.setattr(follow, "BUDGET", int(1.5 * size))
    monkeypatch.setattr(follow, "LONGEST", size // 4)
    follower = Follower(tmp_path)
    left = []
    while not left or follower.behind:
        follower.look()
        left.append(follower.behind)
    assert left[0] == 3 and left == sorted(left, reverse=True) and left[-1] == 0
    assert all(len(run.points) == 10 for run in follower.runs.values())


def steps(run, first, *seconds):
    """Rows of steps that took so long, from step `first` on; every fifth is an evaluation. The last one is a second ago."""
    rows = [{"step": first + i, "time/step": value, "time/train": 99.0} for i, value in enumerate(seconds)]
    for row in rows:
        row |= {"eval/reward": 0.5} if row["step"] % 5 == 0 else {}
    jsonl.append(run.path / "metrics.jsonl", rows)
    state = {"state": "running", "time": 1000.0, "step": first + len(seconds), "steps": 100}
    run.write("status.json", state)


def test_pace_and_time_left(tmp_path):
    """An evaluated step takes 6 s and any other 1 s, so five take 10 s: 2 s a step. The first one took 50 s, once in a process.

    After 41 steps of a run at 2 s and 51 of one at 4 s, 59 and 49 are left to these, and 100 to a third that waits, of the
    first one's arm: 118 + 196 + 200 = 514 s of work for two at a time, 257 s. Together they do 1/2 + 1/4 steps a second, 45 a
    minute.
    """
    one, other = under_way(tmp_path, FP32, until=0), under_way(tmp_path, FP8, until=0)
    waiting = write(tmp_path, FP32, seed=1, until=0)
    (waiting.path / "status.json").unlink()
    follower = Follower(tmp_path)
    for run in (one, other):
        run.write("status.json", {"state": "running", "time": 900.0, "step": 0, "steps": 100, "phase": "warm start"})
    steps(other, 0, 50.0)
    follower.look()
    assert summarise(follower).left is None  # no run has made a second step
    steps(one, 0, 50.0, *[1.0, 1.0, 1.0, 1.0, 6.0] * 8)
    steps(other, 1, *[2.0, 2.0, 2.0, 2.0, 12.0] * 10)
    follower.look()
    found = summarise(follower, now=1001.0)
    assert (found.rate, found.left) == (pytest.approx(45), pytest.approx(257))
    assert found.outlook == "45 steps a minute, about 4 min 17 s left."
    assert found.counts == {"queued": 1, "running": 2}
    assert (found.step, found.steps) == (92, 300) and found.silent == []
    assert summarise(follower, now=1601.0).silent == [follower.runs[run.path.name] for run in (one, other)]
    one.write("status.json", {"state": "failed", "time": 1182.0, "step": 41})
    follower.look()
    assert summarise(follower).left == pytest.approx(49 * 4 + 100 * 2)  # one at a time now
    assert [duration(s) for s in (59.9, 61, 3600, 90061)] == ["0 min 59 s", "1 min 01 s", "1 h 00 min", "25 h 01 min"]


def test_finished_runs_tell_the_pace_of_those_that_wait(tmp_path):
    """The synthetic runs record 0.35 s a step: of one that has ended the pace is known at the first look. Two begin: 200 steps
    at 0.35 s by two at a time are 35 s. A time that is no number counts nothing."""
    write(tmp_path, FP32)
    for seed in (1, 2):
        under_way(tmp_path, FP32, seed=seed, until=0)
    (tmp_path / "fp32-1" / "metrics.jsonl").write_bytes(b'{"step": 0, "time/step": 1e999}\n{"step": 1, "time/step": "x"}\n')
    follower = Follower(tmp_path)
    follower.look()
    assert summarise(follower).left == pytest.approx(35) and follower.runs["fp32-1"].seconds is None


def test_a_sweep_that_has_not_begun_has_not_ended(tmp_path):
    follower = Follower(tmp_path)
    follower.look()
    assert not summarise(follower).over
    write(tmp_path, FP32)
    follower.look()
    assert summarise(follower).over and summarise(follower).outlook == "All have ended."
    write(tmp_path, FP32, seed=1, state="preempted", until=5)
    follower.look()
    assert not summarise(follower).over  # its job is queued again
    assert summarise(follower).outlook == "No run is under way."
    shutil.rmtree(tmp_path)
    follower.look()
    assert follower.runs == {} and summarise(follower).outlook == "The folder is gone."


def test_what_only_the_ledger_knows(tmp_path):
    """A run that was cancelled while it waited; one whose node was lost and which began again; one that ended long before."""
    for seed in range(3):
        run = under_way(tmp_path, FP32, seed=seed)
        run.write("status.json", {"state": "running", "time": 1000.0, "step": 50, "steps": 100})
    sweep = Sweep(tmp_path)
    names = [f"fp32-{seed}" for seed in range(3)]
    sweep.log("planned", names, arm="fp32 ppo", seed=0, steps=100)
    sweep.log("cancelled", names[:1])
    sweep.log("ended", names[1:], state="interrupted", error="node lost")
    sweep.log("started", names[1:2], job="2", step=50)
    follower = Follower(tmp_path)
    follower.look()
    assert [follower.runs[name].state for name in names] == ["cancelled", "running", "interrupted"]
    assert [failure.run.error for failure in summarise(follower).failures] == ["node lost"]
    follower.runs[names[2]].time = 0.0
    RunFolder(tmp_path / names[2]).status("running", step=51, steps=100)
    follower.look()
    assert follower.runs[names[2]].state == "running"


def test_the_server_answers_this_machine_and_changes_nothing(tmp_path):
    under_way(tmp_path, FP32)
    write(tmp_path, FP8, collapse=40)
    with served(Follower(tmp_path)) as server:
        assert server.server_address[0] == "127.0.0.1"
        port = server.server_address[1]
        status, page = ask(server)
        assert status == 200 and "fp8_tensor ppo" in page and "collapse by drawdown" in page and "2 runs" in page
        assert ask(server, host="localhost:9000")[0] == 200  # a tunnel
        assert [ask(server, host=name)[0] for name in (f"evil.example:{port}", "127.0.0.1.evil.example", "x@127.0.0.1", "")] == [
            403,
            403,
            403,
            200,  # http.client fills in its own
        ]
        assert [ask(server, name, secret=False)[0] for name in ("", "state", "x/state", "../state")] == [404] * 4
        assert [ask(server, name)[0] for name in ("../", "config.json", "%2e%2e/etc/passwd")] == [404] * 3
        assert ask(server, urlsplit(server.address).path.strip("/"), secret=False)[0] == 404  # without the last slash
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(server, method=method)[0] == 501
        status, text = ask(server, "curves?since=x")
        curves = json.loads(text)
        assert curves["fresh"] and curves["runs"]["fp32-0"]["points"][0][0] == 0
        later = json.loads(ask(server, f"curves?since={curves['look']}")[1])
        assert not later["fresh"] and later["runs"] == {}
        jsonl.append(tmp_path / "fp32-0" / "metrics.jsonl", [{"step": 60, "eval/reward": 0.25}])
        later = json.loads(ask(server, f"curves?since={curves['look']}")[1])
        assert list(later["runs"]) == ["fp32-0"] and later["runs"]["fp32-0"]["points"][-1] == [60, 0.25, None]
        with pytest.raises(UserError, match=f"--port {port}"):
            WatchServer(Follower(tmp_path), port)


def test_a_strangers_folder_is_shown_and_does_nothing(tmp_path):
    """Text of his choice is text, what is no number is left out, and pipes, folders and endless nesting are passed over."""
    bad = write(tmp_path, FP32, until=10, state="failed", error=HOSTILE)
    (bad.path / "log.txt").write_text(f"first\n{HOSTILE}\n" * 20)
    config = json.loads((bad.path / "config.json").read_text())
    for number, value in enumerate((HOSTILE, "fp32")):
        run = RunFolder(tmp_path / f"named{number}")
        run.path.mkdir()
        run.write("config.json", config | {"rollout": config["rollout"] | {"precision": {"name": value}}})
    odd = [None, True, "1", 1e999, -1, 10**400, {}, [1]]
    jsonl.append(bad.path / "metrics.jsonl", [{"step": value, "eval/reward": value} for value in odd])
    jsonl.append(bad.path / "metrics.jsonl", [{"step": 7, "eval/reward": 0.5, "rollout_corr/k3_kl": float("nan")}])
    jsonl.append(bad.path / "events.jsonl", [{"kind": "collapse", "step": 3, "detector": HOSTILE, "time": "now"}, {"kind": []}])
    with (bad.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"eval/reward": ' + b"[" * 100000 + b"\n\xff\xfe\n")
    for name, make in {"pipes": os.mkfifo, "folders": os.mkdir}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        for file in ("status.json", "metrics.jsonl", "events.jsonl", "log.txt"):
            make(tmp_path / name / file)
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "config.json").write_text("[" * 100000)
    (tmp_path / "<img src=x>").symlink_to(bad.path)
    follower = Follower(tmp_path)
    with served(follower) as server:
        for name in ("", "state"):
            status, text = ask(server, name)
            assert status == 200 and "&lt;script&gt;alert(1)" in text and "<script>alert" not in text and "<img" not in text
        json.loads(ask(server, "curves?since=0")[1], parse_constant=lambda word: pytest.fail(word))
    assert follower.runs[bad.path.name].points[-1] == (7, 0.5, None)
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(view(summarise(follower)))
    shown = console.export_text()
    assert "\x1b" not in shown and "[bold]" in shown and r"\x1b[2J" in shown


def test_the_terminal_shows_arms_curves_alarms_and_logs(tmp_path):
    """fp32 rises from 0.4 to 0.96 within 40 of 100 steps; fp8 falls to 0.05, the lowest bar, after its collapse at 40."""
    for seed in range(2):
        write(tmp_path, FP32, seed=seed)
    write(tmp_path, FP8, collapse=40)
    failed = write(tmp_path, FP8, seed=1, until=10, state="failed", error="out of memory")
    (failed.path / "log.txt").write_text("\n".join(f"line {number}" for number in range(30)))
    follower = Follower(tmp_path)
    console = Console(record=True, width=150, file=io.StringIO())
    watch_in_terminal(follower, console)
    lines = console.export_text().splitlines()
    assert lines[0] == f"{tmp_path.name}: 4 runs, 2 done, 1 collapsed, 1 failed" and "All have ended." in lines[1]
    (fp32,) = [line for line in lines if line.startswith("fp32 ppo")]
    (fp8,) = [line for line in lines if line.startswith("fp8_tensor ppo")]
    bars = re.search(r"[▁▂▃▄▅▆▇█]{24}", fp32)[0]
    assert bars[0] == "▄" and set(bars[-10:]) == {"█"} and re.search(r"█.*▁{5}", fp8)
    assert any("collapse by drawdown" in line for line in lines) and any("out of memory" in line for line in lines)
    assert [line.strip() for line in lines if "line 2" in line] == ["line 27", "line 28", "line 29"]


def test_a_terminal_is_followed_until_all_have_ended(tmp_path, monkeypatch):
    run = under_way(tmp_path, FP32)

    def ends(seconds):
        jsonl.append(run.path / "metrics.jsonl", [{"step": 100, "eval/reward": 0.125}])
        run.status("done", step=100, steps=100)

    monkeypatch.setattr(time, "sleep", ends)
    console = Console(record=True, force_terminal=True, width=150, file=io.StringIO())
    watch_in_terminal(Follower(tmp_path), console)
    shown = console.export_text()
    assert "1 running" in shown and "1 done" in shown and "0.125" in shown


def test_more_is_counted_than_shown(tmp_path):
    for seed in range(25):
        write(tmp_path, FP32, seed=seed, until=1, state="failed", error=f"error {seed}", time=1000.0 + seed)
    follower = Follower(tmp_path)
    follower.look()
    found = summarise(follower)
    assert found.failures_in_all == 25 and found.failures[0].run.error == "error 24" and len(found.failures) == 20
    with served(follower) as server:
        assert "The latest of 25." in ask(server, "state")[1]


SEEN = """<script nonce={nonce}>setTimeout(() => {{
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect(), scale = canvas.scale;
  const run = runs.get("fp8_tensor-0"), point = run.points[18];
  const at = {{ clientX: box.left + scale.x(point[0]), clientY: box.top + scale.y(point[1]) }};
  canvas.dispatchEvent(new MouseEvent("mousemove", at));
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const said = {{ hover: document.querySelector(".hover").textContent, all: canvas.getAttribute("aria-label"),
    last: runs.get("fp32-0").points.at(-1), ink: pixels.filter((v, i) => i % 4 == 3 && v > 0).length,
    wide: document.documentElement.scrollWidth, width: innerWidth,
    ticks: [ticks(0, 1, 6), ticks(0, 400, 3), ticks(0, 70, 9), ticks(1e-3, 10, 6, true), ticks(1e-9, 1, 5, true)] }};
  said.looks = Object.fromEntries(looks);
  const table = document.querySelector(".scroll"); said.cut = table.scrollWidth - table.clientWidth;
  document.querySelector("tr[data-arm^=fp8]").cells[1].click(); said.one = canvas.getAttribute("aria-label");
  document.title = JSON.stringify(said);
}}, 5000)</script>"""


@pytest.mark.chromium
def test_a_real_browser_follows_a_run(tmp_path, monkeypatch):
    """The second look of the page finds an evaluation that was not there at the first."""
    sweep = tmp_path / "sweep"
    run = under_way(sweep, FP32)
    write(sweep, FP8)
    write(sweep, FP8, "correction=sequence_mask")
    follower, looks = Follower(sweep), Counter()
    look = follower.look

    def grows():
        looks["looks"] += 1
        if looks["looks"] == 4:  # the page, its first two requests, and then this
            jsonl.append(run.path / "metrics.jsonl", [{"step": 55, "eval/reward": 0.25, "rollout_corr/k3_kl": 1e-3}])
        look()

    monkeypatch.setattr(follower, "look", grows)
    with served(follower) as server:
        page = server.page
        monkeypatch.setattr(server, "page", lambda nonce: page(nonce) + SEEN.format(nonce=nonce))
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900"]
        command += ["--virtual-time-budget=6000", "--enable-logging=stderr", "--dump-dom"]
        where = [f"--user-data-dir={tmp_path / 'p'}", server.address]
        done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=PATIENCE)
    said = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1].replace("&quot;", '"'))
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert said["last"] == [55, 0.25, 1e-3] and said["ink"] > 2000
    arm, step, run_line = said["hover"].splitlines()
    assert arm == "fp8_tensor ppo, seed 0" and step.startswith("step 90: ") and run_line == "run fp8_tensor-0"
    assert said["all"].endswith("of 3 runs") and said["one"].endswith("of 1 runs")
    assert said["wide"] <= said["width"] and said["cut"] == 0
    assert [[float(f"{tick:.6g}") for tick in ticks] for ticks in said["ticks"]] == [
        [0, 0.2, 0.4, 0.6, 0.8, 1],
        [0, 200, 400],
        [0, 10, 20, 30, 40, 50, 60, 70],
        [0.001, 0.01, 0.1, 1, 10],
        [1e-8, 1e-6, 1e-4, 1e-2, 1],
    ]
    own = {
        arm: [f"#{bytes(map(int, look['colour'][4:-1].split(', '))).hex()}", look["dash"]] for arm, look in said["looks"].items()
    }
    assert own == {
        arm: [mark.colour, [] if mark.dash == SOLID else list(mark.dash[1])] for arm, mark in follower.marks.arms.items()
    }
    assert len(own) == 3 and len({colour for colour, _ in own.values()}) == 3


def test_the_command_refuses_what_cannot_be_followed(tmp_path, capsys):
    run = under_way(tmp_path, FP32)
    for words, told in {
        f"watch {tmp_path / 'nosuch'}": "no such folder",
        f"watch {run.path}": "a run, not a sweep",
        f"watch {tmp_path} --port 80": "ports from 1024",
        f"report {tmp_path} --watch --margin 0.1": "--margin has no effect",
        "report wandb:project --watch": "only a sweep's folder",
    }.items():
        with pytest.raises(SystemExit) as left:
            main(words.split())
        assert left.value.code == 2 and told in capsys.readouterr().err
    main(["watch", str(tmp_path), "--tui"])
    assert "1 runs, 1 running" in capsys.readouterr().out.replace("\n", " ")


def test_the_worst_alarms_come_first_and_of_these_the_latest(tmp_path):
    folder = write(tmp_path, FP8, steps=20)
    kinds = {(1, 5.0): "collapse", (2, 9.0): "warning", (3, 7.0): "all_rejected", (4, 6.0): "collapse", (5, 8.0): "warning"}
    for (step, seconds), kind in kinds.items():
        event = {"kind": kind, "step": step, "time": seconds, "detector": f"x{step}"}
        jsonl.append(folder.path / "events.jsonl", [event])
    follower = Follower(tmp_path)
    follower.look()
    assert [alarm.step for alarm, _ in summarise(follower).alarms] == [4, 1, 3, 2, 5]


def test_an_alarm_names_its_step_and_the_onset_that_the_report_has(tmp_path):
    """A drawdown that was seen at 85, 15 steps after it began; and an event without an onset."""
    folder = write(tmp_path, FP8, steps=20)
    folder.log_event("collapse", 85, detector="drawdown", onset=70)
    folder.log_event("all_rejected", 90, onset="none")
    follower = Follower(tmp_path)
    follower.look()
    (run,) = follower.runs.values()
    told = [str(alarm) for alarm in run.alarms.values()]
    assert "collapse by drawdown at step 85, onset 70" in told and told[-1] == "all_rejected at step 90"


def test_an_alarm_that_a_resumed_run_records_again_is_the_same_one(tmp_path):
    """The first onset counts, in the report too. Steps that were all rejected differ by their step."""
    folder = write(tmp_path, FP8, steps=20)
    for step, onset in ((8, 5), (9, 6)):
        folder.log_event("warning", step, detector="weights", onset=onset)
        folder.log_event("all_rejected", step)
    folder.log_event("all_rejected", 8)
    follower = Follower(tmp_path)
    follower.look()
    found = summarise(follower)
    told = [str(alarm) for alarm, _ in found.alarms]
    assert sorted(told) == ["all_rejected at step 8", "all_rejected at step 9", "warning by weights at step 8, onset 5"]
    assert found.alarms_in_all == 3


def test_a_browser_that_goes_away_is_no_error(tmp_path, capfd):
    """It closes with unread bytes, which is a reset, while the answer is being written; the next one is answered."""
    under_way(tmp_path, FP32)
    with served(Follower(tmp_path)) as server:
        place, begun, gone = urlsplit(server.address), threading.Event(), threading.Event()
        state = server.state
        server.state = lambda: (begun.set(), gone.wait(PATIENCE), state() + "x" * (1 << 24))[2]
        client = socket.create_connection((place.hostname, place.port))
        client.sendall(f"GET {place.path}state HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert begun.wait(PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        gone.set()
        server.state = state
        assert ask(server, "state")[0] == 200
    assert capfd.readouterr().err == ""
