"""Where runs are carried out: processes of this machine, or the workers of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from skipway.errors import MissingPackageError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from skipway.study.jobs.worker import Job, Outcome

__all__ = ["LAUNCHERS", "Launcher", "launcher_named"]

LAUNCHERS: Final = ("local", "ray")


class Launcher(Protocol):
    """Carries out jobs, some at a time."""

    def __call__(
        self,
        jobs: Sequence[Job],
        *,
        workers: int,
        threads: int | None = None,
        devices: Sequence[str] = (),
        glance: Callable[[Collection[Job], dict[Job, Outcome]], None] | None = None,
        stopping: Callable[[], None] | None = None,
    ) -> dict[Job, Outcome]:
        """As `skipway.study.jobs.pool.run_jobs`."""


def launcher_named(name: str) -> Launcher:
    """The launcher of a name.

    Raises:
        UnknownNameError: there is none.
        MissingPackageError: it needs a package that is not installed.
    """
    if name not in LAUNCHERS:
        raise UnknownNameError("launcher", name, LAUNCHERS)
    if name == "ray":
        try:
            from skipway.study.jobs import ray_pool
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise MissingPackageError("ray", "the launcher 'ray'", "ray") from None
        return ray_pool.run_jobs
    from skipway.study.jobs import pool

    return pool.run_jobs
