"""A Python program that knows nothing of us, started as `python agent.py` in an attempt's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from lightning_core.instrument import child_environment
from lightning_core.testing import ScriptedServer

CALL = """
import openai

def call(text="hello", **options):
    with openai.OpenAI(api_key="k", max_retries=0, **options) as client:
        return client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": text}]
        ).choices[0].message.content
"""


@pytest.fixture
def gateway():
    with ScriptedServer.in_thread() as server:
        yield server


class SpansAndCalls:
    """A server in the place of gateway and API: keeps spans and the labels of calls."""

    def __init__(self, status: int = 200):
        self.spans: list[dict] = []
        self.labels: list[dict[str, list[str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                reply = {"stored": 1}
                if self.path == "/api/v1/attempts/r.1/spans":
                    assert self.headers["authorization"] == "Bearer tok"
                    outer.spans += body["spans"]
                else:
                    outer.labels.append(parse_qs(self.headers["x-lightning-labels"]))
                    message = {"role": "assistant", "content": "hi"}
                    reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
                    reply["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
                content = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()

    def by_name(self) -> dict[str, dict]:
        """The last word on each span."""
        return {span["name"]: span for span in self.spans}


def run(tmp_path, gateway_url, code, *, python=sys.executable, base=None, arguments=(), **options):
    """Run `code` as a file; gives what it printed, as JSON where it is."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "PYTHON"))}
    file = tmp_path / "agent.py"
    file.write_text(CALL * options.pop("sdk", True) + textwrap.dedent(code))
    done = subprocess.run(
        [python, *arguments, str(file)],
        env=child_environment(
            {**environ, **(base or {})},
            gateway=gateway_url,
            session="tok",
            attempt="r.1",
            span="parent",
            adapters=options.pop("adapters", {}),
            base_url=f"{gateway_url}/s/tok/v1",
            set_key=options.pop("set_key", False),
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == options.get("stderr", "")
    return done.stdout.strip()


def test_its_calls_are_rerouted_and_tagged(tmp_path, gateway):
    run(tmp_path, gateway.url, "print(call())")
    (request,) = gateway.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-lightning-session"] == "tok"
    assert request.headers["x-lightning-target"] == "https://api.openai.com/v1/chat/completions"
    assert parse_qs(request.headers["x-lightning-labels"]) == {"span": ["parent"]}


def test_an_explicit_address_is_rerouted(tmp_path, gateway):
    run(tmp_path, gateway.url, "call(base_url='http://127.0.0.1:9/v1')")
    (request,) = gateway.requests
    assert request.headers["x-lightning-target"] == "http://127.0.0.1:9/v1/chat/completions"


def test_the_sdk_sees_the_users_address_and_its_children_see_ours(tmp_path, gateway):
    code = """
    import json, os, subprocess, sys
    show = "import os; print(os.environ['OPENAI_BASE_URL'])"
    child = subprocess.run([sys.executable, "-S", "-c", show], capture_output=True, text=True)
    call()
    print(json.dumps([os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_BASE"), child.stdout.strip()]))
    """
    printed = run(tmp_path, gateway.url, code, base={"OPENAI_BASE_URL": "https://llm.example/v1"})
    assert json.loads(printed) == ["https://llm.example/v1", None, f"{gateway.url}/s/tok/v1"]
    (request,) = gateway.requests
    assert request.headers["x-lightning-target"] == "https://llm.example/v1/chat/completions"


def test_without_a_key_the_sdk_can_be_used_where_the_run_names_a_model(tmp_path, gateway):
    run(tmp_path, gateway.url, "openai.OpenAI().models.list()", set_key=True)
    assert gateway.requests[0].path == "/v1/models"
    assert gateway.requests[0].headers["x-lightning-session"] == "tok"


def test_without_the_sdk_a_program_finds_the_gateway_in_the_environment(tmp_path, gateway):
    code = """
    import os, urllib.request
    urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/models").read()
    """
    run(tmp_path, gateway.url, code, sdk=False)
    assert gateway.requests[0].path == "/s/tok/v1/models"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess, sys; subprocess.run([sys.executable, '-c', SOURCE], check=True)",
        "import os, sys; os.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-c', SOURCE])",
        "import multiprocessing as m; p = m.get_context('spawn').Process(target=call); p.start(); p.join()",
        "import multiprocessing as m; p = m.get_context('fork').Process(target=call); p.start(); p.join()",
        "import threading; t = threading.Thread(target=call); t.start(); t.join()",
        "import concurrent.futures as f; f.ThreadPoolExecutor().submit(call).result()",
        "import os; pid = os.fork()\n    if pid == 0:\n        call(); os._exit(0)\n    os.waitpid(pid, 0)",
    ],
    ids=["subprocess", "spawnv", "mp-spawn", "mp-fork", "thread", "pool", "fork"],
)
def test_what_it_starts_belongs_to_the_attempt_too(tmp_path, gateway, code):
    source = f"SOURCE = {CALL + 'call()'!r}\n"
    run(tmp_path, gateway.url, f"{source}if __name__ == '__main__':\n    {code}\n")
    (request,) = gateway.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-lightning-session"] == "tok"
    assert parse_qs(request.headers["x-lightning-labels"]) == {"span": ["parent"]}


def test_another_sitecustomize_still_runs(tmp_path, gateway):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = __file__\n")
    code = "import sys, sitecustomize; call(); print(mine == sitecustomize.__file__, sys.path[1])"
    printed = run(tmp_path, gateway.url, code, base={"PYTHONPATH": str(folder)})
    assert printed == f"True {folder}"
    assert len(gateway.requests) == 1


def test_a_sitecustomize_that_lacks_a_module_is_reported_as_python_does(tmp_path, gateway):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import lightning_nowhere\n")
    file = tmp_path / "plain.py"
    file.write_text("print('ran')")
    plain = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    printed = run(
        tmp_path, gateway.url, "print('ran')", sdk=False,
        base={"PYTHONPATH": str(folder)}, stderr=plain.stderr,
    )  # fmt: skip
    assert printed == plain.stdout.strip() == "ran"
    assert "lightning_nowhere" in plain.stderr


def test_start_up_imports_next_to_nothing(tmp_path, gateway):
    code = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    plain = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    printed = run(tmp_path, gateway.url, code, sdk=False)
    added = set(json.loads(printed)) - set(json.loads(plain.stdout))
    assert {m for m in added if not m.startswith("_lightning_core_instrument")} <= {
        "__future__", "sitecustomize",
    }  # fmt: skip
    assert "openai" not in added


@pytest.fixture
def bare_python(tmp_path):
    """An interpreter that has the openai SDK and not lightning_core."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = next(home.glob("lib/python*/site-packages"), home / "Lib" / "site-packages")
    # Linked one by one: the folder as a whole would bring lightning_core's own .pth file along.
    for entry in os.listdir(sysconfig.get_path("purelib")):
        if "lightning" not in entry and not entry.endswith(".pth"):
            os.symlink(os.path.join(sysconfig.get_path("purelib"), entry), site / entry)
    return str(python)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_an_environment_without_lightning_core_is_instrumented_too(tmp_path, gateway, bare_python):
    code = """
    import importlib.util, json
    call()
    print(json.dumps([importlib.util.find_spec(n) is not None for n in ("lightning_core", "openai")]))
    """
    adapters = {"openai": "lightning_langgraph:LangGraphAdapter"}
    printed = run(tmp_path, gateway.url, code, python=bare_python, adapters=adapters)
    assert json.loads(printed) == [False, True]
    (request,) = gateway.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-lightning-session"] == "tok"


ADAPTER = """
from contextlib import contextmanager
from lightning_core.instrument import span

class Mine:
    name = "mine"
    distribution = "lightning-fakes"

    @contextmanager
    def instrument(self):
        import fake_framework
        original = fake_framework.work
        def work(call):
            with span("agent", "worker", {"n": 1}):
                return original(call)
        fake_framework.work = work
        yield
        fake_framework.work = original
"""


@pytest.fixture
def framework(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "fake_framework.py").write_text("def work(call):\n    return call()\n")
    (folder / "fake_adapter.py").write_text(ADAPTER)
    return {"PYTHONPATH": str(folder)}


ENTERED = {"fake_framework": "fake_adapter:Mine"}


def test_an_adapter_is_entered_when_its_framework_is_imported(tmp_path, framework):
    code = """
    import sys
    assert "fake_adapter" not in sys.modules
    import fake_framework
    fake_framework.work(call)
    """
    with SpansAndCalls() as server:
        run(tmp_path, server.url, code, base=framework, adapters=ENTERED)
    (labels,) = server.labels
    worker = server.by_name()["worker"]
    assert labels == {"span": [worker["id"]], "agent": ["worker"]}
    assert worker["parent_id"] == "parent"
    assert worker["attributes"] == {"n": 1}
    assert worker["ended_at"] is not None


def test_another_release_of_a_framework_is_left_alone_and_said_while_calls_are_recorded(
    tmp_path, framework
):
    for name, version, more in (
        ("lightning_fakes", "1.0", "Requires-Dist: fake-framework<2 ; extra == 'instruments'\n"),
        ("fake_framework", "2.1", ""),
    ):
        folder = tmp_path / "lib" / f"{name}-{version}.dist-info"
        folder.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(head + more)
    told = (
        "adapter `mine` of `lightning-fakes` is for `fake-framework<2` but 2.1 is installed;"
        ' run `pip install "lightning-fakes[instruments]"`; until then its agents\' calls are recorded without labels\n'
    )
    code = """
    import fake_framework
    fake_framework.work(call)
    """
    with SpansAndCalls() as server:
        run(tmp_path, server.url, code, base=framework, adapters=ENTERED, stderr=told)
    assert server.labels == [{"span": ["parent"]}]


def test_spans_are_posted_however_a_child_of_it_ends(tmp_path, framework):
    code = """
    import fake_framework, multiprocessing

    def job():
        fake_framework.work(int)

    if __name__ == "__main__":
        fake_framework.work(lambda: None)
        for method in ("fork", "spawn"):
            process = multiprocessing.get_context(method).Process(target=job)
            process.start()
            process.join()
            assert process.exitcode == 0
    """
    with SpansAndCalls() as server:
        run(tmp_path, server.url, code, base=framework, adapters=ENTERED, sdk=False)
    ended = {span["id"] for span in server.spans if span["ended_at"] is not None}
    assert len(ended) == 3


def test_the_open_spans_of_a_killed_program_are_known(tmp_path, framework):
    code = """
    import fake_framework, os, signal, sys

    def hang():
        sys.stdin.read()

    fake_framework.work(hang)
    """
    with SpansAndCalls() as server:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=child_environment(
                {**environ, **framework}, gateway=server.url, session="tok", attempt="r.1",
                span=None, adapters=ENTERED, base_url=f"{server.url}/s/tok/v1", set_key=False,
            ),
            stdin=subprocess.PIPE,
        )  # fmt: skip
        until = time.monotonic() + 60
        while not server.spans and time.monotonic() < until:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    assert server.by_name()["worker"]["ended_at"] is None


def test_a_server_that_is_gone_is_said_once_and_does_no_harm(tmp_path, framework):
    code = """
    import fake_framework, time
    for _ in range(5):
        fake_framework.work(lambda: time.sleep(0.3))
    print("done")
    """
    file = tmp_path / "agent.py"
    file.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(file)],
        env=child_environment(
            {**os.environ, **framework}, gateway="http://127.0.0.1:9", session="tok", attempt="r.1",
            span=None, adapters=ENTERED, base_url="http://127.0.0.1:9/s/tok/v1", set_key=False,
        ),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "done\n"
    assert done.stderr.count("lightning-core:") == 1
    assert "tok" not in done.stderr


def test_a_program_that_uses_our_functions_labels_its_calls(tmp_path):
    code = """
    from lightning_core.instrument import label, span
    from openai import OpenAI

    with span("agent", "writer"), label(step="1"), OpenAI(api_key="k") as client:
        client.chat.completions.create(model="m", messages=[])
    """
    with SpansAndCalls() as server:
        run(tmp_path, server.url, code, sdk=False)
    writer = server.by_name()["writer"]
    assert server.labels == [{"span": [writer["id"]], "agent": ["writer"], "step": ["1"]}]
    assert len(server.spans) <= 2


def test_an_adapter_that_breaks_is_said_and_the_program_runs(tmp_path, gateway, framework):
    broken = tmp_path / "lib" / "broken_adapter.py"
    broken.write_text("1 / 0\n")
    said = (
        "lightning-core: the hook on `fake_framework` failed, its calls are not labelled:"
        " ZeroDivisionError: division by zero\n"
    )
    printed = run(
        tmp_path, gateway.url, "import fake_framework\nprint(call())", base=framework,
        adapters={"fake_framework": "broken_adapter:Mine"}, stderr=said,
    )  # fmt: skip
    assert printed == "hello"
