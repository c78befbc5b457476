"""The whole cluster: database, upstream model and nodes, in their networks."""

import asyncio
import pathlib
import subprocess
import sys
import time

import aiohttp

import network
import nodes as node_processes
from database import Database
from ledger import Key, Project
from nodes import Node, Server

HERE = pathlib.Path(__file__).parent


class Cluster:
    """`count` nodes over one PostgreSQL, or one node with a store in its data folder."""

    def __init__(self, folder: pathlib.Path, binary: pathlib.Path, count: int, skew: int, store: str = "postgres") -> None:
        self.folder, self.binary = folder, binary
        # What each node is started with.
        self.programs = dict.fromkeys(range(count), binary)
        self.models = folder / "models"
        skews = [0, skew, -skew]
        self.nodes = [Node(number, folder, skews[number % 3]) for number in range(count)]
        self.database = Database(folder / "postgres", network.root_address("database")) if store == "postgres" else None
        self.mock: subprocess.Popen[str] | None = None
        self.admin: Key | None = None

    async def start(self) -> None:
        """Starts everything. The first node creates the store and the pepper, the others get a copy of it."""
        network.create(range(len(self.nodes)))
        if self.database:
            await asyncio.to_thread(self.database.create)
        words = [sys.executable, str(HERE / "mock_model.py"), network.root_address("upstream"), "0"]
        self.mock = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.mock.stdout
        node_processes.write_model(self.models, int(self.mock.stdout.readline()))
        first, *others = self.nodes
        self.start_server(first.server)
        await self.wait_ready(first.server, 120)
        for node in others:
            node.server.share_pepper(first.server)
            self.start_server(node.server)
        await asyncio.gather(*(self.wait_ready(node.server, 120) for node in others))
        secret = (first.server.folder / "admin.key").read_text().strip()
        self.admin = Key("admin", "admin", secret, Project("default", "default"))

    def start_server(self, server: Server) -> None:
        server.start(self.programs[server.node], self.models, self.database)

    async def wait_ready(self, server: Server, seconds: float) -> float:
        """Waits until a server is ready. Returns the seconds that it took."""
        began = time.monotonic()
        limit = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=limit) as session:
            while True:
                try:
                    async with session.get(server.base + "/readyz") as response:
                        if response.status == 200:
                            return time.monotonic() - began
                except (TimeoutError, aiohttp.ClientError, OSError):
                    pass
                if not server.alive():
                    raise RuntimeError(f"{server.name} ended with {server.process and server.process.returncode}; see {server.log}:\n{tail(server.log)}")
                if time.monotonic() - began > seconds:
                    raise RuntimeError(f"{server.name} is not ready after {seconds} s; see {server.log}:\n{tail(server.log)}")
                await asyncio.sleep(0.05)

    async def clock_errors(self) -> list[float]:
        """How far the clock of each server's process is from the true time, by the `Date` of its responses, in seconds."""
        from email.utils import parsedate_to_datetime

        errors = []
        async with aiohttp.ClientSession() as session:
            for node in self.nodes:
                async with session.get(node.server.base + "/healthz") as response:
                    errors.append(parsedate_to_datetime(response.headers["Date"]).timestamp() - time.time())
        return errors

    def stop(self) -> None:
        """Ends everything at once."""
        for node in self.nodes:
            for server in node.servers():
                server.kill()
        if self.mock:
            self.mock.kill()
        if self.database:
            self.database.stop()


def tail(path: pathlib.Path, lines: int = 12) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
