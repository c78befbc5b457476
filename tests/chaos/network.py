"""Network namespaces of the nodes, and bridges that connect them with the clients, the database and the upstream model.

Each node has a link of its own to each of the three networks, so that one can be cut without the others. The root of the
networks (the clients, PostgreSQL, the upstream model) is the namespace in which this program runs.
"""

import pathlib
import subprocess

NETWORKS = {"clients": 1, "database": 2, "upstream": 3}


def ip(*words: str) -> None:
    """Runs `ip` and fails with its message."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def root_address(network: str) -> str:
    """The address of the root namespace in a network."""
    return f"10.77.{NETWORKS[network]}.1"


def node_address(network: str, node: int) -> str:
    """The address of a node in a network."""
    return f"10.77.{NETWORKS[network]}.{10 + node}"


def namespace(node: int) -> str:
    """The name of a node's namespace."""
    return f"node{node}"


def inside(node: int) -> list[str]:
    """The words before a command that is to run in a node's namespace."""
    return ["nsenter", f"--net=/run/netns/{namespace(node)}"]


def create(nodes: range) -> None:
    """Creates the bridges, and the namespace and links of each node, unless they exist."""
    for network in NETWORKS if not pathlib.Path("/run/netns", namespace(0)).exists() else ():
        ip("link", "add", "name", f"br-{network}", "type", "bridge")
        ip("addr", "add", f"{root_address(network)}/24", "dev", f"br-{network}")
        ip("link", "set", f"br-{network}", "up")
    for node in nodes:
        space = namespace(node)
        if pathlib.Path("/run/netns", space).exists():
            continue
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        for network in NETWORKS:
            outer = _outer(network, node)
            ip("link", "add", "name", outer, "type", "veth", "peer", "name", network, "netns", space)
            ip("link", "set", outer, "master", f"br-{network}")
            ip("link", "set", outer, "up")
            ip("-n", space, "addr", "add", f"{node_address(network, node)}/24", "dev", network)
            ip("-n", space, "link", "set", network, "up")


def cut(node: int, network: str, silent: bool) -> None:
    """Cuts a link. Silent: packets vanish; otherwise the node's interface is down, so that the node gets errors."""
    if silent:
        ip("link", "set", _outer(network, node), "down")
    else:
        ip("-n", namespace(node), "link", "set", network, "down")


def heal(node: int, network: str) -> None:
    """Ends a cut of either kind."""
    ip("link", "set", _outer(network, node), "up")
    ip("-n", namespace(node), "link", "set", network, "up")


def _outer(network: str, node: int) -> str:
    return f"v-{network}{node}"
