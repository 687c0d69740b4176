"""Whether a schedule can ever fire: its rule together with START, END and MAXRUNS. Pure."""

from wheel.cron import Rule
from wheel.cronfields import refusal
from wheel.engine.definition import Settings
from wheel.errors import CronSyntaxError
from wheel.zones import exact


def require_fire(rule: Rule, settings: Settings, begin_ms: int, runs: int) -> None:
    """Refuse what can never fire, for whoever makes a schedule or changes its bounds.

    Args:
        rule: compiled from the settings.
        settings: with the bounds.
        begin_ms: from when on it is in force, on the rule's axis; times behind it count.
        runs: that were made already.

    Raises:
        CronSyntaxError: with field, value, what to write; ``reason`` begins with ``never_fires``.
    """
    most, start_ms, end_ms = settings.max_runs, settings.start_ms, settings.end_ms
    if most is not None and runs >= most:
        raise _never("MAXRUNS", most, f"it has had {runs} runs", f"write more than {runs}")
    if not settings.has_rule:
        if end_ms is not None and end_ms <= begin_ms:
            raise _never("END", exact(end_ms), "it has passed", "write a moment to come")
        return
    rule.require_fire(begin_ms)
    after_ms = begin_ms if start_ms is None else max(begin_ms, start_ms - 1)
    found_ms = rule.next_ms(after_ms)
    if found_ms is None:
        assert start_ms is not None
        last_ms = rule.latest_before(start_ms)
        raise _never(
            "START",
            exact(start_ms),
            f"the rule {settings.rule!r} has no time from then on",
            "write an earlier one" if last_ms is None else f"write {exact(last_ms)} or earlier",
        )
    if end_ms is not None and found_ms > end_ms:
        raise _never(
            "END",
            exact(end_ms),
            f"the rule {settings.rule!r} has no time up to then, its next is {exact(found_ms)}",
            "write that or a later one",
        )


def _never(field: str, value: object, why: str, hint: str) -> CronSyntaxError:
    return refusal(f"never_fires: {why}", hint, None, f"{field} {value}")
