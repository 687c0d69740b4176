"""``wheeld token``: make, show and take back access tokens."""

import json
from pathlib import Path
from typing import Final

import click

from server.auth import (
    TOKEN_BYTES,
    Role,
    Token,
    TokenFileError,
    add_token,
    mint,
    parse_name,
    parse_role,
    parse_time_ms,
    read_tokens,
    remove_token,
)
from server.clock import SystemClock, iso_utc
from wheel.commands.kinds import FilePath
from wheel.commands.lazy import CONTEXT, Group
from wheel.commands.output import iso, print_json, print_table
from wheel.errors import in_words
from wheel.values import duration_ms

EPILOG = """\b
Examples:
  wheeld token create billing producer --token-file /etc/wheeld/tokens
  wheeld token create mailer worker:mail.*,digest.send --token-file tokens
  wheeld token create audit viewer --expires 30d --token-file tokens
"""
LIST_EPILOG: Final = """\b
Examples:
  wheeld token list --token-file /etc/wheeld/tokens
  wheeld token list --token-file /etc/wheeld/tokens --json
"""
REVOKE_EPILOG: Final = """\b
Examples:
  wheeld token revoke billing --token-file /etc/wheeld/tokens
  wheeld token revoke billing --token-file /etc/wheeld/tokens && systemctl reload wheeld
"""
LIST_HEADER: Final = ("NAME", "ROLE", "HANDLERS", "BY", "CREATED (UTC)", "EXPIRES (UTC)", "STATE")
AGAIN: Final = "A running server reads the file again at SIGHUP."

LATEST_MS: Final = 253_402_300_799_000  # 9999-12-31T23:59:59Z

_token_file = click.option(
    "--token-file",
    envvar="WHEELD_TOKEN_FILE",
    required=True,
    type=FilePath(dir_okay=False),
    help="The token file that the server reads.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group("token", cls=Group, context_settings=CONTEXT)
def token_group() -> None:
    """Make, list and revoke access tokens."""


@token_group.command("create", epilog=EPILOG, context_settings=CONTEXT)
@click.argument("name")
@click.argument("role")
@_token_file
@click.option(
    "--expires", metavar="WHEN", help="When it ends: 30d from now, or ISO 8601 with an offset."
)
@click.option(
    "--certificate",
    is_flag=True,
    help="No secret: a TLS client certificate of this name signs in.",
)
@_as_json
def create_command(
    *, name: str, role: str, token_file: Path, expires: str | None, certificate: bool, as_json: bool
) -> None:
    """Add a token for NAME with ROLE and print it, once: the file holds only its hash.

    ROLE is viewer, producer, worker, operator or admin; behind a colon the handlers that a producer
    or a worker is limited to, as names or prefix*.
    """
    clock = SystemClock()
    now_ms = clock.wall_ms()
    try:
        role_word, globs = parse_role(role)
        parse_name(name)
        expires_ms = None if expires is None else _moment_ms(expires, now_ms)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if expires_ms is not None and expires_ms <= now_ms:
        raise click.UsageError(f"--expires {expires} has passed: the token would let nobody in")
    secret, token = mint(
        name,
        Role(role_word),
        globs,
        clock.entropy(TOKEN_BYTES),
        created_ms=now_ms,
        expires_ms=expires_ms,
    )
    if certificate:
        secret = ""
        token = Token(
            name=name, role=token.role, globs=globs, created_ms=now_ms, expires_ms=expires_ms
        )
    path = token_file.absolute()
    try:
        add_token(path, token)
    except (TokenFileError, OSError) as error:
        raise click.ClickException(in_words(error)) from error
    if as_json:
        facts = _facts(token) | {"token": secret or None, "file": str(path)}
        click.echo(json.dumps(facts))
    elif secret:
        click.echo(secret)
        click.echo(
            f"This is the only time it is shown. Its hash stands in {path}. {AGAIN}", err=True
        )
    else:
        click.echo(f"{name} signs in by its certificate. {AGAIN}", err=True)


@token_group.command("list", epilog=LIST_EPILOG, context_settings=CONTEXT)
@_token_file
@_as_json
def list_command(*, token_file: Path, as_json: bool) -> None:
    """List who may sign in: name, role, handlers, when made, when it ends. Never a secret."""
    try:
        tokens = read_tokens(token_file).lines
    except TokenFileError as error:
        raise click.ClickException(in_words(error)) from error
    now_ms = SystemClock().wall_ms()
    if as_json:
        items = [_facts(token) | {"expired": not token.is_valid(now_ms)} for token in tokens]
        print_json({"items": items})
        return
    print_table(LIST_HEADER, [_row(token, now_ms) for token in tokens])


def _row(token: Token, now_ms: int) -> tuple[str, ...]:
    return (
        token.name,
        str(token.role),
        ",".join(token.globs) or "*",
        "token" if token.digest else "certificate",
        "" if token.created_ms is None else iso(token.created_ms),
        "" if token.expires_ms is None else iso(token.expires_ms),
        "" if token.is_valid(now_ms) else "expired",
    )


@token_group.command("revoke", epilog=REVOKE_EPILOG, context_settings=CONTEXT)
@click.argument("name")
@_token_file
@_as_json
def revoke_command(*, name: str, token_file: Path, as_json: bool) -> None:
    """Take the token of NAME out of the file.

    At its next SIGHUP the server lets nobody in with it, and closes its connections.
    """
    try:
        remove_token(token_file.absolute(), name)
    except (TokenFileError, OSError) as error:
        raise click.ClickException(in_words(error)) from error
    if as_json:
        click.echo(json.dumps({"name": name, "revoked": True, "file": str(token_file.absolute())}))
        return
    click.echo(f"{name} is off the list. {AGAIN} Then its connections are closed.", err=True)


def _moment_ms(text: str, now_ms: int) -> int:
    """Return a moment that a person wrote: ISO 8601, or how long from now.

    Raises:
        ValueError: it is neither.
    """
    try:
        if "-" in text or ":" in text:
            return parse_time_ms(text)
        at_ms = now_ms + duration_ms(text)
    except ValueError as error:
        raise ValueError(f"--expires: {error}") from error
    if at_ms > LATEST_MS:
        raise ValueError(f"{text!r} is after the year 9999; leave --expires out for never")
    return at_ms


def _facts(token: Token) -> dict[str, object]:
    """Return what may be shown of a token."""
    role = f"{token.role}:{','.join(token.globs)}" if token.globs else str(token.role)
    return {
        "name": token.name,
        "role": role,
        "by": "token" if token.digest else "certificate",
        "created": None if token.created_ms is None else iso_utc(token.created_ms),
        "expires": None if token.expires_ms is None else iso_utc(token.expires_ms),
    }
