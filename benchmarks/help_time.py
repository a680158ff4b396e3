"""How long `skipway --help` takes, beside a Python that does nothing, and that it imports no torch.

Run: python benchmarks/help_time.py
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time

REPEATS = 15
LIMIT_SEC = 0.4
HELP = [sys.executable, "-m", "skipway", "--help"]
NOTHING = [sys.executable, "-c", "pass"]


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # our own two commands
    return time.perf_counter() - start


def main() -> int:
    seconds(HELP)  # byte code and disk cache
    pairs = [(seconds(HELP), seconds(NOTHING)) for _ in range(REPEATS)]
    ours, bare = (sorted(column) for column in zip(*pairs, strict=True))
    print(f"{platform.platform()}, Python {platform.python_version()}, {REPEATS} repeats, in turns")
    for name, times in (("skipway --help", ours), ("python -c pass", bare)):
        print(f"{name}: median {statistics.median(times):.3f} s, from {times[0]:.3f} to {times[-1]:.3f} s")
    median = statistics.median(ours)
    print(f"limit {LIMIT_SEC} s: {'kept' if median <= LIMIT_SEC else 'MISSED'}")
    return int(median > LIMIT_SEC)


if __name__ == "__main__":
    sys.exit(main())
