"""Signs of life between the processes of a run: who is gone, and an end for those that wait for it.

Collectives do not tell which process is gone, and wait for a silent one until their own timeout, half an hour. Here
every process holds a connection to the first one and says once a beat that it lives. The system closes the connection
of a process that ends, however it ends; a stopped process, or one whose machine is cut off, falls silent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

import torch

from skipway.errors import SkipwayError
from skipway.train.stop import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_fabric import Fabric

    from skipway.train.folder import RunFolder

__all__ = ["BEAT_SEC", "GRACE_SEC", "SILENT_BEATS", "watched"]

BEAT_SEC: Final = 1.0
# Beats, not seconds by a clock: where all processes are suspended together (Ctrl-Z), nobody misses a beat.
SILENT_BEATS: Final = 60
# So long an error waits for word that another process is behind it, and a process that hangs is given to end by itself.
GRACE_SEC: Final = 5.0
_TOLD_SEC: Final = 1.0
_LEAVE_SEC: Final = 2.0
_CONNECT_SEC: Final = 60.0
_MOST_BYTES: Final = 4096
_ALIVE, _LEFT = b"", b"left"


@contextmanager
def watched(fabric: Fabric, folder: RunFolder, kin: Mapping[int, int]) -> Iterator[None]:
    """Inside, the end or silence of one process ends all; the others say which it was and how to go on.

    Args:
        fabric: launched.
        folder: of the run.
        kin: pids of processes, by rank, that this one may end when they fall silent: its children and its parent.

    Raises:
        SkipwayError: another process is gone, silent or failed. What this one raises by itself is raised as it is.
    """
    if fabric.world_size == 1:
        yield
        return
    watch = _Watch(fabric, folder, kin)
    try:
        yield
    except BaseException as error:
        verdict = watch.verdict_behind(error)
        if verdict is not None:
            raise watch.over(verdict) from error
        text = str(error).partition("\n")[0] if isinstance(error, SkipwayError) else f"{type(error).__name__}: {error}"
        watch.decide(f"{watch.name} failed: {text}")
        raise
    finally:
        watch.close()


class _Watch:
    """The connections of this process and the thread that listens to them."""

    def __init__(self, fabric: Fabric, folder: RunFolder, kin: Mapping[int, int]) -> None:
        self._folder, self._kin, self._count = folder, kin, fabric.world_size
        self._names: dict[int, str] = {}
        self._hello = f"{fabric.global_rank} {os.getpid()} {socket.gethostname()}"
        self.name = self._named(self._hello)
        self._peers = _first(fabric) if fabric.is_global_zero else [_other(fabric)]
        self._ranks: dict[Connection, int] = {}
        for peer in self._peers:
            peer.send_bytes(self._hello.encode())
        for peer in self._peers:
            hello = peer.recv_bytes(_MOST_BYTES).decode()
            self._ranks[peer] = rank = int(hello.split()[0])
            self._names[rank] = self._named(hello)
        self._silent = dict.fromkeys(self._peers, 0)
        self._verdict: str | None = None
        self._left = GRACE_SEC
        self._decided, self._closed, self._lock = threading.Event(), threading.Event(), threading.RLock()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="skipway-watch")
        self._thread.start()

    def verdict_behind(self, error: BaseException) -> str | None:
        """Which other process is behind an error here; None if it is this process' own."""
        # Libraries of collectives raise RuntimeError, the loop hands it on as the model's.
        if not isinstance(error, RuntimeError) and not isinstance(error.__cause__, RuntimeError):
            return None
        with stop_on_signals() as stop:
            self._decided.wait(GRACE_SEC)
            # torchrun asks the others to end when it misses one; not before they have said why.
            ends = time.monotonic() + (_TOLD_SEC if torch.distributed.is_torchelastic_launched() else 0)
            while self._verdict is not None and not stop.requested and time.monotonic() < ends:
                time.sleep(0.05)
        return self._verdict

    def over(self, verdict: str) -> SkipwayError:
        """What a person is told."""
        path = self._folder.checkpoint_path
        kept = f"the last checkpoint is {path}" if path.exists() else "there was no checkpoint yet"
        same = " under torchrun, as before" if torch.distributed.is_torchelastic_launched() else ""
        return SkipwayError(
            f"{verdict}; this ends the run on all {self._count} processes; {kept}",
            "every process alive until the end",
            f"skipway train --resume {self._folder.path}{same}",
        )

    def decide(self, verdict: str) -> None:
        """Say once, to everybody, why the run is over."""
        with self._lock:
            if self._verdict is None:
                self._verdict = verdict
                self._say(verdict.encode()[:_MOST_BYTES])
                self._decided.set()

    def close(self) -> None:
        """Take leave, heard by the others: this process is not missed from now on, and misses nobody."""
        with self._lock:
            self._closed.set()
            self._say(_LEFT)
        self._thread.join(2 * _LEAVE_SEC)

    def _listen(self) -> None:
        while not self._closed.is_set():
            self._beat()
            if self._verdict is not None:
                self._left -= BEAT_SEC
                if self._left < 0:
                    self._end(self._verdict)
        self._part()

    def _part(self) -> None:
        """Read on until the others have heard: a connection closed with something unread loses what was said on it."""
        ends = time.monotonic() + _LEAVE_SEC
        while self._peers and (left := ends - time.monotonic()) > 0:
            for peer in wait(self._peers, left):
                assert isinstance(peer, Connection)
                if self._said(peer) in (None, _LEFT):
                    self._peers.remove(peer)
                    peer.close()
        for peer in self._peers:
            peer.close()

    def _beat(self) -> None:
        """Say that this process lives, and hear for a beat who else does."""
        ends = time.monotonic() + BEAT_SEC
        with self._lock:
            self._say(_ALIVE)
            peers = list(self._peers)
        heard: set[Connection] = set()
        while (left := ends - time.monotonic()) > 0 and not self._closed.is_set():
            if not peers:
                self._closed.wait(left)
                continue
            for peer in wait(peers, left):
                assert isinstance(peer, Connection)
                heard.add(peer)
                if not self._hear(peer):
                    peers.remove(peer)
        for peer in peers:
            self._silent[peer] = 0 if peer in heard else self._silent[peer] + 1
            if self._silent[peer] == SILENT_BEATS:
                rank = self._ranks[peer]
                self.decide(f"{self._names[rank]} gave no sign of life for {SILENT_BEATS * BEAT_SEC:.0f} s")
                self._kill(rank)

    def _hear(self, peer: Connection) -> bool:
        """Take one message; whether more can come."""
        with self._lock:
            if self._closed.is_set():
                return False
            said = self._said(peer)
            if said == _ALIVE:
                return True
            if said not in (None, _LEFT):
                self.decide(said.decode(errors="replace"))
                return True
            self._peers.remove(peer)
            peer.close()
            if said is None:
                self.decide(f"{self._names[self._ranks[peer]]} is gone: killed, or its machine lost")
            return False

    @staticmethod
    def _said(by: Connection) -> bytes | None:
        """One message; None if there will be no more."""
        try:
            return by.recv_bytes(_MOST_BYTES)
        except (OSError, EOFError):
            return None

    def _say(self, text: bytes) -> None:
        for peer in self._peers:
            with suppress(OSError):  # gone; what it left to read says more
                peer.send_bytes(text)

    def _kill(self, rank: int) -> None:
        """Nobody else would end a silent process that a run started by itself; it cannot go on either."""
        if rank in self._kin:
            os.kill(self._kin[rank], getattr(signal, "SIGKILL", signal.SIGTERM))

    def _end(self, verdict: str) -> None:
        """The main thread hangs, as in a collective that waits for a silent process; nothing else gets it out."""
        with self._lock:
            if not self._closed.is_set():
                sys.stderr.write(f"error: {self.over(verdict)}\n")
                sys.stderr.flush()
                os._exit(1)

    def _named(self, hello: str) -> str:
        rank, pid, host = hello.split(maxsplit=2)
        return f"process {rank} of {self._count} (pid {pid} on {host})"


def _first(fabric: Fabric) -> list[Connection]:
    """The connections of the first process to all others."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=fabric.world_size) as server:
        _agreed_port(fabric, server.getsockname()[1])
        server.settimeout(_CONNECT_SEC)
        return [_connection(server.accept()[0]) for _ in range(fabric.world_size - 1)]


def _other(fabric: Fabric) -> Connection:
    """The connection to the first process."""
    environment = fabric.strategy.cluster_environment  # type: ignore[attr-defined]  # of every parallel strategy
    return _connection(socket.create_connection((environment.main_address, _agreed_port(fabric, 0)), _CONNECT_SEC))


def _agreed_port(fabric: Fabric, port: int) -> int:
    total = fabric.all_reduce(torch.tensor(float(port), device=fabric.device), reduce_op="sum")
    assert isinstance(total, torch.Tensor)
    return int(total)


def _connection(of: socket.socket) -> Connection:
    of.settimeout(None)
    return Connection(of.detach())
