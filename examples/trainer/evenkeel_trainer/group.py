"""The ranks of one attempt, joined by TCP: rank 0 listens, the others connect.

A message is a length and that many bytes. A star is enough for an example; what matters is how it fails: a peer that is
gone is noticed at once when its socket closes, and after `patience_seconds` when it merely falls silent, and either way
the attempt ends instead of hanging.
"""

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_LONGEST = 64 * 1024 * 1024
_TICK_SECONDS = 0.2


class PeerLostError(Exception):
    """Another rank is gone, or silent for too long."""


class StoppedError(Exception):
    """The rank was asked to stop while the others had not joined yet."""


class RankGroup:
    """All ranks of one attempt. With one rank it needs no network at all."""

    def __init__(self, rank: int, world_size: int, sockets: Sequence[socket.socket], patience_seconds: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._sockets = sockets
        """On rank 0 one a peer, in rank order; elsewhere the one to rank 0."""
        self._patience_seconds = patience_seconds

    def gather(self, mine: bytes) -> list[bytes]:
        """Collect every rank's bytes on rank 0, in rank order; empty elsewhere."""
        if self.rank != 0:
            _send(self._sockets[0], mine)
            return []
        return [mine, *(_receive(peer, self._patience_seconds) for peer in self._sockets)]

    def spread(self, content: bytes) -> bytes:
        """Give every rank what rank 0 holds; elsewhere the argument is ignored."""
        if self.rank != 0:
            return _receive(self._sockets[0], self._patience_seconds)
        for peer in self._sockets:
            _send(peer, content)
        return content

    def gather_json(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Collect every rank's JSON object on rank 0: what `Run.save` takes as its `gather`."""
        return [json.loads(theirs) for theirs in self.gather(json.dumps(mine).encode())]

    def close(self) -> None:
        for joined in self._sockets:
            with contextlib.suppress(OSError):
                joined.close()


def join(
    name: str,
    rank: int,
    world_size: int,
    *,
    bind_address: str,
    master: tuple[str, int],
    rendezvous_seconds: float,
    patience_seconds: float,
    should_stop: Callable[[], bool],
) -> RankGroup:
    """Meet the other ranks of the attempt called `name`.

    Args:
        name: Whoever connects with another name belongs to another attempt and is turned away.
        rank: This process.
        world_size: How many there are.
        bind_address: Where rank 0 listens: its pod's own address, so that another attempt can use the same port.
        master: Host and port of rank 0, as the others reach it.
        rendezvous_seconds: How long to wait for everybody.
        patience_seconds: How long a peer may be silent afterwards.
        should_stop: Asked while waiting.

    Raises:
        PeerLostError: Not everybody came in time.
        StoppedError: The rank was asked to stop first.
    """
    deadline = time.monotonic() + rendezvous_seconds
    if world_size == 1:
        return RankGroup(rank, world_size, [], patience_seconds)
    hello = {"name": name, "rank": rank, "worldSize": world_size}
    if rank != 0:
        return RankGroup(rank, world_size, [_connect(master, hello, deadline, should_stop)], patience_seconds)
    with _listen(bind_address, master[1], deadline, should_stop) as listener:
        peers = _accept_all(listener, hello, deadline, should_stop)
    for peer in peers:
        _send(peer, b"welcome")
    return RankGroup(rank, world_size, peers, patience_seconds)


def _listen(address: str, port: int, deadline: float, should_stop: Callable[[], bool]) -> socket.socket:
    while True:
        try:
            return socket.create_server((address, port))
        except OSError as error:
            # The port may still be held by an attempt that is just ending, or the pod's name not resolve yet.
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
                what = f"ranks {sorted(missing)} did not come"
                _pause_or_give_up(deadline, should_stop, what, pause_seconds=0)
                continue
            caller = unless_complete.enter_context(listener.accept()[0])
            rank = _rank_of(caller, hello)
            if rank not in expected:
                caller.close()
                continue
            if rank in peers:
                peers[rank].close()  # it connected again: the first connection is dead
            peers[rank] = caller
        unless_complete.pop_all()
    return [peers[rank] for rank in sorted(peers)]


def _rank_of(caller: socket.socket, hello: dict[str, Any]) -> int:
    """Read which rank calls; -1 for one of another attempt, or none at all."""
    try:
        theirs = json.loads(_receive(caller, 5.0))
    except (PeerLostError, ValueError):
        return -1
    rank = theirs.get("rank") if isinstance(theirs, dict) else None
    return rank if isinstance(rank, int) and {**theirs, "rank": 0} == hello else -1


def _connect(
    master: tuple[str, int],
    hello: dict[str, Any],
    deadline: float,
    should_stop: Callable[[], bool],
) -> socket.socket:
    while True:
        try:
            return _knock(master, hello, deadline, should_stop)
        except (OSError, PeerLostError) as error:
            _pause_or_give_up(deadline, should_stop, f"rank 0 at {master[0]}:{master[1]} does not answer: {error}")


def _knock(
    master: tuple[str, int],
    hello: dict[str, Any],
    deadline: float,
    should_stop: Callable[[], bool],
) -> socket.socket:
    with contextlib.ExitStack() as unless_welcome:
        knocking = unless_welcome.enter_context(socket.create_connection(master, timeout=2.0))
        knocking.setblocking(True)
        _send(knocking, json.dumps(hello).encode())
        if _receive(knocking, max(0.0, deadline - time.monotonic()), should_stop) != b"welcome":
            raise PeerLostError("what answers there is no rank 0")
        unless_welcome.pop_all()
        return knocking


def _pause_or_give_up(
    deadline: float,
    should_stop: Callable[[], bool],
    what: str,
    pause_seconds: float = _TICK_SECONDS,
) -> None:
    if should_stop():
        raise StoppedError
    if time.monotonic() >= deadline:
        raise PeerLostError(what)
    time.sleep(pause_seconds)


def _send(peer: socket.socket, content: bytes) -> None:
    try:
        peer.sendall(_LENGTH.pack(len(content)) + content)
    except OSError as error:
        raise PeerLostError(f"a peer's connection broke: {error}") from error


def _receive(peer: socket.socket, patience_seconds: float, should_stop: Callable[[], bool] | None = None) -> bytes:
    deadline = time.monotonic() + patience_seconds
    (length,) = _LENGTH.unpack(_read(peer, _LENGTH.size, deadline, should_stop))
    if length > _LONGEST:
        raise PeerLostError("what came is no message of a peer")
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
            some = peer.recv(wanted - len(content))
        except OSError as error:
            raise PeerLostError(f"a peer's connection broke: {error}") from error
        if not some:
            raise PeerLostError("a peer is gone")
        content += some
    return bytes(content)
