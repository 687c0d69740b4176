"""What a user writes: an ``App``, its handlers, and what a handler may say of its run.

A handler is a function with a name. The name is required, because it is stored with every job and
has to outlive the function's own. The entries of a job's JSON payload become keyword arguments; a
handler whose one parameter is annotated ``bytes`` gets the payload as it is. A first parameter
annotated ``Run`` gets the run.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Concatenate, Final, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from wheel.client import Client, default_client
from wheel.definitions import CronOptions, Definition
from wheel.encode import handler_argument, option_arguments
from wheel.errors import InvalidRequest
from wheel.values import Backoff, Duration, Job, Options, Payload, When, duration_ms

CallP = ParamSpec("CallP")
JobP = ParamSpec("JobP")
R = TypeVar("R")


class Ending(Exception):  # noqa: N818  (not an error: how a handler says how its run ended)
    """Base of what a handler raises to say how its run ended."""


class Retry(Ending):
    """This attempt failed; run again, after ``in_`` or else by the job's backoff.

    Args:
        reason: kept with the attempt, up to 1 KiB.
        in_: the wait; it replaces the backoff and the failure counts all the same.
        output: what came of the attempt: its last 4 KiB are kept behind the reason.
    """

    def __init__(
        self, reason: str = "", *, in_: Duration | None = None, output: bytes = b""
    ) -> None:
        super().__init__(reason or "retry asked for")
        self.output = output
        self.in_ms = None if in_ is None else duration_ms(in_)


class Fail(Ending):
    """This job cannot succeed: it is dead at once, whatever retries are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "failed for good")


class Snooze(Ending):
    """Not now: run again after ``in_``. Counts as nothing."""

    def __init__(self, in_: Duration) -> None:
        super().__init__(f"snoozed for {in_}")
        self.in_ms = duration_ms(in_)


class Interrupted(Ending):
    """Give the job back at once, for another worker. Counts as nothing."""


class Stopping:
    """Whether a worker has begun to stop; shared by its runs."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """One attempt at one job, for the handler to look at.

    Attributes:
        id: the job's number.
        run_id: the same text for every attempt at this job, and in no other: for a schedule's run
            its name and nominal time, for a one-shot store and id. Use it to make effects happen
            once.
        handler: its name.
        key: the job's key.
        attempt: 1 for the first time that the job was handed out.
        due: when it was due.
        nominal: the moment that a schedule's run is for, before jitter; None for a one-shot.
        logical_date: the date that a schedule's run is for, in the schedule's zone; None for a
            one-shot.
        receipt: names this attempt to the server.
        payload: as it was stored.
        lease_ms: the attempt is lost if the worker is silent that long.
        timeout_ms: how long the attempt may last; 0 is for ever.
        meta: what travelled with the job.
        progress: what an earlier attempt left.
    """

    id: int
    run_id: str
    handler: str
    key: str | None
    attempt: int
    due: datetime
    receipt: str
    payload: bytes = field(repr=False)
    lease_ms: int
    timeout_ms: int
    meta: bytes | None
    progress: bytes | None = field(repr=False)
    stop: Stopping = field(repr=False)
    nominal: datetime | None = None
    logical_date: str | None = None
    lost_code: str = ""
    _on_lost: Callable[[], object] | None = field(default=None, repr=False)

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: finish soon, or raise Interrupted."""
        return self.stop.asked

    @property
    def lost(self) -> bool:
        """Whether the job is no longer this attempt's, or was cancelled: stop, nobody waits."""
        return bool(self.lost_code)

    def lose(self, code: str) -> None:
        """Note that the server no longer counts on this attempt: STALE, UNKNOWN or CANCELLED."""
        self.lost_code = code
        on_lost = self._on_lost
        if on_lost is not None:
            on_lost()

    def when_lost(self, call: Callable[[], object] | None) -> None:
        """Have ``call`` called, on another thread, when the run is lost; at once if it is."""
        self._on_lost = call
        if call is not None and self.lost:
            call()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A handler as the worker needs it.

    Attributes:
        name: stored with its jobs.
        defaults: options of its jobs, published to the server.
        execute: decode the payload, call the function, return what it returned.
    """

    name: str
    defaults: Options
    execute: Callable[[Run], object]


class Bound(Generic[JobP]):
    """A handler with options for the jobs that are scheduled through it."""

    __slots__ = ("_app", "_name", "_options", "_signature")

    def __init__(
        self, app: "App", name: str, signature: inspect.Signature, options: Options
    ) -> None:
        self._app = app
        self._name = name
        self._signature = signature
        self._options = options

    def schedule_at(self, when: When, /, *args: JobP.args, **kwargs: JobP.kwargs) -> Job:
        """Schedule a call at a moment; see ``Client.schedule_at``."""
        payload = self._payload(args, kwargs)
        return self._app.client.schedule_at(when, self._name, payload, **self._options)

    def schedule_in(self, delay: Duration, /, *args: JobP.args, **kwargs: JobP.kwargs) -> Job:
        """Schedule a call after a while; see ``Client.schedule_in``."""
        payload = self._payload(args, kwargs)
        return self._app.client.schedule_in(delay, self._name, payload, **self._options)

    def _payload(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Mapping[str, object] | bytes:
        parameters = self._signature.parameters
        arguments: dict[str, object] = self._signature.bind(*args, **kwargs).arguments
        if _takes_bytes(self._signature):
            return cast("bytes", next(iter(arguments.values())))
        named: dict[str, object] = {}
        for name, value in arguments.items():
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                named.update(cast("dict[str, object]", value))
            else:
                named[name] = value
        return named


class Handler(Bound[JobP], Generic[CallP, JobP, R]):
    """A registered function: still callable, and it can be scheduled."""

    __slots__ = ("__wrapped__", "function", "name")

    def __init__(
        self,
        app: "App",
        name: str,
        signature: inspect.Signature,
        function: Callable[CallP, R],
    ) -> None:
        super().__init__(app, name, signature, Options())
        self.name = name
        self.function = function
        self.__wrapped__ = function

    def __call__(self, *args: CallP.args, **kwargs: CallP.kwargs) -> R:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[Options]) -> Bound[JobP]:
        """Return the handler with options for the jobs scheduled through what is returned."""
        return Bound(self._app, self.name, self._signature, options)

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"


class Registrar:
    """What ``app.handler(...)`` returns: give it the function."""

    __slots__ = ("_app", "_defaults", "_name")

    def __init__(self, app: "App", name: str, defaults: Options) -> None:
        self._app = app
        self._name = name
        self._defaults = defaults

    @overload
    def __call__(
        self, function: Callable[Concatenate[Run, JobP], R]
    ) -> Handler[Concatenate[Run, JobP], JobP, R]: ...
    @overload
    def __call__(self, function: Callable[JobP, R]) -> Handler[JobP, JobP, R]: ...
    def __call__(self, function: Callable[CallP, R]) -> object:
        """Register a function and return it as a handler.

        Raises:
            InvalidRequest: the name is taken, or a parameter cannot be filled from a payload.
        """
        signature, takes_run = _signature(self._name, function)
        self._app.add(
            Registered(
                name=self._name,
                defaults=self._defaults,
                execute=_executor(function, signature, takes_run=takes_run),
            )
        )
        handler: Handler[CallP, CallP, R] = Handler(self._app, self._name, signature, function)
        return handler


class Recurrence:
    """What ``app.cron(...)`` returns: give it the handler."""

    __slots__ = ("_app", "_name", "_options", "_payload", "_rule")

    def __init__(
        self, app: "App", name: str, rule: str, payload: Payload, options: CronOptions
    ) -> None:
        self._app = app
        self._name = name
        self._rule = rule
        self._payload = payload
        self._options = options

    def __call__(self, handler: Handler[CallP, JobP, R]) -> Handler[CallP, JobP, R]:
        """Have the handler run by the rule, and return it.

        Raises:
            InvalidRequest: a name that is taken, or an argument out of bounds.
            TypeError: no handler.
        """
        self._app.add_schedule(
            Definition(
                name=self._name,
                rule=self._rule,
                handler=_handler_name(handler),
                payload=self._payload,
                options=self._options,
            )
        )
        return handler


class App:
    """A set of handlers, for ``wheeld work module:app``.

    Args:
        client: for jobs that are scheduled through the handlers; by default the one that
            ``wheeld.schedule_at`` uses.
    """

    __slots__ = ("_client", "handlers", "schedules")

    def __init__(self, client: Client | None = None) -> None:
        self._client = client
        self.handlers: dict[str, Registered] = {}
        self.schedules: dict[str, Definition] = {}

    @property
    def client(self) -> Client:
        """The client that the handlers schedule with."""
        return self._client if self._client is not None else default_client()

    def handler(
        self,
        name: str,
        *,
        retries: int | None = None,
        lost: int | None = None,
        timeout: Duration | None = None,
        backoff: Backoff | None = None,
        lease: Duration | None = None,
    ) -> Registrar:
        """Return a decorator that registers a function under a name.

        Args:
            name: stored with the jobs; it has to outlive the function's name.
            retries: how many failures are allowed.
            lost: how many lost leases are allowed.
            timeout: how long a run may last; 0 is for ever.
            backoff: the wait between attempts: ``wheel.backoff("30s", max="1h")``.
            lease: how long a silent worker counts as alive.

        Raises:
            InvalidRequest: a bad name or option, or no name at all.
        """
        _check_name(name)
        defaults = Options(
            retries=retries, lost=lost, timeout=timeout, backoff=backoff, lease=lease
        )
        option_arguments(defaults)
        return Registrar(self, name, defaults)

    def cron(
        self, rule: str, *, name: str, payload: Payload = None, **options: Unpack[CronOptions]
    ) -> "Recurrence":
        """Return a decorator that has a handler run again and again.

        It stands above ``@app.handler``. A worker makes or changes the schedule on the server when
        it starts; what is no longer written here is never deleted.

        Args:
            rule: as for ``Client.schedule_cron``.
            name: the schedule's identity.
            payload: of every run.
            options: see ``CronOptions``.

        Raises:
            InvalidRequest: (when it decorates) a name that is taken, or an argument out of bounds.
            TypeError: (when it decorates) what stands below is no handler.
        """
        return Recurrence(self, name, rule, payload, options)

    def add_schedule(self, definition: Definition) -> None:
        """Add a schedule that the worker is to publish.

        Raises:
            InvalidRequest: there is one of this name, or an argument is out of bounds.
        """
        definition.words()
        if definition.name in self.schedules:
            raise InvalidRequest(f"schedule {definition.name!r} is registered twice")
        self.schedules[definition.name] = definition

    def add(self, registered: Registered) -> None:
        """Add a handler.

        Raises:
            InvalidRequest: there is one of this name.
        """
        if registered.name in self.handlers:
            raise InvalidRequest(f"handler {registered.name!r} is registered twice")
        self.handlers[registered.name] = registered


def _handler_name(handler: object) -> str:
    if not isinstance(handler, Handler):
        raise TypeError(
            "@app.cron(...) makes a schedule of a handler: it stands above "
            f"@app.handler('name'), and what stands below it here is {handler!r}"
        )
    return handler.name


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidRequest(
            "a handler needs a name that outlives its function: @app.handler('mail.send')"
        )
    handler_argument(name)


_UNNAMED: Final = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}


def _signature(name: str, function: Callable[CallP, R]) -> tuple[inspect.Signature, bool]:
    """Return the parameters that a payload fills, and whether a Run comes before them."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001  (an annotation may name what is only there for a type checker)
        signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    takes_run = bool(parameters) and _is_run(parameters[0].annotation)
    if takes_run:
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in _UNNAMED:
            raise InvalidRequest(
                f"handler {name!r}: the parameter {parameter} has no name that a payload's entry "
                "could have; write it without / or *"
            )
    return signature.replace(parameters=parameters), takes_run


def _is_run(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == Run.__name__
    return annotation is Run


def _takes_bytes(signature: inspect.Signature) -> bool:
    parameters = list(signature.parameters.values())
    return len(parameters) == 1 and parameters[0].annotation in {bytes, "bytes"}


def _executor(
    function: Callable[CallP, R], signature: inspect.Signature, *, takes_run: bool
) -> Callable[[Run], object]:
    raw = _takes_bytes(signature)
    whole = inspect.signature(function)

    def execute(run: Run) -> object:
        first = (run,) if takes_run else ()
        named = {} if raw else _decode(run.payload)
        try:
            bound = whole.bind(*first, run.payload) if raw else whole.bind(*first, **named)
        except TypeError as error:
            raise InvalidRequest(
                f"the payload does not fit the handler {run.handler!r}: {error}"
            ) from None
        return function(*bound.args, **bound.kwargs)

    if not inspect.iscoroutinefunction(function):
        return execute
    # Loaded by name: a worker without coroutines never pays for the event loop.
    await_ = cast(
        "Callable[[Run, Coroutine[object, object, object]], object]",
        importlib.import_module("wheel.coroutines").run_coroutine,
    )

    def execute_coroutine(run: Run) -> object:
        return await_(run, cast("Coroutine[object, object, object]", execute(run)))

    return execute_coroutine


def _decode(payload: bytes) -> dict[str, object]:
    if not payload:
        return {}
    decoded: object
    try:
        decoded = json.loads(payload)
    except ValueError as error:
        raise InvalidRequest(
            f"the payload is not JSON: {error}; annotate the handler's one parameter as "
            "bytes to get it as it is"
        ) from error
    if not isinstance(decoded, dict):
        raise InvalidRequest(
            f"the payload is JSON, but not an object, whose entries are the handler's arguments: "
            f"it is a {type(decoded).__name__}"
        )
    return cast("dict[str, object]", decoded)
