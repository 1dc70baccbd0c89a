"""The contract of a service: its operations, its queue, and the handling of failed calls.

Everything that can be checked without a queue manager is checked when the class is created, so an
error appears when the program is loaded and not with the first call.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

import msgspec

from qmd.client import Message, RetryProperties

RETRY_DELAY_S_MIN = 0.001  # a call that waits lets others pass

Playback = Literal["participate", "ignore", "own"]
Poison = Literal["move", "reject", "drop", "fault"]
Encoding = Literal["json", "msgpack"]

LABEL_CHARACTERS_MAX = 249  # the name of an operation is the label of its message

Method = TypeVar("Method", bound=Callable[..., Any])
P = ParamSpec("P")


class _QueueSettings(TypedDict, total=False):
    exactly_once: bool
    durable: bool
    concurrency: int
    ordered: bool
    receive_retries: int
    retry_cycles: int
    retry_delay_s: float
    poison: Poison
    encoding: Encoding


class Settings(_QueueSettings, total=False):
    """The settings of a service class; see `Service`."""

    queue: str


class FunctionSettings(_QueueSettings, total=False):
    """The settings of a function, which is a service of one operation; see `operation`."""

    playback: Playback
    takes_everything: bool


class ServiceError(Exception):
    """A service that contradicts itself or its queue; it is not started."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The settings that `operation` recorded on a method."""

    playback: Playback
    takes_everything: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, as its service declares it."""

    name: str
    playback: Playback
    arguments: type[msgspec.Struct]
    #: It receives the message itself, and calls that no other operation knows.
    takes_everything: bool

    def encode(self, encoding: Encoding, given: tuple[Any, ...], named: dict[str, Any]) -> bytes:
        """Return the body of a call.  Raises TypeError as a call of the method itself would."""
        fields = self.arguments.__struct_fields__
        if len(given) > len(fields):
            raise TypeError(f"{self.name} takes {len(fields)} arguments; {len(given)} were given")
        values = dict(zip(fields, given, strict=False))
        for name, value in named.items():
            if name not in fields or name in values:
                raise TypeError(f"{self.name} was given {name!r} twice, or does not take it")
            values[name] = value
        arguments = self.arguments(**values)
        write = msgspec.json.encode if encoding == "json" else msgspec.msgpack.encode
        body = write(arguments)
        try:
            # The caller gets the error at once, instead of a poison message at the service.
            self.decode(encoding, body)
        except msgspec.ValidationError as error:
            raise TypeError(f"{self.name} does not take these arguments: {error}") from error
        return body

    def decode(self, encoding: Encoding, body: bytes) -> dict[str, Any]:
        """Return the arguments by name.  Raises msgspec.DecodeError for an invalid body."""
        if encoding == "json":
            arguments = msgspec.json.decode(body, type=self.arguments)
        else:
            arguments = msgspec.msgpack.decode(body, type=self.arguments)
        return {name: getattr(arguments, name) for name in self.arguments.__struct_fields__}


@overload
def operation(method: Method) -> Method: ...


@overload
def operation(
    *, playback: Playback = ..., takes_everything: bool = ...
) -> Callable[[Method], Method]: ...


def operation(
    method: Any = None, *, playback: Playback = "participate", takes_everything: bool = False
) -> Any:
    """Mark a method as an operation that can be called through the queue.

    `playback`, the relation to the transaction in which the call leaves the queue:
    - "participate": they are the same.  Messages that it sends, and the receive of the call, commit
      together; an exception returns the call to the queue, and it is retried.
    - "ignore": the call has left the queue durably before the operation begins.  The operation may
      take any time, and is never retried.
    - "own": the same, but the operation has a separate transaction, which commits at its end.

    `takes_everything`: it receives every `Message` with a label that is no other operation of the
    service: for dead letters, and for senders that do not know services.
    """
    if playback not in get_args(Playback):
        raise ServiceError(f"playback is {playback!r}; it must be one of {get_args(Playback)}")

    def mark(function: Any) -> Any:
        function.__qmd_operation__ = _Mark(playback, takes_everything)
        return function

    return mark if method is None else mark(method)


class Service:
    """The base class of services; their operations are marked with `operation`.

    The class arguments (`class Orders(Service, queue="orders", ...)`) become attributes:

    - `queue`: the queue of its calls, by any name of a queue of this computer.
    - `exactly_once`: the queue is transactional.  `durable`: calls survive a restart of the queue
      manager.  A volatile queue (durable=False) cannot deliver exactly once.
    - `concurrency`: calls at a time; `ordered`: one after the other, in the order of the queue.
    - `receive_retries`, `retry_cycles`, `retry_delay_s`: a failed call is retried `receive_retries`
      times at once, then waits in the subqueue `;retry` and is tried as often again, in
      `retry_cycles` cycles; in all (retry_cycles + 1) * (receive_retries + 1) attempts.
    - `poison`, the handling of a call that failed in all of them: "move" it to the subqueue
      `;poison`; "reject" it, which notifies its sender; "drop" it; "fault": it stays, and the
      service stops.
    - `encoding`: the encoding of calls, "json" or "msgpack".
    """

    queue: ClassVar[str] = ""
    exactly_once: ClassVar[bool] = True
    durable: ClassVar[bool] = True
    concurrency: ClassVar[int] = 1
    ordered: ClassVar[bool] = True
    receive_retries: ClassVar[int] = 5
    retry_cycles: ClassVar[int] = 2
    retry_delay_s: ClassVar[float] = 30 * 60.0
    poison: ClassVar[Poison] = "move"
    encoding: ClassVar[Encoding] = "json"
    operations: ClassVar[dict[str, Operation]] = {}

    def __init_subclass__(cls, **settings: Unpack[Settings]) -> None:
        super().__init_subclass__()
        for name, value in settings.items():
            if name.startswith("_") or name == "operations" or name not in Service.__dict__:
                known = [each for each in Service.__annotations__ if each != "operations"]
                raise ServiceError(
                    f"{cls.__name__}: there is no setting {name!r}; the settings are "
                    f"{', '.join(known)}"
                )
            setattr(cls, name, value)
        if "concurrency" in settings and "ordered" not in settings:
            cls.ordered = cls.concurrency == 1
        cls.operations = dict(_operations(cls))
        _check(cls)

    async def started(self) -> None:
        """Prepare connections and the like; called before the first call is played."""

    async def stopping(self) -> None:
        """Clean up; called after the last call."""


def _operations(service: type[Service]) -> typing.Iterator[tuple[str, Operation]]:
    for name, method in inspect.getmembers(service, inspect.isfunction):
        mark = getattr(method, "__qmd_operation__", None)
        if mark is not None:
            yield name, _operation(service, name, method, mark)


def _operation(service: type[Service], name: str, method: Any, mark: _Mark) -> Operation:
    where = f"{service.__name__}.{name}"
    if len(name) > LABEL_CHARACTERS_MAX:
        raise ServiceError(f"{where}: its name has more than {LABEL_CHARACTERS_MAX} characters")
    try:
        hints = typing.get_type_hints(method)
    except NameError as error:
        raise ServiceError(
            f"{where}: {error}; the types of its arguments must be defined before the class"
        ) from error
    if hints.get("return", types.NoneType) is not types.NoneType:
        raise ServiceError(
            f"{where} returns a value, but a queued call is one-way. Send the answer to a "
            "response queue, and annotate it as -> None"
        )
    if not inspect.iscoroutinefunction(method):
        raise ServiceError(f"{where} is not a coroutine function: write `async def`")
    parameters = list(inspect.signature(method).parameters.values())[1:]
    if mark.takes_everything:
        if [hints.get(each.name) for each in parameters] != [Message]:
            raise ServiceError(
                f"{where} takes everything, so its only argument must be a `Message`"
            )
        parameters = []
    fields: list[tuple[str, type] | tuple[str, type, Any]] = []
    for each in parameters:
        if each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise ServiceError(f"{where}: argument {each.name} cannot be sent in a message")
        if each.name not in hints:
            raise ServiceError(
                f"{where}: argument {each.name} has no type, which is needed to decode it"
            )
        if each.default is inspect.Parameter.empty:
            fields.append((each.name, hints[each.name]))
        else:
            fields.append((each.name, hints[each.name], each.default))
    try:
        arguments = msgspec.defstruct(f"{service.__name__}_{name}", fields)
        msgspec.json.Decoder(arguments)
        msgspec.msgpack.Decoder(arguments)
    except TypeError as error:
        raise ServiceError(
            f"{where}: its arguments cannot be sent in a message: {error}"
        ) from error
    return Operation(name, mark.playback, arguments, mark.takes_everything)


def _check(service: type[Service]) -> None:
    name = service.__name__
    if service.durable is False and service.exactly_once:
        raise ServiceError(
            f"{name}: a call in memory only cannot arrive exactly once: durable=False needs "
            "exactly_once=False"
        )
    if service.poison not in get_args(Poison):
        raise ServiceError(f"{name}: poison is {service.poison!r}, not one of {get_args(Poison)}")
    if service.encoding not in get_args(Encoding):
        raise ServiceError(
            f"{name}: encoding is {service.encoding!r}, not one of {get_args(Encoding)}"
        )
    if service.concurrency < 1:
        raise ServiceError(f"{name}: concurrency is {service.concurrency}; at least 1 is needed")
    if service.ordered and service.concurrency > 1:
        raise ServiceError(
            f"{name}: {service.concurrency} calls at a time have no order: ordered=True needs "
            "concurrency=1"
        )
    if min(service.receive_retries, service.retry_cycles, service.retry_delay_s) < 0:
        raise ServiceError(f"{name}: the numbers of retries and their delay cannot be negative")
    if sum(each.takes_everything for each in service.operations.values()) > 1:
        raise ServiceError(f"{name}: only one operation can take everything")


def retry_policy(service: Service) -> RetryProperties:
    """Return the retry policy that the options of a service stand for; the service itself ends
    calls that have failed in all cycles."""
    tries = service.receive_retries + 1
    delay_s = max(service.retry_delay_s, RETRY_DELAY_S_MIN)
    return RetryProperties(
        attempts=tries * (service.retry_cycles + 1),
        immediate=service.receive_retries,
        delay_s=delay_s,
        delay_max_s=delay_s,
        factor=1.0,
        jitter=0.0,
        end="stay",
    )


def check_against_queue(service: type[Service], queue: dict[str, Any]) -> None:
    """Raise ServiceError for a service with promises that its queue cannot keep."""
    name, where = service.__name__, queue["name"]
    if not service.operations:
        raise ServiceError(f"{name} has no operations: mark some with @operation")
    if service.exactly_once and not queue["transactional"]:
        raise ServiceError(
            f"{name}: queue {where} is not transactional, so its calls may be lost or "
            "duplicated: set exactly_once=False, or create a transactional queue"
        )
    if not service.exactly_once and queue["transactional"]:
        raise ServiceError(
            f"{name}: queue {where} is transactional, and would reject calls that are posted "
            "with exactly_once=False: leave exactly_once=True"
        )


class FunctionService(Service, Generic[P]):
    """The class that `service` makes of a function; a call of it calls its one operation."""

    async def __call__(self, *given: P.args, **named: P.kwargs) -> None:
        (name,) = self.operations
        await getattr(self, name)(*given, **named)


def service(
    queue: str = "", **settings: Unpack[FunctionSettings]
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], type[FunctionService[P]]]:
    """Make a service of one operation from a coroutine function, under its own name.

        @service("orders", concurrency=4)
        async def place(article: str, count: int) -> None: ...

        await proxy(place, qm)("screws", 10)

    `settings` are those of `Service`, and `playback` and `takes_everything` those of `operation`.
    """
    of_service = cast(dict[str, Any], dict(settings))
    marks = {
        key: of_service.pop(key) for key in ("playback", "takes_everything") if key in of_service
    }

    def make(function: Callable[P, Coroutine[Any, Any, None]]) -> type[FunctionService[P]]:
        if not inspect.iscoroutinefunction(function):
            raise ServiceError(
                f"{function.__name__} is not a coroutine function: write `async def`"
            )

        @functools.wraps(function)
        async def method(self: Service, *given: Any, **named: Any) -> None:
            await function(*given, **named)

        plain = inspect.signature(function)
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        method.__signature__ = plain.replace(  # type: ignore[attr-defined]
            parameters=[first, *plain.parameters.values()]
        )
        name = function.__name__
        body = {name: operation(**marks)(method), "__doc__": function.__doc__}
        body["__module__"] = function.__module__
        return types.new_class(
            name,
            (FunctionService,),
            {"queue": queue, **of_service},
            lambda namespace: namespace.update(body),
        )

    return make
