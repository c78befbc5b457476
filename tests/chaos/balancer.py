"""A load balancer as in the example of docs/cluster.md: it checks `/readyz` and sends what a server does not take to another one."""

import asyncio

import aiohttp

from nodes import Node, Server

INTERVAL = 1.0
# Successful checks in a row after which a server takes requests. One that fails takes it out.
RISE = 2


class Balancer:
    """Which servers take requests."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.successes = {node.number: RISE for node in nodes}

    async def run(self, stop: asyncio.Event) -> None:
        """Checks all servers until the end of the run."""
        limit = aiohttp.ClientTimeout(total=INTERVAL)
        async with aiohttp.ClientSession(timeout=limit) as session:
            await asyncio.gather(*(self._check(session, node, stop) for node in self.nodes))

    def servers(self, without: list[Server]) -> list[Server]:
        """The servers that take requests, apart from those that a request was sent to already. At least one."""
        others = [node for node in self.nodes if node.server not in without]
        return [node.server for node in others if self.successes[node.number] >= RISE] or [node.server for node in others]

    async def _check(self, session: aiohttp.ClientSession, node: Node, stop: asyncio.Event) -> None:
        while not stop.is_set():
            ready = await _is_ready(session, node.server)
            self.successes[node.number] = self.successes[node.number] + 1 if ready else 0
            await asyncio.sleep(INTERVAL)


async def _is_ready(session: aiohttp.ClientSession, server: Server) -> bool:
    try:
        async with session.get(server.base + "/readyz") as response:
            return response.status == 200
    except (TimeoutError, aiohttp.ClientError, OSError):
        return False
