"""The server processes: one in each node's namespace, with a clock that may be wrong."""

import os
import pathlib
import shutil
import signal
import subprocess

import clock
import network
from database import PASSWORD, Database

PORT = 8080
MODEL = "mock"


class Server:
    """One process of a node, with a data folder and a port of its own."""

    def __init__(self, node: int, folder: pathlib.Path, port: int, skew: int) -> None:
        self.node, self.folder, self.port, self.skew = node, folder, port, skew
        self.name = f"node{node}"
        self.base = f"http://{network.node_address('clients', node)}:{port}"
        self.log = folder.parent / f"{folder.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, binary: pathlib.Path, models: pathlib.Path, database: Database | None) -> None:
        """Starts the process. Without a database, its store is a file in its data folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | clock.skewed(self.skew) | {"OUTPOST_LOG": os.environ.get("OUTPOST_LOG", "info")}
        words = [*network.inside(self.node), str(binary), "serve", "--listen", f"0.0.0.0:{self.port}", "--insecure-http", "--no-pull"]
        words += ["--data", str(self.folder), "--models", str(models), "--threads", "1", "--memory", "512MiB"]
        # Each request tells an address of its own, because one address may send only a few dead keys a minute.
        words += ["--trusted-proxy", network.root_address("clients")]
        if database:
            words += ["--store", database.url(), "--node-name", self.name]
            environment |= {"PGPASSWORD": PASSWORD}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def share_pepper(self, first: "Server") -> None:
        """Takes the pepper of the first node, without which no key of the store works."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(first.folder / "pepper", self.folder / "pepper")

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process runs."""
        if self.alive() and self.process:
            os.kill(self.process.pid, number)

    def alive(self) -> bool:
        """Whether the process runs (or is stopped by SIGSTOP)."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kills the process with SIGKILL and the processes that it has started."""
        if self.process:
            self.send(signal.SIGKILL)
            self.process.wait()


class Node:
    """A place in the cluster: the server that has its name now, and others that had it before and still run."""

    def __init__(self, number: int, folder: pathlib.Path, skew: int) -> None:
        self.number, self.parent, self.skew = number, folder, skew
        self.generation = 0
        self.server = self._server()
        self.replaced: Server | None = None

    def successor(self) -> Server:
        """A server with the same name, another folder and another port. It becomes the node's with `replace`."""
        self.generation += 1
        server = self._server()
        server.share_pepper(self.server)
        return server

    def replace(self, server: Server) -> None:
        """From now on, clients use this server. The one before is remembered while it runs."""
        self.replaced, self.server = self.server, server

    def servers(self) -> list[Server]:
        """The node's server, and the replaced one while it runs."""
        return [self.server] + ([self.replaced] if self.replaced else [])

    def _server(self) -> Server:
        folder = self.parent / f"node{self.number}" / f"data{self.generation}"
        return Server(self.number, folder, PORT + self.generation % 1000, self.skew)


def write_model(models: pathlib.Path, port: int) -> None:
    """A models folder with one upstream model, the mock."""
    folder = models / MODEL
    folder.mkdir(parents=True)
    target = f'[[target]]\nurl = "http://{network.root_address("upstream")}:{port}/v1"\nmax_outstanding = 1000\n'
    (folder / "upstream.toml").write_text(f'kind = "chat"\n{target}[timeouts]\nfirst_byte = 20\nidle = 20\n')
