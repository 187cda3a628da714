"""`pettingllms-share`: hands on what a run has trained, to a folder or to the Hugging Face hub."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pettingllms.cli.guard import guarded, terminable
from pettingllms.cli.options import CommandParser

EXAMPLES = (
    "pettingllms-share runs/latest --to shared/mine",
    "pettingllms-share runs/latest --to hub:me/my-team --private",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 when shared, 2 on an error."""
    return guarded(lambda: _run(sys.argv[1:] if argv is None else list(argv)))


def parser() -> CommandParser:
    """The options of this command."""
    made = CommandParser(
        prog="pettingllms-share",
        description="Shares the adapters of a finished run, with a model card that has its scores.",
        examples=EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="Folder of a finished run")
    made.add_argument(
        "--to", required=True, metavar="WHERE", help="A new folder, or hub:NAME for a repository"
    )
    made.add_argument("--private", action="store_true", help="Create the repository as private")
    return made


def _run(argv: Sequence[str]) -> int:
    options = parser().read(argv)
    # Here and not above, so that --help does not wait for torch.
    from pettingllms.contrib.sharing.writing import share

    with terminable():
        where = share(Path(options.run), options.to, private=options.private)
    print(f"shared: {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
