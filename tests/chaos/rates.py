"""A project with a rate limit that all nodes are asked for at once: together they may admit what one node would."""

import asyncio
import bisect
import time

from client import Answer, Clients
from ledger import Key, Ledger

PER_MINUTE = 600
RATE = PER_MINUTE / 60
BURST = 30
# What a node may hold of the bucket (docs/cluster.md, "Limits").
LEASE = max(1.0, min(RATE, BURST / 4))
# Each node alone is asked for this share of the rate, so that even one of three reaches the limit.
PRESSURE = 1.3


class Hammer:
    """Requests of one project on all nodes, for as long as the run lasts."""

    def __init__(self, ledger: Ledger, clients: Clients, key: Key) -> None:
        self.ledger, self.clients, self.key = ledger, clients, key
        # Admitted requests: when they began and ended.
        self.admitted: list[tuple[float, float]] = []
        self.limited = 0
        # When the database was killed. It may then forget the exchanges of its last fraction of a second.
        self.kills: list[float] = []
        self.began = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        self.began = time.monotonic()
        loops = [self.loop(number, stop) for number in range(len(self.clients.nodes)) for _ in range(2)]
        await asyncio.gather(*loops)

    async def loop(self, number: int, stop: asyncio.Event) -> None:
        pause = 2 / (RATE * PRESSURE)
        due = time.monotonic()
        while not stop.is_set():
            due = max(due + pause, time.monotonic())
            server = self.clients.nodes[number].server
            answer = await self.clients.send(server, "GET", "/v1/agents", self.key, timeout=5)
            if isinstance(answer, Answer) and answer.ok:
                self.admitted.append((answer.began, answer.ended))
            elif isinstance(answer, Answer) and answer.status == 429:
                self.limited += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def between(self, start: float, end: float) -> int:
        """Requests that began and ended in this time."""
        return sum(1 for began, ended in self.admitted if began >= start and ended <= end)

    def excess(self) -> float:
        """By how many requests the limit was exceeded in the worst window. Negative or 0: never.

        When a window begins, each node may hold a lease, while the bucket is full again.
        """
        begins = sorted(began for began, _ in self.admitted)
        ends = sorted(ended for _, ended in self.admitted)
        worst, leases = -float("inf"), LEASE * len(self.clients.nodes)
        for width in (1.0, 5.0, 20.0, 60.0):
            for start in begins:
                # Requests that ended before the window's end, without those that began before its start: a lower bound.
                inside = bisect.bisect_right(ends, start + width) - bisect.bisect_left(begins, start)
                forgotten = sum(start <= kill <= start + width for kill in self.kills) * (leases + RATE)
                worst = max(worst, inside - BURST - leases - RATE * width - forgotten)
        if self.admitted:
            forgotten = len(self.kills) * (leases + RATE)
            worst = max(worst, len(self.admitted) - BURST - RATE * (ends[-1] - begins[0]) - forgotten)
        return worst

    def check_quiet(self, start: float, end: float, slack: float) -> None:
        """Both bounds from a full bucket on, in a time without faults in which every node gets more than it may admit.

        `slack`: requests that may be missing because of the test itself, such as those that are not answered at the end.
        """
        seconds = end - start
        count = self.between(start, end)
        most, least = BURST + RATE * seconds, BURST + RATE * seconds - LEASE * len(self.clients.nodes) - slack
        self.ledger.note(f"rate limit without faults: {count} admitted in {seconds:.1f} s; bounds {least:.0f} to {most:.0f}")
        if not least <= count <= most:
            self.ledger.violation("rate limit", f"{count} admitted in {seconds:.1f} s without faults, allowed {least:.0f} to {most:.0f}")

    def check(self) -> None:
        """No window has more than the burst and what flows in."""
        if self.excess() > 0:
            self.ledger.violation("rate limit", f"exceeded by {self.excess():.0f} requests (burst {BURST}, {RATE:g}/s)")
