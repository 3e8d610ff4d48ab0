"""The watchdog over vLLM: on real HTTP servers, without verl."""

import http.server
import itertools
import os
import subprocess
import sys
import threading

import pytest

from lightning_core.engine import Endpoint
from lightning_verl.trainer.watchdog import Watchdog


@pytest.fixture
def replica():
    """A server whose health is each status of `answers` in turn."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            self.send_response(next(server.answers))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.asked = itertools.repeat(200), []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def endpoint(server):
    return Endpoint(base_url=f"http://127.0.0.1:{server.server_port}/v1", model="m")


def until(condition):
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not come to that")


def test_a_replica_that_is_ill_for_several_looks_has_died_and_is_named_once(replica):
    told = []
    with Watchdog(told.append, seconds=0.01) as watchdog:
        watchdog.watch((endpoint(replica),))
        until(lambda: len(replica.asked) > 5)
        assert told == []
        replica.answers = itertools.repeat(503)
        until(lambda: told)
    (fault,) = told
    assert f":{replica.server_port}/health" in fault
    assert "503" in fault
    assert "--resume" in fault
    assert set(replica.asked) == {"/health"}


@pytest.mark.parametrize("known", [True, False])
def test_why_it_died_is_told_where_it_is_known(replica, known):
    def why():
        if not known:
            raise RuntimeError("Ray is gone too")
        return "killed for memory"

    told = []
    replica.answers = itertools.repeat(503)
    with Watchdog(told.append, seconds=0.01) as watchdog:
        watchdog.watch((endpoint(replica),), why)
        until(lambda: told)
    assert "503" in told[0]
    assert ("Ray says: killed for memory" in told[0]) == known


ACTORS = """
import os
import ray
from lightning_verl.ray_errors import why_died

class Actor:
    def end(self):
        os._exit(3)

ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
lives, dies = ray.remote(Actor).remote(), ray.remote(Actor).remote()
print("told", why_died(ray, [lives, dies]))
dies.end.remote()
try:
    ray.get(dies.end.remote())
except ray.exceptions.RayActorError:
    pass
print("told", why_died(ray, [lives, dies]))
"""


@pytest.mark.slow
def test_why_an_actor_died_is_what_ray_has_of_it():
    done = subprocess.run(
        [sys.executable, "-c", ACTORS], capture_output=True, text=True, timeout=200,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = (line[5:] for line in done.stdout.splitlines() if line.startswith("told "))
    assert before == "None"
    assert "Worker exit type" in after
    assert "SYSTEM_ERROR" in after
    assert len(after) <= 400


def test_a_replica_that_comes_to_itself_has_not_died(replica):
    told = []
    replica.answers = itertools.cycle([503, 503, 200])
    with Watchdog(told.append, seconds=0.01) as watchdog:
        watchdog.watch((endpoint(replica),))
        until(lambda: len(replica.asked) > 20)
    assert told == []


def test_nothing_is_looked_after_before_there_is_a_replica():
    told = []
    with Watchdog(told.append, seconds=0.01):
        threading.Event().wait(0.1)
    assert told == []
