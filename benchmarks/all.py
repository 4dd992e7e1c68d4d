"""Every benchmark that has limits, one after the other; exits 1 where one is missed.

python benchmarks/all.py [NAME ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels.py", "--check"),
    "soak": ("soak.py", "--check"),
    "faults": ("faults.py", "--kills", "25"),
    "overhead": ("overhead.py", "--check"),
    "disk": ("disk.py", "--check"),
    "device": ("device.py", "--check"),
    "engines": ("engines.py", "--check"),
    "big_run": ("big_run.py", "--check"),
    "whatif_speed": ("whatif_speed.py", "--check"),
    "scaling": ("scaling.py", "--check"),
    "html_pages": ("html_pages.py", "--check"),
    "checkpoint_audit": ("checkpoint_audit.py", "--check"),
    "fuzz": ("fuzz.py", "--inputs", "1000", "--check"),
}
"""What is run for each name, with its arguments."""


def run(names: list[str]) -> list[str]:
    """Run the benchmarks named, all of them by default; returns those that missed a limit."""
    folder = Path(__file__).parent
    missed = []
    for name in names or list(SCRIPTS):
        print(f"== {name}", flush=True)
        script, *arguments = SCRIPTS[name]
        if subprocess.run([sys.executable, str(folder / script), *arguments], check=False).returncode != 0:
            missed.append(name)
    return missed


def main() -> None:
    """Run what the command line names."""
    missed = run(sys.argv[1:])
    if missed:
        raise SystemExit(f"limits missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
