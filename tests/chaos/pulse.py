"""Requests to one node during a fault: since when it refuses, how long it takes for that, and when it works again."""

import asyncio
import time

from client import Answer, Clients, Outcome
from ledger import Key
from nodes import Server

PAUSE = 0.05


class Pulse:
    """Reads, one after the other, with a key that the node has in its cache; and writes, on a second connection."""

    def __init__(self, clients: Clients, server: Server, key: Key) -> None:
        self.clients, self.server, self.key = clients, server, key
        self.reads: list[Outcome] = []
        self.writes: list[Outcome] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> "Pulse":
        self.tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        return self

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            self.reads.append(await self.clients.send(self.server, "GET", "/v1/me", self.key, timeout=8))
            await asyncio.sleep(PAUSE)

    async def _write(self) -> None:
        path = f"/v1/projects/{self.key.project.id}/rate-limits"
        while True:
            body = {"requests_per_minute": 900_000 + len(self.writes) % 1000}
            self.writes.append(await self.clients.send(self.server, "PATCH", path, self.key, body, timeout=8))
            await asyncio.sleep(PAUSE)

    async def warm(self, seconds: float = 1.0) -> None:
        """Uses the key until the node accepts it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (self.reads and self.reads[-1].ok):
            await asyncio.sleep(0.02)

    async def works(self, seconds: float) -> float | None:
        """Waits until a read and a write that begin from now on succeed. Returns the seconds that it took, or None."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            firsts = [next((one for one in kind if one.began >= began and one.ok), None) for kind in (self.reads, self.writes)]
            if all(firsts):
                return max(one.ended for one in firsts if one) - began
            await asyncio.sleep(0.02)
        return None

    def last_success_after(self, start: float, end: float) -> float:
        """Seconds from `start` to the beginning of the last successful request until `end`; 0: none."""
        begun = [one.began - start for kind in (self.reads, self.writes) for one in kind if one.ok and start < one.began < end]
        return max(begun, default=0.0)

    def first_refusal(self, start: float) -> float | None:
        """Seconds from `start` to the first 503 of a read."""
        return next((one.ended - start for one in self.reads if one.status == 503 and one.ended > start), None)

    def slowest(self, start: float, end: float, writes: bool) -> float:
        """The longest time of a request that began between `start` and `end`."""
        kind = self.writes if writes else self.reads
        return max((one.ended - one.began for one in kind if start < one.began < end), default=0.0)

    def statuses(self, start: float, end: float) -> dict[str, int]:
        """How often each status was answered."""
        found: dict[str, int] = {}
        for one in self.reads + self.writes:
            if start < one.began < end:
                name = str(one.status) if isinstance(one, Answer) else one.why
                found[name] = found.get(name, 0) + 1
        return found
