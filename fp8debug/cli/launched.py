"""`python -m fp8debug.cli.launched [--local-rank=N] [-m] SCRIPT ...`: attach, below torch.distributed.launch.

That launcher puts `--local-rank=N` before everything it was given; the script expects it before its own arguments.
"""

from __future__ import annotations

import sys

from fp8debug.cli.main import main


def arguments(words: list[str]) -> list[str]:
    """The arguments of `fp8debug`, with the launcher's where the script looks for them."""
    given = [word for word in words[:1] if word.startswith("--local-rank=")]
    rest = words[len(given) :]
    at = 2 if rest[:1] == ["-m"] else 1
    return ["attach", *rest[:at], *given, *rest[at:]]


if __name__ == "__main__":
    sys.exit(main(arguments(sys.argv[1:])))
