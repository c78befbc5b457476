"""The faults, in a random order that the seed determines, and what the cluster does meanwhile."""

import asyncio
import random
import signal
import time

import network
from client import Clients
from cluster import Cluster
from ledger import Key, Ledger
from nodes import Node
from pulse import Pulse
from revocation import Prober

# Bounds in seconds. The first is the promise; the others are wide, because the machine may be slow.
SERVES_AFTER_CUT = 1.0
ANSWERS = 2.5
RECOVERS = 30.0
READY = 60.0
# A run of this many seconds has faults at the same time, and ones that outlast a heartbeat (10 s).
LONG = 120
KINDS = ["kill node", "kill database", "cut database", "cut database silently", "cut clients", "pause node", "stop node", "zombie"]


class Faults:
    """Injects faults until the end of the run."""

    def __init__(self, ledger: Ledger, cluster: Cluster, clients: Clients, prober: Prober, key: Key, seed: int) -> None:
        self.ledger, self.cluster, self.clients, self.prober, self.key = ledger, cluster, clients, prober, key
        self.rng = random.Random(seed)
        self.database_kills: list[float] = []
        self.is_long = False
        self.busy = {node.number: asyncio.Lock() for node in cluster.nodes}
        self.database = asyncio.Lock()

    async def run(self, until: float, only: list[str]) -> None:
        """Each round has every kind once, and the first one is complete. Most faults come alone, some while another one lasts."""
        kinds, began, first = only or KINDS, time.monotonic(), True
        self.is_long = until - began > LONG
        while time.monotonic() < until:
            for kind in self.rng.sample(kinds, len(kinds)):
                if time.monotonic() >= until and not first:
                    break
                pair = [self.inject(kind)]
                if self.rng.random() < 0.25 and self.is_long:
                    pair.append(self.later(self.rng.choice(kinds)))
                await asyncio.gather(*pair)
                await asyncio.sleep(self.rng.uniform(0.5, 2.5))
            first = False

    async def later(self, kind: str) -> None:
        await asyncio.sleep(self.rng.uniform(0.3, 2.0))
        await self.inject(kind)

    async def inject(self, kind: str) -> None:
        self.ledger.count("fault", kind)
        if kind == "kill database":
            async with self.database:
                return await self.kill_database()
        node = self.rng.choice(self.cluster.nodes)
        async with self.busy[node.number]:
            self.ledger.note(f"{kind}: node{node.number}")
            if kind == "kill node":
                await self.restart(node, signal.SIGKILL)
            elif kind == "stop node":
                await self.restart(node, signal.SIGTERM)
            elif kind == "cut clients":
                await self.cut_clients(node)
            elif kind == "pause node":
                await self.pause(node)
            elif kind == "zombie":
                await self.zombie(node)
            else:
                await self.cut_database(node, silent="silently" in kind)

    async def restart(self, node: Node, number: signal.Signals) -> None:
        node.server.send(number)
        process = node.server.process
        assert process
        await asyncio.to_thread(process.wait)
        await asyncio.sleep(self.rng.uniform(0.5, 5))
        await self.start(node)

    async def start(self, node: Node) -> None:
        """Starts the node's server. If the database is away, that may need several tries."""
        began = time.monotonic()
        while True:
            self.cluster.start_server(node.server)
            try:
                await self.cluster.wait_ready(node.server, READY)
                break
            except RuntimeError as error:
                if node.server.alive() or time.monotonic() > began + READY:
                    self.ledger.violation("nodes recover by themselves", f"node{node.number}: {error}")
                    return
                self.ledger.count("fault", "start failed, tried again")
                await asyncio.sleep(0.5)
        self.ledger.sample("a killed or stopped node is ready after its start (s)", time.monotonic() - began)

    async def kill_database(self) -> None:
        assert self.cluster.database
        self.ledger.note("kill database")
        pulses = [Pulse(self.clients, node.server, self.key).start() for node in self.cluster.nodes if not self.busy[node.number].locked()]
        await asyncio.sleep(0.3)
        killed = time.monotonic()
        self.database_kills.append(killed)
        await asyncio.to_thread(self.cluster.database.kill)
        await asyncio.sleep(self.rng.uniform(0.3, 5 if self.is_long else 2.5))
        restarted = time.monotonic()
        await asyncio.to_thread(self.cluster.database.start)
        await asyncio.to_thread(self.cluster.database.wait)
        accepts = time.monotonic()
        self.ledger.sample("PostgreSQL accepts connections after its start (s)", accepts - restarted)
        for pulse in pulses:
            if restarted - killed > SERVES_AFTER_CUT:
                self.stale(pulse, killed, restarted, "the database was killed")
            await self.recovered(pulse, "a node works after the database is back (s)")

    def stale(self, pulse: Pulse, start: float, end: float, why: str) -> None:
        """No request that begins a second after the database has gone may succeed."""
        last = pulse.last_success_after(start, end)
        self.ledger.sample("last success begun after the database was lost (s)", last)
        if last > SERVES_AFTER_CUT:
            self.ledger.violation("503 within a second", f"{pulse.server.name}: success {last:.2f} s after {why}")

    async def recovered(self, pulse: Pulse, figure: str) -> None:
        seconds = await pulse.works(RECOVERS)
        await pulse.stop()
        if seconds is not None:
            self.ledger.sample(figure, seconds)
        elif pulse.server.alive() and not self.busy[pulse.server.node].locked():
            last = [str(kind[-1]) for kind in (pulse.reads, pulse.writes) if kind]
            self.ledger.violation("nodes recover by themselves", f"{figure}: {pulse.server.name} not within {RECOVERS} s: {last}")

    async def cut_database(self, node: Node, silent: bool) -> None:
        """Cuts a node from the database, sometimes for longer than its heartbeat is valid."""
        pulse = Pulse(self.clients, node.server, self.key).start()
        await pulse.warm()
        cut = time.monotonic()
        network.cut(node.number, "database", silent)
        await asyncio.sleep(self.rng.choice([1.5, 3, 5, 8, 14] if self.is_long else [2, 3, 4]))
        heal = time.monotonic()
        network.heal(node.number, "database")
        undisturbed = not self.database.locked()
        seconds = await pulse.works(RECOVERS)
        await pulse.stop()
        self.stale(pulse, cut, heal, f"the cut ({'silent' if silent else 'interface down'})")
        first = pulse.first_refusal(cut)
        if first is not None:
            self.ledger.sample("first 503 after a cut from the database (s)", first)
        if heal - cut > ANSWERS and (first is None or first > ANSWERS):
            self.ledger.violation("503 within a second", f"node{node.number}: first 503 {first} s after the cut, allowed with its time {ANSWERS} s")
        for writes, name in ((False, "read"), (True, "write")):
            self.ledger.sample(f"slowest answer to a {name} begun during such a cut (s)", pulse.slowest(cut, heal, writes))
        self.ledger.note(f"node{node.number} was cut for {heal - cut:.1f} s: {pulse.statuses(cut, heal)}, works again after {seconds} s")
        if seconds is not None:
            self.ledger.sample("a node works after such a cut has ended (s)", seconds)
        elif undisturbed:
            self.ledger.violation("nodes recover by themselves", f"node{node.number} not within {RECOVERS} s after a cut from the database")

    async def cut_clients(self, node: Node) -> None:
        network.cut(node.number, "clients", self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.uniform(2, 8 if self.is_long else 4))
        network.heal(node.number, "clients")

    async def pause(self, node: Node) -> None:
        """Stops the process, sometimes for longer than its heartbeat is valid."""
        node.server.send(signal.SIGSTOP)
        await asyncio.sleep(self.rng.choice([1, 2, 4, 13] if self.is_long else [1, 2, 3]))
        node.server.send(signal.SIGCONT)
        await self.recovered(Pulse(self.clients, node.server, self.key).start(), "a node works after SIGCONT (s)")

    async def zombie(self, node: Node) -> None:
        """Stops a node, starts a successor with its name, and lets the stopped one go on: it must not write any more."""
        old = node.server
        old.send(signal.SIGSTOP)
        successor = node.successor()
        try:
            self.cluster.start_server(successor)
            await self.cluster.wait_ready(successor, READY)
        except RuntimeError as error:
            # The database may be away meanwhile; the old process goes on.
            successor.kill()
            old.send(signal.SIGCONT)
            self.ledger.note(f"zombie: the successor of node{node.number} did not start: {str(error)[:300]}")
            if not self.database.locked():
                self.ledger.violation("a successor takes over", str(error)[:500])
            return
        node.replace(successor)
        resumed = time.monotonic()
        old.send(signal.SIGCONT)
        pulse = Pulse(self.clients, old, self.key).start()
        await asyncio.sleep(3)
        await pulse.stop()
        writes = [one for one in pulse.writes if one.ok]
        last = pulse.last_success_after(resumed, float("inf"))
        self.ledger.note(f"node{node.number} after its successor's start: {pulse.statuses(resumed, float('inf'))}, alive: {old.alive()}")
        if writes:
            self.ledger.violation("a replaced server does not write", f"node{node.number}: {len(writes)} writes: {writes[0]}")
        if last > SERVES_AFTER_CUT:
            self.ledger.violation("a replaced server does not serve", f"node{node.number}: success {last:.2f} s after SIGCONT")
        old.kill()
        node.replaced = None
