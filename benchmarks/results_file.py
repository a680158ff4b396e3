"""What the benchmarks share: the machine in one line, and sections of the results file."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from pathlib import Path


def machine(packages: tuple[str, ...]) -> str:
    """Processor, versions of `packages` and date in one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    processor = next((line.partition(":")[2].strip() for line in lines if "model name" in line), processor)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    return f"{processor}; Python {platform.python_version()}, {versions}; {time.strftime('%Y-%m-%d')}"


def write_section(path: Path, title: str, lines: list[str]) -> None:
    """Replace the section called `title` of a results file, or append it."""
    heading = f"## {title}"
    text = path.read_text(encoding="utf-8") if path.exists() else "# Benchmark results\n"
    before, found, rest = text.partition(heading)
    after = rest[rest.index("\n## ") :] if found and "\n## " in rest else ""
    path.write_text(f"{before.rstrip()}\n\n{heading}\n\n" + "\n".join(lines) + "\n" + after, encoding="utf-8")


def tell(lines: list[str], title: str, path: Path | None) -> None:
    """Print the results; where a results file is named, they replace its section called `title`, too."""
    print("\n".join(lines))
    if path is not None:
        write_section(path, title, lines)
