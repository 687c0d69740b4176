"""Plant known faults in the data plane: the tests of the gate and of rounds must notice each.

python -m tests.c.mutate_conn [--only TEXT]      (in the root of the checkout)
"""

from tests.c.planting import fault, plant

FILES = ["test_conn_gate", "test_transcripts", "test_left_behind", "test_stay"]
TESTS = [f"tests/unit/{name}.py" for name in FILES]
HANG_S = 60

FAULTS = [
    fault(
        "the gate is open for reads",
        "wd_conn.c",
        "int done = wd_command_run(r->commands, &c->session, r->argv, argc);",
        "uint64_t before = wd_engine_lsn(r->engine);"
        "int done = wd_command_run(r->commands, &c->session, r->argv, argc);"
        "if (done == WD_DONE_GATED && before == wd_engine_lsn(r->engine)) done = WD_DONE_FREE;",
    ),
    fault(
        "the gate is open for everything",
        "wd_conn.c",
        "int waits = done == WD_DONE_GATED && seq > durable_seq;",
        "int waits = 0; (void)done; (void)seq; (void)durable_seq;",
    ),
    fault(
        "what depends on nothing waits like the rest",
        "wd_conn.c",
        "int waits = done == WD_DONE_GATED && seq > durable_seq;",
        "int waits = seq > durable_seq; (void)done;",
    ),
    fault(
        "the gate opens one batch too far",
        "wd_conn.c",
        "mark_at(c, 0)->seq <= durable_seq; left--",
        "mark_at(c, 0)->seq <= durable_seq + 1; left--",
    ),
    fault(
        "an answer behind a gated one joins the batch before its own",
        "wd_conn.c",
        "(!waits || mark_at(c, left - 1)->seq == seq)",
        "(!waits || mark_at(c, left - 1)->seq <= seq)",
    ),
    fault(
        "a woken LEASE passes the gate",
        "wd_conns.c",
        "wd_conn_gate(c, WD_DONE_GATED,",
        "wd_conn_gate(c, WD_DONE_FREE,",
    ),
    fault(
        "Python's answers pass the gate",
        "wd_conns.c",
        "gated ? WD_DONE_GATED : WD_DONE_FREE",
        "gated ? WD_DONE_FREE : WD_DONE_FREE",
    ),
    fault(
        "taking a frame makes it durable",
        "wd_commit.c",
        "c->flight = b;\n    *out_frame",
        "c->flight = b; c->durable_seq = b->seq;\n    *out_frame",
    ),
    fault(
        "a part of a frame counts as the whole",
        "wd_commit.c",
        "if (!c->flight || lsn < known) return WD_OK;",
        "if (!c->flight) return WD_OK;",
    ),
    fault(
        "a second frame is given out while one is in flight",
        "wd_commit.c",
        "if (c->flight) return NULL;",
        "",
    ),
    fault(
        "a handle finds whoever has its place now",
        "wd_conns.c",
        "return s->table[i]->session.handle == handle ? s->table[i] : NULL;",
        "return s->table[i];",
    ),
    fault(
        "grants that never left are not given back",
        "wd_conns.c",
        "wd_session_close(s->runner.commands, &c->session, c->sent);",
        "wd_session_close(s->runner.commands, &c->session, UINT64_MAX);",
    ),
    fault(
        "a grant counts as sent when it passes the gate",
        "wd_conn.c",
        "g[gone].reply_end <= c->sent",
        "g[gone].reply_end <= c->released",
    ),
    fault(
        "commands that are not durable are not limited",
        "wd_conn.c",
        "c->undurable_commands < WD_UNDURABLE_COMMANDS_MAX &&",
        "",
    ),
    fault(
        "parsing goes on whatever stands in the output",
        "wd_conn.c",
        "wd_conn_out_bytes(c) <= WD_OUT_STOP_BYTES &&",
        "",
    ),
    fault(
        "what is behind an answered command is forgotten",
        "wd_conn.c",
        "c->full = 1; /* look at what is buffered behind it */",
        "",
    ),
    fault(
        "a half-closed connection keeps its waiting LEASE",
        "wd_conn.c",
        "if (c->parked == WD_PARKED_WAIT) wd_session_end_wait(r->commands, &c->session);",
        "",
    ),
    fault(
        "a log that is behind holds nobody back",
        "wd_command.c",
        "if (c->behind && makes_records(cmd, argc)) return WD_DONE_LATER;",
        "",
    ),
    fault(
        "a log that is behind holds readers back too",
        "wd_command.c",
        "if (c->behind && makes_records(cmd, argc)) return WD_DONE_LATER;",
        "if (c->behind) return WD_DONE_LATER;",
    ),
    fault(
        "jobs are handed out while the log is behind",
        "wd_wait.c",
        "int gives = c->disk < WD_DISK_LOW && !c->behind;",
        "int gives = c->disk < WD_DISK_LOW;",
    ),
    fault(
        "who was held back is forgotten when the log has caught up",
        "wd_conns.c",
        "wd_conn_let_go(c);\n        if (wd_conn_can_resume(c)) wd_conns_put(s, WD_L_RESUME, c);",
        "wd_conn_let_go(c);",
    ),
    fault(
        "only bytes make the log be behind, not time",
        "wd_conns.c",
        "!stalled && (old || queued > most)",
        "!stalled && (queued > most || (old && 0))",
    ),
    fault(
        "errors are not counted",
        "wd_conn.c",
        "    r->errors[i]++;",
        "    (void)i;",
    ),
    fault(
        "a line before AUTH may be as long as an array",
        "wd_conn.c",
        "is_line ? WD_PREAUTH_LINE_BYTES_MAX : WD_PREAUTH_BYTES_MAX",
        "is_line < 0 ? WD_PREAUTH_LINE_BYTES_MAX : WD_PREAUTH_BYTES_MAX",
    ),
    fault(
        "HTTP is run like any line",
        "wd_conn.c",
        "if (is_line && is_http(c, r->argv, cmd.argc)) {",
        "if (0 && is_http(c, r->argv, cmd.argc)) {",
    ),
    fault(
        "the mark of being held back outlives the command",
        "wd_conn.c",
        "c->full = c->held = 0;",
        "c->full = 0;",
    ),
    fault(
        "what a close gave back is left for another round",
        "wd_conns.c",
        "s->unsettled |= wd_engine_lsn(s->runner.engine) > lsn;",
        "(void)lsn;",
    ),
    fault(
        "a waiting LEASE is left when its peer takes bytes again",
        "wd_conns.c",
        "s->unsettled |= c->session.wait != NULL;",
        "",
    ),
    fault(
        "a waiting LEASE is left when the disk has room again",
        "wd_round.c",
        "c->conns->unsettled = 1;",
        "",
    ),
    fault(
        "the disk counts as full until the next round",
        "wd_round.c",
        "        wd_commands_set_disk(c->commands, wd_core_disk_room(c));\n        c->conns",
        "        c->conns",
    ),
    fault(
        "a command for Python waits while sockets are served",
        "wd_round.c",
        "while (busy && queued == 0 && may_stay(c)",
        "while (busy && queued >= 0 && may_stay(c)",
    ),
    fault(
        "rounds follow while the clock stands",
        "wd_round.c",
        "!loading(c) && !c->options.hand_clock &&",
        "!loading(c) &&",
    ),
    fault(
        "rounds follow while the log is replayed",
        "wd_round.c",
        "return !loading(c) && !c->options.hand_clock &&",
        "return !c->options.hand_clock &&",
    ),
    fault(
        "rounds follow while a frame waits to be taken",
        "wd_round.c",
        "&& c->options.commit_mode != WD_COMMIT_DRIVEN &&\n           c->conns->fed_count",
        "&&\n           c->conns->fed_count",
    ),
    fault(
        "rounds follow while a connection is fed",
        "wd_round.c",
        "c->conns->fed_count == 0 && ",
        "",
    ),
    fault(
        "rounds follow while an alarm rings",
        "wd_round.c",
        "&& !wd_core_wants_python(c);",
        ";",
    ),
    fault(
        "rounds follow for who comes after a pause",
        "wd_round.c",
        "int busy = begin_ms - c->stayed_ms <= STAY_WAIT_MS;",
        "int busy = 1;",
    ),
    fault(
        "rounds follow without an end",
        "wd_round.c",
        "may_stay(c) && c->now.mono_ms - begin_ms < STAY_MS)",
        "may_stay(c) && c->now.mono_ms >= begin_ms)",
    ),
]

if __name__ == "__main__":
    raise SystemExit(plant(FAULTS, TESTS, hang_s=HANG_S))
