"""What is asked for before anything is read: a checkpoint, or a run; and options that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fp8debug.analysis.checkpoint.store.folders import Listing
from fp8debug.errors import UsageError
from fp8debug.rundir import RunDir
from fp8debug.storage import is_url


def is_run(path: str | Path) -> bool:
    """Whether there is a run directory; a store that is out of reach has none."""
    try:
        return RunDir(path).exists()
    except OSError:
        return False


def check_asked(
    path: str | Path, references: Sequence[str | Path], run: str | Path | None, dialect: str | None, headers_only: bool
) -> None:
    """Refuse what would be left out without a word, and paths that were mixed up.

    Raises:
        UsageError: an option says nothing of a run directory, or contradicts another; a checkpoint where a run is
            expected, or the reverse.
    """
    if is_run(path):
        options = {"--reference": references, "--run": run, "--as": dialect, "--headers-only": headers_only}
        given = [option for option, value in options.items() if value]
        if given:
            raise UsageError(
                f"{path} is a run directory, which is held against its own weights: {' and '.join(given)} cannot be "
                "used with it; give a checkpoint, and the run with --run"
            )
    for reference in references:
        if is_run(reference):
            raise UsageError(f"--reference {reference} is a run directory; expected a checkpoint; give it with --run")
    if run is not None and _is_checkpoint(run) and not is_run(run):
        raise UsageError(f"--run {run} is a checkpoint; expected a run directory; give it with --reference")
    if headers_only and (references or run is not None):
        option = "--reference" if references else "--run"
        raise UsageError(f"got --headers-only and {option}, which reads all weights; expected one of them")


def _is_checkpoint(path: str | Path) -> bool:
    if is_url(path):
        return False
    found = Listing.of(Path(path)) if Path(path).is_dir() else None
    return Path(path).is_file() if found is None else found.is_checkpoint
