# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, and a load generator that never takes a failure for a time."""

import os
import socket
import sys
import threading
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BOX_BUILD", TREE / "build"))
sys.path.insert(0, str(TREE / "tools" / "bench.d"))

from load import Load, LoadError  # noqa: E402
from peers import Peer  # noqa: E402
from stats import Bar, Series, percentile, table  # noqa: E402

ECHO = ("/bin/echo", "hello")


def test_percentiles_are_values_that_were_measured():
    values = list(range(1, 101))
    assert percentile(values, 0.99) == 99
    assert percentile([7], 0.99) == 7
    assert percentile([3, 1, 2], 0.0) == 1


def test_a_series_counts_every_round():
    series = Series("x")
    series.add([1000, 3000])
    series.add([2000])
    assert series.summary() == {"n": 3, "p10_us": 1.0, "p50_us": 2.0, "p99_us": 3.0, "min_us": 1.0,
                                "rounds_p50_us": [2.0, 2.0]}


@pytest.mark.parametrize(
    "bar, verdict",
    [
        (Bar("a", "≤ 2×", measured=2.0, limit=2.0), "ok"),
        (Bar("a", "≤ 2×", measured=2.5, limit=2.0), "MISSED by 25 %"),
        (Bar("a", "≥ 20×", measured=25.0, limit=20.0, at_least=True), "ok"),
        (Bar("a", "≥ 20×", measured=15.0, limit=20.0, at_least=True), "MISSED by 25 %"),
        (Bar("a", "≥ 20×", limit=20.0, why="docker exec not installed"), "not measured: docker exec not installed"),
        (Bar("a", "works", why="no answer", broken=True), "FAILED: no answer"),
    ],
)
def test_a_bar_says_by_how_much_it_was_missed(bar, verdict):
    assert bar.verdict == verdict


def test_a_table_is_as_wide_as_its_widest_cell():
    assert table(["a", "b"], [["wide", "1"]]) == ["a     b", "----  -", "wide  1"]


@pytest.fixture
def load():
    generator = Load([str(BUILD / "tests" / "bench" / "bench-load")], None)
    yield generator
    generator.close()


def test_each_start_has_a_time(load):
    times = load.ask("spawn", 3, *ECHO)
    assert len(times) == 3 and all(t > 0 for t in times)


def test_bare_echoes_have_times(load):
    assert len(load.ask("socketpair", 5, 1)) == 5
    assert len(load.ask("socketpair", 5, 4)) == 5
    with pytest.raises(LoadError, match="at most"):
        load.ask("socketpair", 5, 9)
    assert len(load.ask("cat-bulk", 5)) == 1


@pytest.mark.parametrize(
    "words, reason",
    [
        (("spawn", 1, "/bin/echo", "other"), "printed 'other"),
        (("spawn", 1, "/bin/false"), "wait status 256"),
        (("spawn", 1, "/nonexistent"), "start '/nonexistent'"),
        (("spawn", 1), "too few words"),
        (("spawn", "x", *ECHO), "is no count"),
        (("dance", 1, *ECHO), "unknown command"),
        (("exec", 1, "/nonexistent", "s"), "connect '/nonexistent'"),
        (("rpc", "/nonexistent", "i", "{}"), "connect '/nonexistent'"),
        (("relay", "x", "/nonexistent", "i", "w", "/t"), "is no count"),
        (("relay", 1, "/nonexistent", "i", "w"), "too few words"),
    ],
)
def test_what_fails_is_no_time(load, words, reason):
    with pytest.raises(LoadError, match=reason):
        load.ask(*words)
    assert load.ask("spawn", 1, *ECHO)  # and the next is served


@pytest.mark.parametrize(
    "answer, reason",
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "boxd answered: HTTP/1.1 500"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"stdout":"bye"}\n', "exec answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed the connection early"),
    ],
)
def test_a_wrong_answer_of_boxd_is_no_time(load, tmp_path, answer, reason):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(LoadError, match=reason):
            load.ask("exec", 1, tmp_path / "s", "warm")
        thread.join()


def test_silence_ends_the_wait(load):
    with pytest.raises(LoadError, match="no answer within 0.2 s"):
        load.ask("spawn", 1, "/bin/sleep", "60", timeout=0.2)
    with pytest.raises(LoadError, match="is gone"):
        load.ask("spawn", 1, *ECHO)


def test_a_peer_that_fails_is_out_and_says_why(load):
    peer = Peer("x", load, ["/bin/false"])
    assert peer.measure(1) is None
    assert "wait status 256" in peer.summary()["status"]
    assert peer.measure(1) is None
