"""Requests that fail while servers are stopped cleanly: how many, why, and whether docs/cluster.md allows it."""

import time
from collections import Counter

from client import Answer, Lost, Outcome

REFUSED = "connection refused"
# The server closed a connection that it had kept after an earlier response, or a new one, when the request arrived.
CLOSED_KEPT, CLOSED_NEW = "kept connection closed", "new connection closed"
# If it takes longer (in seconds), the server had the request and was working on it.
ARRIVES = 0.25
DROPPED = "request dropped"
HINTED = "with Retry-After"
CLOSING = ("ServerDisconnectedError", "ClientOSError", "ClientConnectionResetError")


class Failures:
    """Sees every outcome of a run, and knows which server was being stopped when."""

    def __init__(self) -> None:
        self.requests = 0
        self.counts: dict[str, Counter[str]] = {}
        # Of each server: from when to when it was away.
        self.stops: dict[str, list[tuple[float, float]]] = {}

    def stopping(self, name: str) -> None:
        """The server is about to get SIGTERM."""
        self.stops.setdefault(name, []).append((time.monotonic(), float("inf")))

    def back(self, name: str) -> None:
        """Its successor is ready: from now on, it takes every request."""
        began, _ = self.stops[name].pop()
        self.stops[name].append((began, time.monotonic()))

    def see(self, outcome: Outcome, is_balanced: bool) -> str | None:
        """Counts an outcome. Returns why it must not have happened, or None. `is_balanced`: the load balancer chose the server."""
        self.requests += 1
        reason = reason_of(outcome)
        if reason is None:
            return None
        is_stopped = any(outcome.ended >= began and outcome.began <= ended for began, ended in self.stops.get(outcome.node, []))
        where = ("at a stopped node" if is_stopped else "at other nodes") + (", balanced" if is_balanced else "")
        self.counts.setdefault(where, Counter())[reason] += 1
        return None if is_allowed(reason, is_stopped) else f"{reason} {where}: {outcome}"


def is_allowed(reason: str, is_stopped: bool) -> bool:
    """A server that is stopped refuses or closes connections or answers 503 with a hint. The others may be overloaded."""
    if is_stopped:
        return reason in (REFUSED, CLOSED_KEPT, CLOSED_NEW) or reason.startswith("503") and reason.endswith(HINTED)
    return reason == f"503 overloaded {HINTED}"


def reason_of(outcome: Outcome) -> str | None:
    """Why a request failed. None: it was carried out or refused for a reason of its own."""
    if isinstance(outcome, Answer):
        if outcome.status < 500 and outcome.status != 408:
            return None
        return f"{outcome.status} {outcome.code}{' ' + HINTED if 'retry-after' in outcome.headers else ''}"
    return reason_of_loss(outcome)


def reason_of_loss(lost: Lost) -> str:
    """Why there was no response."""
    if not lost.sent and lost.why == "ClientConnectorError":
        return REFUSED
    if lost.sent and lost.why in CLOSING:
        if lost.ended - lost.began > ARRIVES:
            return DROPPED
        return CLOSED_KEPT if lost.kept else CLOSED_NEW
    return lost.why
