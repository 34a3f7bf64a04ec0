"""The ranks of one attempt, joined by TCP: rank 0 listens, every other rank connects to it.

A message is a length and that many bytes. A lost peer ends the attempt; it never hangs. A closed socket shows the loss
at once; a silent peer counts as lost after `patience_seconds`.
"""

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("!I")
_LONGEST = 64 * 1024 * 1024
_TICK_SECONDS = 0.2


class PeerLostError(Exception):
    """Another rank ended, or was silent for too long."""


class StoppedError(Exception):
    """The rank was asked to stop before all ranks joined."""


class RankGroup:
    """All ranks of one attempt. A single rank uses no network."""

    def __init__(self, rank: int, world_size: int, sockets: Sequence[socket.socket], patience_seconds: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._sockets = sockets
        """On rank 0, one socket per peer, in rank order; on another rank, the socket to rank 0."""
        self._patience_seconds = patience_seconds

    def gather(self, message: bytes) -> list[bytes]:
        """Collect the bytes of all ranks on rank 0, in rank order; return an empty list on other ranks."""
        if self.rank != 0:
            _send(self._sockets[0], message)
            return []
        return [message, *(_receive(peer, self._patience_seconds) for peer in self._sockets)]

    def spread(self, content: bytes) -> bytes:
        """Send the content of rank 0 to every rank and return it; other ranks' arguments are ignored."""
        if self.rank != 0:
            return _receive(self._sockets[0], self._patience_seconds)
        for peer in self._sockets:
            _send(peer, content)
        return content

    def gather_json(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Collect the JSON objects of all ranks on rank 0; `Run.save` accepts this as its `gather`."""
        return [json.loads(message) for message in self.gather(json.dumps(record).encode())]

    def close(self) -> None:
        for joined in self._sockets:
            with contextlib.suppress(OSError):
                joined.close()


@dataclass(frozen=True)
class Rendezvous:
    """The address where the ranks of one attempt meet."""

    name: str
    """Name of the attempt. Rank 0 refuses a process of another attempt."""
    world_size: int
    """Number of ranks."""
    bind_address: str
    """Address on which rank 0 listens: its own pod's address, so another attempt can use the same port."""
    master: tuple[str, int]
    """Host and port at which the other ranks reach rank 0."""


def join(
    rank: int,
    rendezvous: Rendezvous,
    *,
    rendezvous_seconds: float,
    patience_seconds: float,
    should_stop: Callable[[], bool],
) -> RankGroup:
    """Connect the ranks of one attempt.

    Args:
        rank: Rank of this process.
        rendezvous: Where the ranks meet.
        rendezvous_seconds: Longest wait for all ranks.
        patience_seconds: Longest silence of a peer after that.
        should_stop: Called while waiting; true ends the wait.

    Raises:
        PeerLostError: A rank did not join in time.
        StoppedError: The rank was asked to stop first.
    """
    deadline = time.monotonic() + rendezvous_seconds
    world_size, master = rendezvous.world_size, rendezvous.master
    if world_size == 1:
        return RankGroup(rank, world_size, [], patience_seconds)
    hello = {"name": rendezvous.name, "rank": rank, "worldSize": world_size}
    if rank != 0:
        return RankGroup(rank, world_size, [_connect(master, hello, deadline, should_stop)], patience_seconds)
    with _listen(rendezvous.bind_address, master[1], deadline, should_stop) as listener:
        peers = _accept_all(listener, hello, deadline, should_stop)
    for peer in peers:
        _send(peer, b"welcome")
    return RankGroup(rank, world_size, peers, patience_seconds)


def _listen(address: str, port: int, deadline: float, should_stop: Callable[[], bool]) -> socket.socket:
    while True:
        try:
            return socket.create_server((address, port))
        except OSError as error:
            # An attempt that is ending may still hold the port, or the pod's name does not resolve yet.
            _pause_or_give_up(deadline, should_stop, f"rank 0 cannot listen on {address}:{port}: {error}")


def _accept_all(
    listener: socket.socket,
    hello: dict[str, Any],
    deadline: float,
    should_stop: Callable[[], bool],
) -> list[socket.socket]:
    peers: dict[int, socket.socket] = {}
    expected = set(range(1, hello["worldSize"]))
    with contextlib.ExitStack() as unless_complete:
        while missing := expected - peers.keys():
            readable, _, _ = select.select([listener], [], [], _TICK_SECONDS)
            if not readable:
                reason = f"ranks {sorted(missing)} did not join in time"
                _pause_or_give_up(deadline, should_stop, reason, pause_seconds=0)
                continue
            caller = unless_complete.enter_context(listener.accept()[0])
            rank = _rank_of(caller, hello)
            if rank not in expected:
                caller.close()
                continue
            if rank in peers:
                peers[rank].close()  # the rank connected again: its first connection is dead
            peers[rank] = caller
        unless_complete.pop_all()
    return [peers[rank] for rank in sorted(peers)]


def _rank_of(caller: socket.socket, hello: dict[str, Any]) -> int:
    """Return the rank of a caller; -1 if it is of another attempt or no rank."""
    try:
        greeting = json.loads(_receive(caller, 5.0))
    except (PeerLostError, ValueError):
        return -1
    rank = greeting.get("rank") if isinstance(greeting, dict) else None
    return rank if isinstance(rank, int) and {**greeting, "rank": 0} == hello else -1


def _connect(
    master: tuple[str, int],
    hello: dict[str, Any],
    deadline: float,
    should_stop: Callable[[], bool],
) -> socket.socket:
    while True:
        try:
            return _connect_once(master, hello, deadline, should_stop)
        except (OSError, PeerLostError) as error:
            _pause_or_give_up(deadline, should_stop, f"rank 0 at {master[0]}:{master[1]} does not answer: {error}")


def _connect_once(
    master: tuple[str, int],
    hello: dict[str, Any],
    deadline: float,
    should_stop: Callable[[], bool],
) -> socket.socket:
    with contextlib.ExitStack() as unless_welcome:
        connection = unless_welcome.enter_context(socket.create_connection(master, timeout=2.0))
        connection.setblocking(True)
        _send(connection, json.dumps(hello).encode())
        if _receive(connection, max(0.0, deadline - time.monotonic()), should_stop) != b"welcome":
            raise PeerLostError("another program than rank 0 answers at its address")
        unless_welcome.pop_all()
        return connection


def _pause_or_give_up(
    deadline: float,
    should_stop: Callable[[], bool],
    reason: str,
    pause_seconds: float = _TICK_SECONDS,
) -> None:
    if should_stop():
        raise StoppedError
    if time.monotonic() >= deadline:
        raise PeerLostError(reason)
    time.sleep(pause_seconds)


def _send(peer: socket.socket, content: bytes) -> None:
    try:
        peer.sendall(_LENGTH.pack(len(content)) + content)
    except OSError as error:
        raise PeerLostError(f"the connection to a peer broke: {error}") from error


def _receive(peer: socket.socket, patience_seconds: float, should_stop: Callable[[], bool] | None = None) -> bytes:
    deadline = time.monotonic() + patience_seconds
    (length,) = _LENGTH.unpack(_read(peer, _LENGTH.size, deadline, should_stop))
    if length > _LONGEST:
        raise PeerLostError(f"a peer announced {length} bytes, more than the longest message of {_LONGEST}")
    return _read(peer, length, deadline, should_stop)


def _read(peer: socket.socket, wanted: int, deadline: float, should_stop: Callable[[], bool] | None) -> bytes:
    content = bytearray()
    while len(content) < wanted:
        if should_stop is not None and should_stop():
            raise StoppedError
        readable, _, _ = select.select([peer], [], [], min(_TICK_SECONDS, max(0.0, deadline - time.monotonic())))
        if not readable:
            if time.monotonic() >= deadline:
                raise PeerLostError("a peer has been silent for too long")
            continue
        try:
            received = peer.recv(wanted - len(content))
        except OSError as error:
            raise PeerLostError(f"the connection to a peer broke: {error}") from error
        if not received:
            raise PeerLostError("a peer ended")
        content += received
    return bytes(content)
