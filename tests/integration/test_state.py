# SPDX-License-Identifier: Apache-2.0
"""The state database, as a daemon leaves and finds it. The fake backend keeps nothing, so what is asked here is the
records and what becomes of them."""

import json
import signal
import sqlite3

import pytest
from boxlib import ApiError, Boxd


@pytest.fixture
def fake():
    daemon = Boxd("--backend", "fake")
    yield daemon
    daemon.close()


def records(daemon):
    """What the database says: {session id: record}."""
    db = sqlite3.connect(daemon.state / "state.db")
    try:
        return {name: json.loads(text) for name, text in db.execute("SELECT id, record FROM session")}
    finally:
        db.close()


def end(daemon, signo):
    daemon.process.send_signal(signo)
    return daemon.process.wait(20)


def test_fake_backend_runs_commands(fake):
    client = fake.client()
    client.new("s")
    assert client.sh("s", "echo hi; exit 3")["exit_code"] == 3
    assert client.get("s")["backend_name"] == "fake"


def test_record_is_there_when_the_session_is_acknowledged(fake):
    client = fake.client()
    client.new("s", env={"A": "1"}, cpus=0.5)
    end(fake, signal.SIGKILL)
    record = records(fake)["s"]
    assert record["spec"]["cpus"] == 0.5
    assert record["spec"]["env"] == {"A": "1"}
    assert record["state"]["backend"] == "fake"
    fake.start()
    assert fake.client().ps() == []  # this backend has lost it
    assert "cannot be taken over" in fake.log()
    end(fake, signal.SIGKILL)
    assert records(fake) == {}


def test_deleted_session_leaves_no_record(fake):
    client = fake.client()
    client.new("a")
    client.new("b")
    client.rm("a")
    end(fake, signal.SIGKILL)
    assert list(records(fake)) == ["b"]


def test_orderly_end_leaves_no_record(fake):
    fake.client().new("s")
    assert end(fake, signal.SIGTERM) == 0
    assert records(fake) == {}


def test_usr2_leaves_sessions_to_the_next_daemon(fake):
    fake.client().new("s")
    assert end(fake, signal.SIGUSR2) == 0
    assert list(records(fake)) == ["s"]
    assert not fake.sock.exists()
    fake.start()


def test_database_belongs_to_the_daemon_alone(fake):
    assert (fake.state / "state.db").stat().st_mode & 0o777 == 0o600


def test_damaged_database_does_not_stop_the_daemon(fake):
    fake.client().new("s")
    end(fake, signal.SIGUSR2)  # after a kill the log beside it would repair it
    (fake.state / "state.db").write_bytes(b"junk" * 4096)
    fake.start()
    assert "state.db.damaged" in fake.log()
    assert (fake.state / "state.db.damaged").read_bytes().startswith(b"junk")
    fake.client().new("s")


def test_database_of_a_newer_daemon_is_left_alone(fake):
    end(fake, signal.SIGTERM)
    db = sqlite3.connect(fake.state / "state.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = (fake.state / "state.db").read_bytes()
    with pytest.raises(RuntimeError, match="newer boxd"):
        fake.start()
    assert (fake.state / "state.db").read_bytes() == before


def test_host_paths_are_refused_whatever_the_backend(fake):
    client = fake.client()
    for path in ("/etc/ssl", "/", "/var", "/srv/../root"):
        with pytest.raises(ApiError, match="blocked for security|outside allowed_mount_roots|without '.', '..'"):
            client.new("s", host_path=path)
