"""The reference: the least that aiohttp needs to pass requests on. It records nothing and looks at nothing."""

from __future__ import annotations

import argparse

import aiohttp
from aiohttp import web

from bench import child

_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


async def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", required=True, help="the upstream's root")
    upstream = parser.parse_args().upstream
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        body = await request.read()
        async with client.request(
            request.method, upstream + request.path_qs, data=body, headers=headers
        ) as reply:
            kept = {
                k: v
                for k, v in reply.headers.items()
                if k.lower() not in _HOP or k.lower() == "content-length"
            }
            response = web.StreamResponse(status=reply.status, headers=kept)
            await response.prepare(request)
            async for chunk in reply.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    runner = web.ServerRunner(web.Server(handle, access_log=None, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    await child.serve({"port": runner.addresses[0][1]})
    await runner.cleanup()
    await client.close()


if __name__ == "__main__":
    child.run(main)
