"""The command line."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Entry point of ``skipway``."""
    from skipway.cli.app import main as run

    return run()
