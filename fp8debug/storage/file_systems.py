"""File systems of fsspec, which is loaded when an URL is met: the optional package stays optional."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fp8debug.errors import UsageError, nearest


def file_system_class(scheme: str) -> Any:
    """The class of file system for URLs that begin with `scheme`.

    Raises:
        UsageError: nobody knows the scheme, or a package is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(
            f"{scheme}://... needs the package fsspec, which is not installed: pip install 'fp8debug[s3]'"
        ) from error
    known = sorted(set(fsspec.available_protocols()) - {"file", "local"})
    if scheme not in known:
        near = nearest(scheme, known)
        raise UsageError(
            f"{scheme}://: no file system of this kind is known; expected a path, or an URL such as s3://bucket/run"
            + (f" (nearest: {', '.join(near)})" if near else "")
        )
    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        extra = "pip install 'fp8debug[s3]'" if is_s3(scheme) else str(error)
        raise UsageError(f"{scheme}:// needs a package that is not installed: {extra}") from error


def is_s3(scheme: str) -> bool:
    """Whether s3fs is what opens such URLs."""
    return scheme in ("s3", "s3a")


@cache
def file_system(scheme: str, process: int) -> Any:
    """The file system of a process, made once.

    A forked child must not use its parent's: the thread that requests go through is not there.
    """
    kind = file_system_class(scheme)
    if not is_s3(scheme):
        return kind(use_listings_cache=False)
    import fsspec

    options: dict[str, Any] = {}
    if "config_kwargs" not in fsspec.config.conf.get(scheme, {}):
        options["config_kwargs"] = {"retries": {"max_attempts": 1}}  # tries are counted here and in s3fs alone
    # One piece at a time: memory stays bounded, and a small object takes one request.
    made = kind(use_listings_cache=False, skip_instance_cache=True, max_concurrency=1, **options)
    made.retries = 2
    return made


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise what the libraries of a store raise, as OSError: a store out of reach is like a disk that fails."""
    try:
        yield
    except (OSError, TypeError, NotImplementedError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
