"""``wheeld token``: make access tokens."""

import json
from pathlib import Path

import click

from server.auth import (
    TOKEN_BYTES,
    Role,
    TokenFileError,
    add_token,
    mint,
    parse_name,
    parse_role,
)
from server.clock import SystemClock
from wheel.commands.lazy import CONTEXT

EPILOG = """\b
Examples:
  wheeld token create billing producer --token-file /etc/wheeld/tokens
  wheeld token create mailer worker:mail.*,digest.send --token-file tokens
"""


@click.group("token", context_settings=CONTEXT)
def token_group() -> None:
    """Make access tokens."""


@token_group.command("create", epilog=EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.argument("role")
@click.option(
    "--token-file",
    envvar="WHEELD_TOKEN_FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file that the server reads; made if it is not there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def create_command(name: str, role: str, token_file: Path, as_json: bool) -> None:
    """Add a token for NAME with ROLE and print it, once: the file holds only its hash.

    ROLE is viewer, producer, worker, operator or admin; behind a colon the handlers that it is
    limited to, as names or prefix*.
    """
    try:
        role_word, globs = parse_role(role)
        parse_name(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    secret, token = mint(name, Role(role_word), globs, SystemClock().entropy(TOKEN_BYTES))
    path = token_file.absolute()
    try:
        add_token(path, token)
    except (TokenFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"name": name, "role": role, "token": secret, "file": str(path)}))
        return
    click.echo(secret)
    click.echo(
        f"This is the only time it is shown. Its hash stands in {path}; a running server "
        "reads the file again at SIGHUP.",
        err=True,
    )
