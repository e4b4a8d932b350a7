"""`p2ptrain config`: what the settings are, and whether a file is right."""

import json as jsonlib
from typing import Annotated

import typer

from node.cli import options

app = typer.Typer(help="Show, check and describe the configuration.", no_args_is_help=True)

SchemaJson = Annotated[
    bool, typer.Option("--json", help="Accepted for symmetry: the schema is JSON anyway.", hidden=True)
]


@app.command()
def show(config: options.Files = None, set_: options.Sets = None, json: options.Json = False) -> None:
    """Print every setting and what it means, as TOML that --config takes. Those that are not set are comments."""
    from node.config.commented_toml import to_commented_toml
    from node.config.schema import load

    loaded = load(config or (), set_ or ())
    text = jsonlib.dumps(loaded.model_dump(mode="json"), indent=2) if json else to_commented_toml(loaded).rstrip()
    typer.echo(text)


@app.command()
def check(config: options.Files = None, set_: options.Sets = None, json: options.Json = False) -> None:
    """Say whether files and settings are valid: exit code 0, or 2 and one line that names the first mistake."""
    from node.config.auto_rate import without_auto
    from node.config.schema import from_raw
    from node.config.sections import merged, role_in

    raw = without_auto(merged(config or (), set_ or ()))  # which is a rate where the run starts
    role_in(raw)
    loaded = from_raw(raw)
    if json:
        typer.echo(jsonlib.dumps({"ok": True, "task": loaded.task.name}))
    else:
        files = ", ".join(str(path) for path in config or ()) or "the default configuration"
        typer.echo(f"{files}: valid")


@app.command()
def schema(json: SchemaJson = True) -> None:
    """Print the JSON Schema of the configuration, for editors and other programs."""
    from node.config.schema import Config

    typer.echo(jsonlib.dumps(Config.model_json_schema(), indent=2))
