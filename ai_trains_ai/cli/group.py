"""The command group: lazy commands, and one place that turns every ending into an exit code and an answer.

    exit code   0 done · 1 the job's own fault · 2 wrong use · 3 infrastructure · 130 interrupted · 143
    terminated

A command returns its exit code. With --json every ending, errors included, is one JSON document on stdout.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from types import FrameType
from typing import Any

import click

from ai_trains_ai.cli.output import emit_json
from ai_trains_ai.errors import AgentError, InfrastructureError, UsageError

DONE, JOB_FAULT, WRONG_USE, INFRASTRUCTURE, OUR_BUG, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 70, 130, 143


class LazyCommands(MutableMapping[str, click.Command]):
    """Name -> command, imported at first look."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, _, attribute = self._sources[name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command), f"{self._sources[name]} is no command"
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._sources.setdefault(name, "")
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._sources[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


class AtaGroup(click.Group):
    """lazy: name -> ("module:attribute", line for the overview)."""

    def __init__(self, *, lazy: dict[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(**rest, context_settings={"help_option_names": ["-h", "--help"]})
        self.commands = LazyCommands({name: source for name, (source, _) in lazy.items()})
        self._lines = {name: line for name, (_, line) in lazy.items()}
        self.params.append(
            click.Option(
                ["--version"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_print_version,
                help="Print the version.",
            )
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines.items()))

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Run and exit, as click does; with standalone_mode=False return the exit code instead."""
        standalone = options.pop("standalone_mode", True)
        arguments = list(sys.argv[1:] if args is None else args)
        if standalone:
            signal.signal(signal.SIGTERM, _terminated)
        code = self.run(arguments, **options)
        if standalone:
            sys.exit(code)
        return code

    def run(self, arguments: list[str], **options: Any) -> int:
        as_json = "--json" in arguments
        try:
            code = super().main(arguments, standalone_mode=False, **options)
            sys.stdout.flush()
            return code if isinstance(code, int) else DONE
        except click.exceptions.Exit as ending:
            return ending.exit_code
        except click.exceptions.NoArgsIsHelpError as nothing:
            click.echo(nothing.format_message())
            return DONE
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            usage = f"{context.get_usage()}\n" if context is not None and not as_json else ""
            return _fail("usage", error.format_message(), WRONG_USE, as_json, before=usage)
        except UsageError as error:
            return _fail("usage", str(error), WRONG_USE, as_json)
        except AgentError as error:
            return _fail("job", str(error), JOB_FAULT, as_json)
        except InfrastructureError as error:
            return _fail("infrastructure", str(error), INFRASTRUCTURE, as_json)
        except (KeyboardInterrupt, click.Abort):
            return _fail("interrupted", "interrupted; nothing is left running", INTERRUPTED, as_json)
        except Terminated:
            return _fail("interrupted", "terminated; nothing is left running", TERMINATED, as_json)
        except (BrokenPipeError, SystemExit):
            # The reader of our output went away (`| head`), for which click raises SystemExit: no error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        except Exception as error:  # noqa: BLE001 (the outermost frame: a bug has to end as a document too)
            traceback.print_exc()
            first = str(error).partition("\n")[0]
            return _fail("bug", f"{type(error).__name__}: {first}", OUR_BUG, as_json)


class Terminated(BaseException):
    """SIGTERM, raised in the main thread so that every `finally` runs."""


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


def _fail(kind: str, message: str, code: int, as_json: bool, before: str = "") -> int:
    if as_json:
        emit_json({"error": {"kind": kind, "message": message}})
    else:
        label = "" if kind == "interrupted" else f"{kind} error: "
        click.echo(f"{before}ata: {label}{message}", err=True)
    return code


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from ai_trains_ai import __version__

        click.echo(f"ata {__version__}")
        ctx.exit(0)
