"""Signs of life: who is gone, silent or failed is told to everybody, and nobody who left is missed."""

from __future__ import annotations

import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from skipway.errors import ModelRunError, SkipwayError
from skipway.train import watch
from skipway.train.folder import RunFolder
from skipway.train.watch import _Watch, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEAT_SEC = 0.02


class Ranks:
    """Stand-ins for Fabric on several ranks, each in a thread of this process."""

    def __init__(self, count: int) -> None:
        self.count, self.sum, self.lock = count, 0.0, threading.Lock()
        self.together = threading.Barrier(count)

    def fabric(self, rank: int) -> Any:
        return SimpleNamespace(
            global_rank=rank, is_global_zero=rank == 0, world_size=self.count, device=torch.device("cpu"),
            strategy=SimpleNamespace(cluster_environment=SimpleNamespace(main_address="127.0.0.1")),
            all_reduce=self.all_reduce,
        )  # fmt: skip

    def all_reduce(self, value: torch.Tensor, reduce_op: str) -> torch.Tensor:
        assert reduce_op == "sum"
        with self.lock:
            self.sum += float(value)
        self.together.wait()
        return torch.tensor(self.sum)

    def each(self, do: Callable[[int], Any]) -> list[Any]:
        """What `do` gives for each rank, all at once; an error is a result."""
        results: list[Any] = [None] * self.count

        def one(rank: int) -> None:
            try:
                results[rank] = do(rank)
            except BaseException as error:  # noqa: BLE001  # looked at by the test
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BEAT_SEC", BEAT_SEC)
    monkeypatch.setattr(watch, "GRACE_SEC", 10.0)
    monkeypatch.setattr(watch, "SILENT_BEATS", 1000)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which processes would have ended."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit  # ends the thread that asked

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(threading, "excepthook", lambda raised: None)
    return codes


@pytest.fixture
def three(tmp_path: Path, exits: list[int]) -> Iterator[list[_Watch]]:
    ranks = Ranks(3)
    watches = ranks.each(lambda rank: _Watch(ranks.fabric(rank), RunFolder(tmp_path / "run"), {}))
    yield watches
    for one in watches:
        one.close()


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def die(of: _Watch) -> None:
    """As the system does when a process is killed: its connections are closed, without a word."""
    of._closed.set()
    for peer in list(of._peers):
        with socket.socket(fileno=os.dup(peer.fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_is_gone_is_told_to_all_others(gone: int, three: list[_Watch], tmp_path: Path) -> None:
    die(three[gone])
    name = f"process {gone} of 3 (pid {os.getpid()} on "
    for rank in {0, 1, 2} - {gone}:
        verdict = three[rank].verdict_behind(RuntimeError("Connection closed by peer"))
        assert verdict is not None
        assert verdict.startswith(name)
        assert verdict.endswith("is gone: killed, or its machine lost")
    assert str(three[1].over("X")) == (
        "X; this ends the run on all 3 processes; there was no checkpoint yet\n"
        f"expected: every process alive until the end\ntry: skipway train --resume {tmp_path / 'run'}"
    )


@pytest.mark.parametrize("silent", [0, 2])
def test_who_is_silent_is_told_and_killed_by_its_kin(
    silent: int, three: list[_Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    monkeypatch.setattr(watch, "SILENT_BEATS", 10)
    three[1 if silent == 0 else 0]._kin = {silent: 4711}
    three[silent]._say = lambda text: None  # type: ignore[method-assign]
    for rank in {0, 1, 2} - {silent}:
        until(lambda rank=rank: three[rank]._verdict is not None)
        assert f"process {silent} of 3" in str(three[rank]._verdict)
        assert "gave no sign of life for 0 s" in str(three[rank]._verdict)
    until(lambda: killed == [4711])


def test_who_leaves_is_not_missed(three: list[_Watch], exits: list[int]) -> None:
    three[2].close()
    three[0].close()
    time.sleep(20 * BEAT_SEC)
    assert three[1]._verdict is None
    assert exits == []


def test_who_hangs_is_ended(three: list[_Watch], exits: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody here leaves by itself, as in a collective that waits."""
    die(three[2])
    until(lambda: three[0]._verdict is not None and three[1]._verdict is not None)
    assert exits == []
    for one in three:
        one._left = 0.1
    until(lambda: "skipway-watch" not in [thread.name for thread in threading.enumerate()])
    assert exits == [1, 1]
    assert capsys.readouterr().err.count("error: process 2 of 3 (pid ") == 2


def test_what_one_raises_ends_the_others(tmp_path: Path) -> None:
    """A full disk on one rank; the others are told by an error of the collective, and say what was behind it."""
    ranks = Ranks(3)
    failed = threading.Event()

    def run(rank: int) -> None:
        with watched(ranks.fabric(rank), RunFolder(tmp_path / "run"), {}):
            ranks.together.wait()
            if rank == 1:
                failed.set()
                raise SkipwayError("cannot write state: no space left", "", "free some space")
            failed.wait()
            cause = RuntimeError("Connection closed by peer")
            if rank == 2:
                raise ModelRunError("the model failed in step 3") from cause
            raise cause

    first, second, third = ranks.each(run)
    assert str(second) == "cannot write state: no space left\ntry: free some space"
    for told in (first, third):
        assert isinstance(told, SkipwayError)
        assert not isinstance(told, ModelRunError)
        assert told.given.startswith("process 1 of 3 (pid ")
        assert " failed: cannot write state: no space left; this ends the run on all 3 processes" in told.given


def test_what_all_raise_is_raised_as_it_is(tmp_path: Path) -> None:
    """A refusal that each rank finds by itself, and an error that is nobody else's."""
    ranks = Ranks(2)

    def run(rank: int) -> None:
        with watched(ranks.fabric(rank), RunFolder(tmp_path / "run"), {}):
            ranks.together.wait()
            if rank == 0:
                time.sleep(10 * BEAT_SEC)  # when it has heard of the other one
            raise SkipwayError(f"refused on {rank}")

    assert [str(error) for error in ranks.each(run)] == ["refused on 0", "refused on 1"]


def test_an_error_of_the_model_alone_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_SEC", 0.1)
    ranks = Ranks(2)

    def run(rank: int) -> None:
        with watched(ranks.fabric(rank), RunFolder(tmp_path / "run"), {}):
            ranks.together.wait()
            if rank == 0:
                raise RuntimeError("out of memory")

    assert [str(error) for error in ranks.each(run)] == ["out of memory", "None"]


def test_one_process_is_not_watched(tmp_path: Path) -> None:
    with watched(Ranks(1).fabric(0), RunFolder(tmp_path / "run"), {}):
        assert "skipway-watch" not in [thread.name for thread in threading.enumerate() if thread.is_alive()]
