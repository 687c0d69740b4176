"""``wheeld serve``: run the server."""

import os
from pathlib import Path

import click

from server.clock import SystemClock
from server.logs import make_logger
from server.notify import Notifier
from server.settings import (
    CLIENTS_MAX_DEFAULT,
    CLIENTS_MAX_LIMIT,
    DEAD_MAX,
    DEFAULT_LISTEN,
    DEFAULT_TLS_PORT,
    DESCRIPTORS_RESERVED,
    KEEP_CHECKPOINTS,
    Fsync,
    Settings,
    SettingsError,
    allowed_clients_max,
    default_data,
    default_memory_bytes_max,
    machine_descriptors_max,
    machine_memory_bytes,
    make_tls_options,
    parse_listen,
    parse_size_bytes,
)
from wheel.commands.kinds import FilePath, duration
from wheel.commands.lazy import CONTEXT
from wheel.errors import InvalidRequest
from wheel.values import duration_ms

EPILOG = """\b
Examples:
  wheeld serve
  wheeld serve --data /srv/wheeld --maxmemory 4G --fsync interval
"""


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes that an option says; the callback of one."""
    try:
        return None if value is None else parse_size_bytes(value)
    except SettingsError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command("serve", epilog=EPILOG, context_settings=CONTEXT)
@click.option(
    "--data",
    envvar="WHEELD_DATA",
    type=FilePath(file_okay=False),
    help="The data directory  [default: $STATE_DIRECTORY, or wheeld in the XDG state folder]",
)
@click.option(
    "--listen",
    envvar="WHEELD_LISTEN",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; anything but loopback needs --token-file.",
)
@click.option(
    "--fsync",
    envvar="WHEELD_FSYNC",
    type=click.Choice([mode.value for mode in Fsync]),
    default=Fsync.ALWAYS.value,
    show_default=True,
    help="Sync the log before each reply, every 50 ms, or leave it to the kernel.",
)
@click.option(
    "--maxmemory",
    envvar="WHEELD_MAXMEMORY",
    metavar="SIZE",
    callback=_size,
    help="For jobs and connections, as 512M or 4G  [default: 70 % of what there is]",
)
@click.option(
    "--maxclients",
    envvar="WHEELD_MAXCLIENTS",
    type=int,
    metavar="N",
    help="Connections at once  [default: 10000, or what the descriptor limit allows]",
)
@click.option(
    "--segment-size",
    envvar="WHEELD_SEGMENT_SIZE",
    default="64M",
    show_default=True,
    metavar="SIZE",
    callback=_size,
    help="Size of a log file; each start opens a fresh one.",
)
@click.option(
    "--checkpoint-after",
    envvar="WHEELD_CHECKPOINT_AFTER",
    default="64M",
    show_default=True,
    metavar="SIZE",
    callback=_size,
    help="Make a checkpoint after so much log, and at least 3/4 of the last one's size.",
)
@click.option(
    "--keep-checkpoints",
    envvar="WHEELD_KEEP_CHECKPOINTS",
    type=int,
    default=KEEP_CHECKPOINTS,
    show_default=True,
    metavar="N",
    help="Checkpoints kept; 1 takes less disk, and leaves none to fall back to.",
)
@click.option(
    "--scrub",
    envvar="WHEELD_SCRUB",
    default="10M",
    show_default=True,
    metavar="SIZE",
    callback=_size,
    help="Read so much of the files a second again, to find damage early; 0 = never.",
)
@click.option(
    "--dead-max",
    envvar="WHEELD_DEAD_MAX",
    type=int,
    default=DEAD_MAX,
    show_default=True,
    metavar="N",
    help="Dead jobs kept; beyond that the oldest goes.",
)
@click.option(
    "--dead-kept",
    envvar="WHEELD_DEAD_KEPT",
    default="90d",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="How long a dead job is kept.",
)
@click.option(
    "--token-file",
    envvar="WHEELD_TOKEN_FILE",
    type=FilePath(dir_okay=False),
    help="Who may sign in; see `wheeld token create`.",
)
@click.option(
    "--tls-listen",
    envvar="WHEELD_TLS_LISTEN",
    metavar="HOST:PORT",
    help="Speak TLS there too; needs --tls-cert and --tls-key.",
)
@click.option(
    "--tls-cert",
    envvar="WHEELD_TLS_CERT",
    type=FilePath(dir_okay=False),
    help="PEM file: the server's certificate, then its intermediates.",
)
@click.option(
    "--tls-key",
    envvar="WHEELD_TLS_KEY",
    type=FilePath(dir_okay=False),
    help="PEM file: its key, mode 0600. SIGHUP reads all these files again.",
)
@click.option(
    "--tls-client-ca",
    envvar="WHEELD_TLS_CLIENT_CA",
    type=FilePath(dir_okay=False),
    help="PEM file: CAs of client certificates, whose name signs in as the token of it.",
)
@click.option(
    "--tls-client-auth",
    envvar="WHEELD_TLS_CLIENT_AUTH",
    type=click.Choice(["optional", "required"]),
    help="Whether a client must show one  [default: optional]",
)
@click.option(
    "--allow-network-fs",
    envvar="WHEELD_ALLOW_NETWORK_FS",
    is_flag=True,
    help="Serve data on a network file system, whose locks and syncs may not hold.",
)
@click.option(
    "--strict-handlers",
    envvar="WHEELD_STRICT_HANDLERS",
    is_flag=True,
    help="Refuse jobs for a handler that nobody has served yet.",
)
def serve_command(
    *,
    data: Path | None,
    listen: str,
    fsync: str,
    maxmemory: int | None,
    maxclients: int | None,
    segment_size: int,
    checkpoint_after: int,
    keep_checkpoints: int,
    scrub: int,
    dead_max: int,
    dead_kept: str,
    token_file: Path | None,
    tls_listen: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    tls_client_auth: str | None,
    allow_network_fs: bool,
    strict_handlers: bool,
) -> int:
    """Run the server until SIGTERM or Ctrl-C.

    Each option may be set by an environment variable as well: WHEELD_DATA, WHEELD_LISTEN and so on.

    Exit status: 0 stopped in order, 1 the address is taken, 74 the log failed, 78 the options or
    the data directory do not let it start.
    """
    from server.daemon import serve  # noqa: PLC0415 -- `serve --help` needs no C core

    try:
        clients_max = _clients_max(maxclients)
        host, port = parse_listen(listen)
        settings = Settings(
            data=(data or default_data(os.environ, Path.home())).absolute(),
            host=host,
            port=port,
            fsync=Fsync(fsync),
            memory_bytes_max=(
                default_memory_bytes_max(machine_memory_bytes()) if maxmemory is None else maxmemory
            ),
            clients_max=clients_max,
            segment_bytes=segment_size,
            checkpoint_after_bytes=checkpoint_after,
            keep_checkpoints=keep_checkpoints,
            scrub_bytes=scrub,
            dead_max=dead_max,
            dead_kept_ms=duration_ms(dead_kept),
            token_file=None if token_file is None else token_file.absolute(),
            allow_network_fs=allow_network_fs,
            strict_handlers=strict_handlers,
            tls=make_tls_options(
                listen=None
                if tls_listen is None
                else parse_listen(tls_listen, option="--tls-listen", default_port=DEFAULT_TLS_PORT),
                certificate=tls_cert,
                key=tls_key,
                client_ca=tls_client_ca,
                client_auth=tls_client_auth,
            ),
        )
    except (SettingsError, InvalidRequest) as error:
        raise click.UsageError(str(error)) from error
    clock = SystemClock()
    logger = make_logger(clock)
    if maxclients is not None and clients_max < maxclients:
        logger.warning(
            "clients_limited",
            asked=maxclients,
            clients_max=clients_max,
            hint="there are too few descriptors: raise `ulimit -n`, or LimitNOFILE= in the unit",
        )
    return serve(settings, clock=clock, logger=logger, notifier=Notifier.from_environ(os.environ))


def _clients_max(asked: int | None) -> int:
    """Return how many connections may be held; takes the descriptors for them."""
    if asked is not None and not 1 <= asked <= CLIENTS_MAX_LIMIT:
        return asked  # Settings refuses it by name
    wanted = (CLIENTS_MAX_DEFAULT if asked is None else asked) + DESCRIPTORS_RESERVED
    return allowed_clients_max(asked, machine_descriptors_max(wanted))
