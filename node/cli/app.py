"""The `p2ptrain` command: its subcommands, and the one place where errors become a line and an exit code.

Subcommands import what they need when they run, so that `--help` answers at once and does not wait for torch.
"""

import sys
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from node.cli import (
    bench_cmd,
    config_cmd,
    distill_cmd,
    doctor_cmd,
    export_cmd,
    id_cmd,
    model_cmd,
    monitor_cmd,
    node_cmd,
    page_cmd,
    plan_cmd,
    privacy_cmd,
    report_cmd,
    service_cmd,
    simulate_cmd,
    status_cmd,
    swarm_cmd,
    sweep_cmd,
    top_cmd,
    tune_cmd,
    up_cmd,
)
from node.events.redaction import Redactor
from node.system import build, gc_tuning, interrupts, left_threads, ranks
from node.system.errors import EXIT_INTERRUPTED, EXIT_USAGE, UsageError, is_interrupt, translate

app = typer.Typer(
    name="p2ptrain",
    help="Train one model together on volunteers' machines, with nobody in the middle.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up_cmd.up)
app.command("node")(node_cmd.node)
app.command("tune")(tune_cmd.tune)
app.command("plan")(plan_cmd.plan)
app.command("simulate")(simulate_cmd.simulate)
app.command("generate")(model_cmd.generate)
app.command("evaluate")(model_cmd.evaluate)
app.command("export")(export_cmd.export)
app.command("distill")(distill_cmd.distill)
app.command("doctor")(doctor_cmd.doctor)
app.command("status")(status_cmd.status)
app.command("top")(top_cmd.top)
app.command("page")(page_cmd.page)
app.command("report")(report_cmd.report)
app.command("sweep")(sweep_cmd.sweep)
app.add_typer(bench_cmd.app, name="bench")
app.add_typer(config_cmd.app, name="config")
app.add_typer(id_cmd.app, name="id")
app.add_typer(privacy_cmd.app, name="privacy")
app.add_typer(service_cmd.app, name="service")
app.add_typer(swarm_cmd.app, name="swarm")
app.add_typer(monitor_cmd.app, name="monitor")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="With any command: show tracebacks, log more.")] = False,
) -> None:
    """Handle the options of the program itself."""
    if context.invoked_subcommand not in interrupts.STARTING:
        interrupts.raising()
    if show_version:
        typer.echo(f"p2ptrain {build.version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        _check_place()


def _check_place() -> None:
    """Raise UsageError in a working directory that was removed: torch's own libraries end a process there, without a
    word of why."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is not there any more", "cd to one that is, and try again") from None


@cache
def commands() -> Any:
    """Build the tree of commands that typer's declarations describe, a click group. Once: it takes 40 ms."""
    return typer.main.get_command(app)


def program() -> int:
    """Run the command line as this whole process, which ends after it, and return the exit code."""
    gc_tuning.starting()
    code = main()
    gc_tuning.ending()
    ranks.leave(code)
    left_threads.leave_with_them(code)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        # --debug is one for all commands, so it may stand anywhere.
        words = [word for word in given if word != "--debug"]
        result = commands()(args=words, prog_name="p2ptrain", standalone_mode=False)
    except BaseException as error:
        return _report(error, debug=debug)
    return result if isinstance(result, int) else 0


def _report(error: BaseException, *, debug: bool) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if is_interrupt(error) or type(error).__name__ == "Abort":
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):  # `p2ptrain status | head`
        sys.stderr.close()
        return 0
    redact = Redactor().text  # standard error may be a service's journal
    if debug:
        print(redact("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if hasattr(error, "format_message"):  # typer's own: an unknown option, a missing argument
        print(f"error: {redact(_one_line(error.format_message()))}; see {_help_command(error)}", file=sys.stderr)
        return EXIT_USAGE
    known = translate(error)
    print(f"error: {redact(known.line())}", file=sys.stderr)
    return known.exit_code


def _help_command(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'p2ptrain'} --help"


def _one_line(message: str) -> str:
    short = " ".join(message.split()).rstrip(".")
    return short[:1].lower() + short[1:]
