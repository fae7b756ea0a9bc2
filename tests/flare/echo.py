"""Sites that measure. One echoes 64 KB in place of a method, over FLARE and over bare gRPC in
turns, in one and the same process; others count what a run asks of partners, and wait for all of
it. Only the benchmark's own sites may load them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc as rpc
import psutil
import torch
from nvflare.collab import collab

from interlace.boundary.kinds import Embedding, Metric
from interlace.engines import sites
from interlace.party import PassiveSide, Peer, operation
from interlace.sites.job import Driver, Site

SETTINGS = "echo.json"  # beside the driver's party file: what to measure, then what was found
SHAPE = (256, 64)  # float32: 64 KB


class EchoSide(PassiveSide):
    """Gives back what came."""

    @operation
    def echo(self, values: Embedding) -> Embedding:
        """The same numbers."""
        return values * 1

    @operation
    def size(self) -> Metric:
        """How large this process is."""
        return size()


def size() -> dict[str, int]:
    """Threads and memory of this process."""
    own = psutil.Process()
    return {"threads": own.num_threads(), "kilobytes": own.memory_info().rss // 1024}


class EchoSite(Site):
    """A site whose run is the measurement."""

    @collab.init
    def start(self) -> None:
        """As any site, with one more side to open."""
        super().start()
        if self.answering is not None:
            self.answering._sides[f"{EchoSide.__module__}:{EchoSide.__qualname__}"] = EchoSide

    @collab.publish
    def drive(self) -> str:
        """Measure."""
        return Measuring(self, self._carry()).go()


class Measuring(Driver):
    """Echoes in turns over both ways, then many times over FLARE alone."""

    def _run(self) -> None:
        file = self.site.folder.root / SETTINGS
        asked = json.loads(file.read_text())
        party, name = self.site.party(), self.contract.passive[0]
        self.engine.open("echo", EchoSide, name, party.name)
        peer = Peer(party, name, self.engine, "echo")
        x = torch.rand(SHAPE)

        def flare() -> None:
            got = peer.ask(EchoSide.echo, x)
            assert got.shape == x.shape

        bare = Bare(self.site.folder.kit / "startup", asked["port"])

        def grpc() -> None:
            got = torch.frombuffer(bytearray(bare.call(x.numpy().tobytes())), dtype=x.dtype)
            assert got.shape == (x.numel(),)

        found: dict[str, Any] = {"flare": [], "grpc": []}
        for block in range(asked["blocks"]):
            for way, call in (("flare", flare), ("grpc", grpc)):
                for turn in range(asked["turns"] + 20):
                    began = time.perf_counter()
                    call()
                    if turn >= 20:
                        found[way].append((block, time.perf_counter() - began))
        bare.close()
        found["sizes"] = []
        for done in range(asked["messages"] + 1):
            if done % max(1, asked["messages"] // 20) == 0:
                found["sizes"].append(
                    {"messages": done, "driver": size(), "partner": peer.ask(EchoSide.size)}
                )
            flare()
        (self.site.folder.root / "found.json").write_text(json.dumps(found))


class CountingSite(Site):
    """A site that counts by operations in how many round trips it asked them."""

    @collab.publish
    def drive(self) -> str:
        """Carry out the run, and leave what was counted in its folder."""
        trips: Counter[str] = Counter()
        ask = sites.Sites._ask

        def counted(engine: sites.Sites, party: str, messages: Any) -> Any:
            trips[" ".join(m.operation for m in messages)] += 1
            return ask(engine, party, messages)

        sites.Sites._ask = counted  # type: ignore[method-assign]
        outcome = Driver(self, self._carry()).go()
        (self.run.path / "trips.json").write_text(json.dumps(trips))
        return outcome


class WaitingSite(CountingSite):
    """A site that waits for whatever it asks, one thing after the other."""

    @collab.publish
    def drive(self) -> str:
        """Carry out the run so."""

        def start(peer: Peer, *asked: Any) -> Any:
            answer = peer.ask(*asked)
            return lambda: answer

        Peer.post = Peer.ask  # type: ignore[method-assign,assignment]
        Peer.start = start  # type: ignore[method-assign,assignment]
        return super().drive()


class Bare:
    """A client of the bare gRPC server, with mutual TLS by the kit's certificate."""

    def __init__(self, startup: Path, port: int) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)  # this thread has none
        self.loop.run_until_complete(self._connect(startup, port))

    async def _connect(self, startup: Path, port: int) -> None:
        files = ("rootCA.pem", "client.key", "client.crt")
        credentials = rpc.ssl_channel_credentials(*((startup / f).read_bytes() for f in files))
        self.channel = rpc.aio.secure_channel(f"localhost:{port}", credentials)
        self.echo = self.channel.unary_unary("/bare.Bare/Echo")

    def call(self, blob: bytes) -> bytes:
        """There and back."""
        return self.loop.run_until_complete(self._call(blob))

    async def _call(self, blob: bytes) -> bytes:
        answer: bytes = await self.echo(blob)
        return answer

    def close(self) -> None:
        """End the connection."""
        self.loop.run_until_complete(self.channel.close())


async def serve(startup: Path, port: int) -> None:
    """The bare server, in a process of its own."""
    key, certificate = ((startup / f"server.{end}").read_bytes() for end in ("key", "crt"))
    root = (startup / "rootCA.pem").read_bytes()
    credentials = rpc.ssl_server_credentials([(key, certificate)], root, True)

    async def echo(request: bytes, _context: Any) -> bytes:
        return (torch.frombuffer(bytearray(request), dtype=torch.float32) * 1).numpy().tobytes()

    handler = rpc.unary_unary_rpc_method_handler(echo)
    server = rpc.aio.server()
    server.add_generic_rpc_handlers(
        (rpc.method_handlers_generic_handler("bare.Bare", {"Echo": handler}),)
    )
    server.add_secure_port(f"localhost:{port}", credentials)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(serve(Path(os.environ["ECHO_STARTUP"]), int(os.environ["ECHO_PORT"])))
