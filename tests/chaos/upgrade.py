"""A rolling upgrade: each node in turn is stopped cleanly and started with another program, while the load goes on."""

import asyncio
import signal
import time

from balancer import Balancer
from client import Clients, Outcome
from cluster import Cluster
from failures import Failures
from faults import Faults
from ledger import Ledger
from nodes import Node

# By then, a clean stop has ended (docs/operations.md, "Start and stop").
STOPS = 30.0
# Operations that are sent once, because they have no idempotency key. All others are repeated until their outcome is known.
SENT_ONCE = ("background", "chat", "chat in conversation", "stream")


class Upgrade:
    """Replaces the program of all nodes by that of the cluster, behind a load balancer.

    Strict: there are no other faults, so nothing may fail that docs/cluster.md does not allow.
    """

    def __init__(self, ledger: Ledger, cluster: Cluster, clients: Clients, faults: Faults, is_strict: bool) -> None:
        self.ledger, self.cluster, self.faults, self.is_strict = ledger, cluster, faults, is_strict
        self.failures = Failures()
        clients.seen, clients.balancer = self.see, Balancer(cluster.nodes)

    def see(self, outcome: Outcome, is_balanced: bool) -> None:
        forbidden = self.failures.see(outcome, is_balanced)
        if forbidden and self.is_strict:
            self.ledger.violation("a clean stop loses no requests", forbidden)

    async def run(self, seconds: float) -> None:
        """Replaces the program of each node, in a random order. Between two of them, both programs run together."""
        nodes = self.faults.rng.sample(self.cluster.nodes, len(self.cluster.nodes))
        for node in nodes:
            async with self.faults.busy[node.number]:
                await self.replace(node)
            await asyncio.sleep(seconds / len(nodes))

    async def replace(self, node: Node) -> None:
        """Stops a node cleanly and starts it with the other program."""
        server = node.server
        self.failures.stopping(server.name)
        began = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.process
        code = await asyncio.to_thread(server.process.wait)
        stopped = time.monotonic()
        self.ledger.sample("a clean stop (s)", stopped - began)
        if self.is_strict and (code or stopped - began > STOPS):
            self.ledger.violation("servers stop cleanly", f"{server.name} ended with {code} after {stopped - began:.1f} s")
        program = self.cluster.programs[node.number] = self.cluster.binary
        await self.faults.start(node)
        self.failures.back(server.name)
        self.ledger.note(f"{server.name} runs {program}: stopped in {stopped - began:.2f} s, ready {time.monotonic() - stopped:.2f} s later")

    def check(self) -> None:
        """Every write that may be repeated was acknowledged in the end."""
        for operation, outcomes in self.ledger.outcomes.items():
            if self.is_strict and outcomes["unknown"] and operation not in SENT_ONCE:
                self.ledger.violation("a clean stop loses no requests", f"{operation}: {outcomes['unknown']} times without an outcome")

    def figures(self) -> dict[str, str]:
        """The requests and the failed ones, for the report."""
        lines = {"requests": f"{self.failures.requests}, each attempt counted"}
        for where, counts in sorted(self.failures.counts.items()):
            lines[f"failed {where}"] = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
        return lines
