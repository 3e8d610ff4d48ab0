"""The watchdog over vLLM: on real HTTP servers, without verl."""

import http.server
import itertools
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
