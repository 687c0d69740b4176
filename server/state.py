"""What the server shows of itself: INFO, CONFIG GET, CLOCK.

Everything is read from counters, never by a scan: an INFO costs the same with ten jobs and with
ten million.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from server.checkpoints import Checkpointer
from server.clock import Clock
from server.info import REDIS_VERSION, Section, Value, pairs, resident_bytes, shown_bytes
from server.keeper import Keeper
from server.planner import Schedules
from server.replay import Progress
from server.scrub import Scrubber
from server.settings import Fsync, Settings, jobs_max, refused_at_bytes
from server.signin import ADDRESSES_MAX, ATTEMPTS_PER_S, Guesses, SignIn
from server.tls_server import (
    HANDSHAKE_S,
    HANDSHAKES_MAX,
    HANDSHAKES_OF_ONE_MAX,
    TlsServer,
)
from server.watch import HELD_MS, Seen
from wal.log import FileLog
from wheel.engine.core import Core, FigureKind
from wheel.engine.facts import Figure
from wheel.facade import VERSION

Figures = Mapping[str, int]
ENDED_MAX: Final = 4 << 20  # of the ended ring and of ONCE tokens (csrc/wd_ring.h)
HANDLERS_MAX: Final = 65_000  # and as many policies (csrc/wd_policy.h)
TABLE_MAX: Final = 1 << 20  # csrc/wd_table.h
STATES: Final = ("scheduled", "held", "ready", "leased", "dead")


@dataclass(slots=True, kw_only=True)
class State:
    """The parts of a server that INFO looks at, some of which come up later than others.

    Attributes:
        settings: the options.
        clock: for uptime and times.
        core: the C core.
        store: uuid of the data directory.
        loop_name: "uvloop" or "asyncio".
        listen: every address that is listened on, for people.
        port: the port of the first.
        started_ns: mono time of the process's start.
        progress: of the replay.
        log: the open log, None while replaying.
        schedules: their scheduler.
        keeper: of the log, None while replaying.
        checkpointer: makes checkpoints, None while replaying.
        scrubber: reads files again, None while replaying.
        term: 0 while replaying.
        loading: whether the log is still replayed.
        sign_in: who may do what.
        tls: the connections that speak TLS, None = none may.
        listen_tls: every address that TLS is spoken on, for people.
    """

    settings: Settings
    clock: Clock
    core: Core
    store: bytes
    loop_name: str
    listen: str
    port: int
    started_ns: int
    progress: Progress = field(default_factory=Progress)
    log: FileLog | None = None
    schedules: Schedules | None = None
    keeper: Keeper | None = None
    checkpointer: Checkpointer | None = None
    scrubber: Scrubber | None = None
    term: int = 0
    loading: bool = True
    sign_in: SignIn | None = None
    tls: TlsServer | None = None
    listen_tls: str = ""

    def sections(self) -> Mapping[str, Section]:
        """Return INFO's sections, in order."""
        stats = self.core.stats()
        engine = self.core.engine_figures()
        return {
            "Server": self._server(),
            "Clients": self._clients(stats),
            "Memory": self._memory(stats),
            "Persistence": self._persistence(stats),
            "Stats": self._stats(stats),
            "Replication": {"role": "master", "connected_slaves": 0},
            "Jobs": self._jobs(engine),
            "Schedules": {} if self.schedules is None else self.schedules.figures(),
            "Clock": self.clocks(engine),
            "Latency": self._latency(),
            "Limits": self._limits(stats, engine),
            "Errorstats": self._errors(),
            "Log": self._log_figures(),
            "Checkpoint": {
                **(self.checkpointer.section() if self.checkpointer else {}),
                **(self.scrubber.section() if self.scrubber else {}),
            },
        }

    def _server(self) -> Section:
        uptime_s = (self.clock.mono_ns() - self.started_ns) // 1_000_000_000
        return {
            "redis_version": REDIS_VERSION,
            "redis_mode": "standalone",
            "wheeld_version": VERSION,
            "python_version": platform.python_version(),
            "os": f"{platform.system()} {platform.release()} {platform.machine()}",
            "multiplexing_api": f"epoll, {self.loop_name}",
            "process_id": os.getpid(),
            "run_id": f"{self.store.hex()}{self.term:08x}",
            "health": self._health(),
            "tcp_port": self.port,
            "uptime_in_seconds": uptime_s,
            "uptime_in_days": uptime_s // 86_400,
        }

    def _health(self) -> str:
        """Return green; yellow = refused, held back or damaged; red = the log is stuck."""
        stats = self.core.stats()
        if stats["queue_age_ms"] >= stats["queue_red_ms"]:
            return "red"
        full = stats["memory_bytes"] >= refused_at_bytes(self.settings.memory_bytes_max)
        disk_full = self.keeper is not None and self.keeper.disk_full
        damaged = self.scrubber is not None and self.scrubber.damaged_files > 0
        corrupt = self.core.engine_figures()["payload_corrupt"] or self._mended()
        refused = stats["writes_paused"] or stats["commit_stalled"] or full or disk_full
        troubled = refused or damaged or corrupt
        return "yellow" if troubled else "green"

    def _errors(self) -> Section:
        """Return how many error replies of each code were sent, in the words of Redis."""
        return {
            f"errorstat_{code}": f"count={count}"
            for code, count in self.core.errors().items()
            if count
        }

    def _clients(self, stats: Figures) -> Section:
        return {
            "connected_clients": stats["conns"],
            "maxclients": stats["conns_max"],
            "clients_gated": stats["conns_gated"],
            "clients_slow": stats["conns_blocked"],
            "clients_held": stats["conns_held"],
            "blocked_clients": stats["conns_waiting"],
        }

    def _memory(self, stats: Figures) -> Section:
        resident = resident_bytes()
        return {
            "used_memory": stats["memory_bytes"],
            "used_memory_human": shown_bytes(stats["memory_bytes"]),
            "used_memory_rss": resident,
            "used_memory_rss_human": shown_bytes(resident),
            "maxmemory": self.settings.memory_bytes_max,
            "maxmemory_human": shown_bytes(self.settings.memory_bytes_max),
            "maxmemory_policy": "noeviction",
        }

    def _persistence(self, stats: Figures) -> Section:
        fields: dict[str, Value] = {
            "loading": int(self.loading),
            "store": self.store.hex(),
            "term": self.term,
            "fsync": self.settings.fsync.value,
            "lsn": stats["lsn"],
            "durable_lsn": stats["durable_lsn"],
            "disk_full": int(self.keeper is not None and self.keeper.disk_full),
            "disk_room": self.keeper.room.name.lower() if self.keeper else "",
            "replay_records": self.progress.records,
        }
        if self.loading:
            fields |= {
                "loading_phase": self.progress.phase,
                "loading_total_bytes": self.progress.bytes_total,
                "loading_loaded_bytes": self.progress.bytes_done,
                "loading_loaded_perc": f"{self.progress.percent}.00",
            }
        return fields

    def _stats(self, stats: Figures) -> Section:
        return {
            "total_connections_received": stats["accepted"],
            "total_commands_processed": stats["commands"],
            "commands_by_python": stats["commands_python"],
            "total_net_input_bytes": stats["bytes_in"],
            "total_net_output_bytes": stats["bytes_out"],
            "rejected_connections": stats["refused_full"],
            "accept_failures": stats["accept_failures"],
            "socket_errors": stats["socket_errors"],
            "syntax_errors": stats["syntax_errors"],
            "framing_errors": stats["broken"],
            "foreign_protocol": stats["foreign"],
            "connections_killed": stats["killed"],
            "rounds": stats["rounds"],
            "ticks_cut": stats["ticks_cut"],
            "gathers": stats["gathers"],
            "own_syncs": stats["own_syncs"],
            "awaited_syncs": stats["awaited_syncs"],
        }

    def _jobs(self, engine: Figures) -> Section:
        return {
            **{f"jobs_{state}": engine[f"jobs_{state}"] for state in STATES},
            "jobs_created_total": engine["created"],
            "jobs_fired_total": engine["fired"],
            "jobs_leased_total": engine["leased"],
            "jobs_acked_total": engine["acked"],
            "jobs_failed_total": engine["failed"],
            "jobs_timed_out_total": engine["timed_out"],
            "jobs_lost_total": engine["lost"],
            "jobs_released_total": engine["released"],
            "jobs_unsent_total": engine["unsent"],
            "jobs_cancelled_total": engine["cancelled"],
            "jobs_expired_total": engine["expired"],
            "jobs_died_total": engine["died"],
            "payload_corrupt": engine["payload_corrupt"],
            "payload_mended": self._mended(),
        }

    def _mended(self) -> int:
        """Return how many payloads that had changed in memory were put back."""
        return 0 if self.checkpointer is None else self.checkpointer.mended

    def clocks(self, engine: Figures | None = None) -> dict[str, int]:
        """Return CLOCK's fields: both axes, and whether the wall one stands still."""
        seen = engine or self.core.engine_figures()
        return {
            "wall_ms": self.clock.wall_ms(),
            "logical_ms": seen["logical_ms"],
            "rel_ms": seen["rel_ms"],
            "clock_held": int(seen["held_ms"] > HELD_MS),
            "clock_held_ms": max(0, seen["held_ms"]),
            "clock_steps": seen["clock_steps"],
            "suspends": seen["suspends"],
        }

    def jobs(self) -> int:
        """Return how many jobs there are, dead ones included."""
        engine = self.core.engine_figures()
        return sum(engine[f"jobs_{state}"] for state in STATES)

    def seen(self) -> Seen:
        """Return the counters that are watched."""
        stats = self.core.stats()
        engine = self.core.engine_figures()
        return Seen(
            foreign=stats["foreign"],
            refused_full=stats["refused_full"],
            slow_consumers=stats["slow_consumers"],
            queue_pauses=stats["queue_pauses"],
            queue_is_red=stats["queue_age_ms"] >= stats["queue_red_ms"],
            held_ms=engine["held_ms"],
            clock_steps=engine["clock_steps"],
            suspends=engine["suspends"],
            handshakes_failed=0 if self.tls is None else self.tls.failed + self.tls.timed_out,
            sync_max_ns=0 if self.log is None else self.log.stats().sync_ns_max,
            memory_bytes=stats["memory_bytes"],
            dead_dropped=engine["dead_dropped"],
            ended_dropped=engine["ring_dropped"] + engine["once_dropped"],
            payload_corrupt=engine["payload_corrupt"],
            corrupt_job=engine["corrupt_id"],
            corrupt_handler=self.core.handler_name(engine["corrupt_handler"])
            if engine["payload_corrupt"]
            else "",
        )

    def log_moved(self) -> None:
        """Tell who keeps the log that there are new records."""
        if self.keeper is not None:
            self.keeper.moved()
        if self.checkpointer is not None:
            self.checkpointer.moved()

    def mend(self) -> None:
        """Let payloads be put back when a grant has found that one changed in memory."""
        if self.checkpointer is not None:
            self.checkpointer.seek(self.core.engine_figures()["payload_corrupt"])

    def _latency(self) -> Section:
        return {kind.name.lower(): _figure(self.core.figure(kind)) for kind in FigureKind}

    def _limits(self, stats: Figures, engine: Figures) -> Section:
        return {
            "limit_clients": pairs({"max": stats["conns_max"], "refused": stats["refused_full"]}),
            "limit_output_stop": pairs(
                {"max_bytes": stats["out_stop_bytes"], "stopped": stats["conns_blocked"]}
            ),
            "limit_output_hard": pairs(
                {"max_bytes": stats["out_hard_bytes"], "closed": stats["slow_consumers"]}
            ),
            "limit_output_soft": pairs(
                {"max_bytes": stats["out_soft_bytes"], "for_ms": stats["out_soft_ms"]}
            ),
            "limit_commit_queue": pairs(
                {
                    "max_bytes": stats["queue_pause_bytes"],
                    "max_ms": stats["queue_pause_ms"],
                    "red_ms": stats["queue_red_ms"],
                    "now_ms": stats["queue_age_ms"],
                    "now_bytes": stats["queue_bytes"],
                    "pauses": stats["queue_pauses"],
                    "paused": stats["writes_paused"],
                }
            ),
            "limit_undurable": pairs(
                {
                    "max_commands": stats["undurable_commands_max"],
                    "max_bytes": stats["undurable_bytes_max"],
                    "gated": stats["conns_gated"],
                }
            ),
            "limit_input": pairs(
                {"max_bytes": stats["input_bytes_max"], "closed": stats["broken"]}
            ),
            "limit_before_auth": pairs(
                {
                    "max_args": stats["preauth_args_max"],
                    "max_line_bytes": stats["preauth_line_bytes_max"],
                    "max_bytes": stats["preauth_bytes_max"],
                    "max_ms": stats["preauth_ms"],
                    "closed": stats["preauth_timeouts"],
                }
            ),
            "limit_wrong_tokens": self._wrong_tokens(),
            "limit_tls_handshakes": self._handshakes(),
            "limit_memory": pairs(
                {
                    "max_bytes": self.settings.memory_bytes_max,
                    "refused_at_bytes": refused_at_bytes(self.settings.memory_bytes_max),
                    "now_bytes": stats["memory_bytes"],
                }
            ),
            "limit_jobs": pairs(
                {"max": jobs_max(self.settings), "now": sum(engine[f"jobs_{s}"] for s in STATES)}
            ),
            "limit_handlers": pairs({"max": HANDLERS_MAX, "now": engine["handlers_count"]}),
            "limit_policies": pairs({"max": HANDLERS_MAX, "now": engine["policies_count"]}),
            "limit_table": pairs({"max": TABLE_MAX, "now": engine["table_count"]}),
            "limit_payload": pairs({"max_bytes": self.settings.payload_bytes_max}),
            "limit_dead_list": pairs(
                {
                    "max": self.settings.dead_max,
                    "kept_ms": self.settings.dead_kept_ms,
                    "now": engine["jobs_dead"],
                    "dropped": engine["dead_dropped"],
                }
            ),
            "limit_ended_ring": pairs(
                {
                    "max": ENDED_MAX,
                    "now": engine["ended_count"],
                    "dropped": engine["ring_dropped"],
                }
            ),
            "limit_once_tokens": pairs(
                {
                    "max": ENDED_MAX,
                    "now": engine["once_count"],
                    "dropped": engine["once_dropped"],
                }
            ),
            "limit_texts": pairs({"dropped": engine["texts_dropped"]}),
        }

    def _handshakes(self) -> str:
        tls = self.tls
        return pairs(
            {
                "max": HANDSHAKES_MAX,
                "max_of_one": HANDSHAKES_OF_ONE_MAX,
                "max_ms": int(HANDSHAKE_S * 1000),
                "now": tls.shaking if tls else 0,
                "done": tls.handshakes if tls else 0,
                "failed": tls.failed if tls else 0,
                "timed_out": tls.timed_out if tls else 0,
                "refused": tls.refused if tls else 0,
            }
        )

    def _wrong_tokens(self) -> str:
        guesses = Guesses() if self.sign_in is None else self.sign_in.guesses
        return pairs(
            {
                "max_per_s": ATTEMPTS_PER_S,
                "addresses_max": ADDRESSES_MAX,
                "addresses": len(guesses),
                "wrong": guesses.failures,
                "put_off": guesses.put_off,
            }
        )

    def _log_figures(self) -> Section:
        if self.log is None:
            return {}
        stats = self.log.stats()
        return {
            "log_segment": stats.seq,
            "log_offset_bytes": stats.offset,
            "log_segment_bytes": stats.segment_bytes,
            "log_next_prepared": int(stats.prepared),
            "log_reserve": int(stats.reserved),
            "log_frames": stats.frames,
            "log_bytes": stats.bytes,
            "log_syncs": stats.syncs,
            "log_rotations": stats.rotations,
            "log_marks": stats.marks,
            "log_written_lsn": stats.written_lsn,
            "log_synced_lsn": stats.synced_lsn,
            "log_marked_lsn": stats.marked_lsn,
            "log_sync_last_us": stats.sync_ns_last // 1000,
            "log_sync_max_us": stats.sync_ns_max // 1000,
            "log_sync_mean_us": stats.sync_ns_sum // max(1, stats.syncs) // 1000,
        }

    def config(self) -> Mapping[str, str]:
        """Return what CONFIG GET shows: our options, and Redis's names of what they mean."""
        settings = self.settings
        own = {
            "data": str(settings.data),
            "listen": self.listen,
            "tls-listen": self.listen_tls,
            "fsync": settings.fsync.value,
            "allow-network-fs": "yes" if settings.allow_network_fs else "no",
            "strict-handlers": "yes" if settings.strict_handlers else "no",
            "token-file": str(settings.token_file or ""),
            "payload-max-bytes": str(settings.payload_bytes_max),
            "segment-bytes": str(settings.segment_bytes),
            "checkpoint-after-bytes": str(settings.checkpoint_after_bytes),
            "keep-checkpoints": str(settings.keep_checkpoints),
            "dead-max": str(settings.dead_max),
            "dead-kept-ms": str(settings.dead_kept_ms),
        }
        redis = {
            "appendonly": "yes",
            "appendfsync": {
                Fsync.ALWAYS: "always",
                Fsync.INTERVAL: "everysec",
                Fsync.OFF: "no",
            }[settings.fsync],
            "bind": settings.host,
            "databases": "1",
            "dir": str(settings.data),
            "io-threads": "1",
            "maxclients": str(settings.clients_max),
            "maxmemory": str(settings.memory_bytes_max),
            "maxmemory-policy": "noeviction",
            "port": str(self.port),
            "proto-max-bulk-len": str(1024 * 1024),
            "save": "",
            "timeout": "0",
        }
        return own | redis


def _figure(figure: Figure) -> str:
    """Return a histogram's figures on one line; the unit is in its name."""
    return pairs(
        {
            "count": figure.count,
            "p50": figure.p50,
            "p90": figure.p90,
            "p99": figure.p99,
            "p999": figure.p999,
            "max": figure.max,
        }
    )
