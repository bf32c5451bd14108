"""The command line of one verb: argparse, whose complaints have code, hint and exit status as all errors do."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from federation.errors import InvalidInput


class VerbParser(argparse.ArgumentParser):
    """The arguments of one verb; options are written out in full.

    Args:
        prog: The whole command, such as ``confide job submit``.
        about: What it does, for its help.
        example: A command that works, shown with every complaint; without one, complaints point to the help.
        epilog: What the help ends with.
        add_help: Whether argparse writes the help; else the command has its own screen.
    """

    def __init__(
        self, prog: str, *, about: str = "", example: str = "", epilog: str | None = None, add_help: bool = True
    ) -> None:
        super().__init__(prog=prog, description=about or None, epilog=epilog, add_help=add_help, allow_abbrev=False)
        self._hint = f"such as: {example}" if example else f"see `{prog} --help`"

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            InvalidInput: Always.
        """
        raise InvalidInput("CFD-G02", f"{self.prog}: {message}", hint=self._hint)


def run_verb(
    noun: str,
    verbs: Mapping[str, Callable[[list[str]], int]],
    arguments: list[str],
    *,
    help_text: str,
    default: str | None = None,
) -> int:
    """Run the verb that comes first, else `default`; show `help_text` where help is asked for, or nothing is.

    Raises:
        InvalidInput: There is no such verb.
    """
    asks = arguments[:1] in (["-h"], ["--help"], ["help"])
    if asks or (not arguments and default is None):
        sys.stdout.write(help_text)
        return 0
    if default is not None and (not arguments or arguments[0].startswith("-")):
        return verbs[default](arguments)
    if arguments[0] not in verbs:
        text = f"there is no `confide {noun} {arguments[0][:40]}`"
        raise InvalidInput("CFD-G02", text, hint=f"there are: {', '.join(verbs)}")
    return verbs[arguments[0]](arguments[1:])
