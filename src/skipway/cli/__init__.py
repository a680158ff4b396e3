"""The command line."""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``skipway``: run one command line and return its exit code.

    Args:
        arguments: what stands behind ``skipway``; by default what the process was started with.
    """
    from skipway.cli.app import run

    return run(arguments)
