"""Keys that were revoked, rotated, archived or have expired: each node must refuse them one second later, and for good."""

import asyncio
import time

from client import Answer, Clients
from ledger import Key, Ledger
from nodes import Server

# From the acknowledgement on, in seconds.
ALLOWED = 1.0
WATCHED = 2.5
PAUSE = 0.1
# Secrets that are watched closely at the same time; each costs a request per node and pause.
CLOSELY = 4


class Prober:
    """Sends dead secrets to all servers."""

    def __init__(self, ledger: Ledger, clients: Clients) -> None:
        self.ledger, self.clients = ledger, clients
        self.dead: list[Key] = []
        self.watching = 0
        self.greatest_lag = 0.0
        self.probes = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, key: Key, dead_at: float, why: str) -> None:
        """From `dead_at` on, the secret of this key must be refused."""
        copy = Key(key.id, key.name, key.secret, key.project, dead_at, why)
        self.dead.append(copy)
        if self.watching < CLOSELY:
            task = asyncio.create_task(self.watch(copy))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def watch(self, key: Key) -> None:
        """Probes a secret on all servers until it is long dead."""
        self.watching += 1
        try:
            servers = [server for node in self.clients.nodes for server in node.servers()]
            await asyncio.gather(*(self.watch_on(key, server) for server in servers))
        finally:
            self.watching -= 1

    async def watch_on(self, key: Key, server: Server) -> None:
        assert key.dead_at is not None
        while time.monotonic() < key.dead_at + WATCHED:
            await self.probe(key, server, 3.0)
            await asyncio.sleep(PAUSE)

    async def probe(self, key: Key, server: Server, timeout: float) -> None:
        """One request with a dead secret. Success is a violation if it began after the allowed second."""
        assert key.dead_at is not None
        answer = await self.clients.send(server, "GET", "/v1/me", key, timeout=timeout)
        self.probes += 1
        self.ledger.count("dead key", str(answer.status) if not answer.code else answer.code)
        if not isinstance(answer, Answer) or not answer.ok:
            return
        lag = answer.began - key.dead_at
        self.greatest_lag = max(self.greatest_lag, lag)
        if lag > ALLOWED:
            text = f"{key.why} {key.name} was accepted by {server.name} (port {server.port}) {lag:.2f} s after the acknowledgement"
            self.ledger.violation("dead keys are refused after 1 s", text)

    async def again(self, stop: asyncio.Event) -> None:
        """Probes random secrets that have been dead for longer, until the end of the run."""
        while not stop.is_set():
            await asyncio.sleep(0.1)
            if self.dead:
                key = self.clients.rng.choice(self.dead)
                servers = self.clients.rng.choice(self.clients.nodes).servers()
                await self.probe(key, self.clients.rng.choice(servers), 3.0)

    async def all(self) -> None:
        """Probes every secret on every node."""
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for node in self.clients.nodes:
            await asyncio.gather(*(self.probe(key, node.server, 10.0) for key in self.dead[-200:]))
