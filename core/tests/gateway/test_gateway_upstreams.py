"""Upstreams behind TLS and behind a forward proxy."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess

import pytest

from .conftest import RawUpstream, completion, reply_with, whole

NO_PROXY = ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY",
            "all_proxy", "ALL_PROXY")  # fmt: skip


@pytest.fixture
def proxies(monkeypatch):
    """Sets the environment's proxy for a scheme, and no other."""
    for name in NO_PROXY:
        monkeypatch.delenv(name, raising=False)
    return lambda scheme, url: monkeypatch.setenv(f"{scheme}_proxy", url)


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """A certificate for `localhost` and `api.example` that the gateway trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("the `openssl` command is needed to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = "subjectAltName=DNS:localhost,DNS:api.example"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", names, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


@pytest.fixture
async def secure_upstream(certificate):
    upstream = RawUpstream()
    tasks = set()

    def connected(reader, writer):
        task = asyncio.ensure_future(upstream.serve(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=certificate)
    upstream.url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    yield upstream
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_tls(site, secure_upstream):
    secure_upstream.handler = reply_with(whole(completion("safe")))
    site.open(upstream=f"{secure_upstream.url}/v1")
    for _ in range(2):
        assert (await site.ask())[0] == 200
    assert [call.text for call in await site.calls()] == ["safe", "safe"]


async def test_a_certificate_that_nobody_trusts(site, secure_upstream, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    secure_upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{secure_upstream.url}/v1")
    status, body, _ = await site.ask()
    assert status == 502
    assert b"certificate" in body.lower()
    assert secure_upstream.received == []


async def test_a_plain_call_through_a_proxy(make_site, upstream, proxies):
    proxies("http", upstream.url.replace("//", "//user:pw@"))
    site = await make_site()
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream="http://api.example/v1")
    assert (await site.ask())[0] == 200
    (received,) = upstream.received
    assert received.path == "http://api.example/v1/chat/completions"
    assert received.headers["host"] == "api.example"
    assert received.headers["proxy-authorization"] == "Basic dXNlcjpwdw=="
    assert (await site.call()).target == "http://api.example/v1/chat/completions"


async def test_loopback_upstreams_need_no_proxy(make_site, upstream, proxies):
    proxies("http", "http://127.0.0.1:9")
    site = await make_site()
    upstream.handler = reply_with(whole(completion()))
    site.open(upstream=f"{upstream.url}/v1")
    assert (await site.ask())[0] == 200


@pytest.mark.parametrize("allows", [True, False])
async def test_a_tls_call_through_a_proxy(make_site, secure_upstream, proxies, allows):
    asked = []

    async def pipe(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def tunnel(reader, writer):
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        if not allows:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        port = int(secure_upstream.url.rsplit(":", 1)[1])
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(
            pipe(reader, far_writer), pipe(far_reader, writer), return_exceptions=True
        )

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    proxies("https", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    site = await make_site()
    secure_upstream.handler = reply_with(whole(completion("far")))
    site.open(upstream="https://api.example/v1")
    status, body, _ = await site.ask()
    call = await site.call()
    await site.gateway.close()
    proxy.close()
    assert asked == [b"CONNECT api.example:443 HTTP/1.1"]
    if allows:
        assert (status, call.text) == (200, "far")
    else:
        assert status == 502
        assert b"407" in body
