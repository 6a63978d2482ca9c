# SPDX-License-Identifier: Apache-2.0
"""10,000 HTTP execs one after the other, and 200 at a time, without one error."""

import subprocess
import threading

from boxlib import BUILD, Boxd

SEQUENTIAL, AT_ONCE, ROUNDS = 10_000, 200, 3


def test_ten_thousand_execs_in_a_row():
    """Over one connection, by the load generator of the benchmarks: it checks every answer, and costs little itself."""
    daemon = Boxd()
    try:
        api = daemon.client()
        api.new("s")
        for _ in range(100):
            api.x("s", "true")
        before = daemon.rss_kb()
        load = subprocess.run([BUILD / "tests/bench/bench-load"], input=f"exec\t{SEQUENTIAL}\t{daemon.sock}\ts\n",
                              capture_output=True, text=True, timeout=600, check=True).stdout.split()
        assert load[0] == "ok" and len(load) == 1 + SEQUENTIAL, load[:20]
        assert daemon.rss_kb() - before < 4096, "every exec leaves something behind"
        assert api.get("s")["execs"] == 0 and api.call("GET", "/v1/sessions/s/execs")["execs"] == []
        assert api.call("GET", "/v1/errors")["errors"] == []
        api.close()
    finally:
        daemon.close()


def test_two_hundred_execs_at_once():
    daemon = Boxd()
    try:
        api = daemon.client()
        sessions = [f"s{n}" for n in range(8)]
        for s in sessions:
            api.new(s, pids_limit=512)
        barrier, wrong = threading.Barrier(AT_ONCE), []

        def work(n):
            client = daemon.client(timeout=300)
            barrier.wait()
            for i in range(ROUNDS):
                try:
                    r = client.sh(sessions[n % len(sessions)], f"sleep 0.2; echo {n}.{i}")
                    if (r["outcome"], r["stdout"]) != ("exited", f"{n}.{i}\n"):
                        wrong.append(r)
                except Exception as e:  # noqa: BLE001: whatever it is, it counts
                    wrong.append(repr(e))
            client.close()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(AT_ONCE)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []
        assert api.call("GET", "/v1/errors")["errors"] == []
        api.close()
    finally:
        daemon.close()
