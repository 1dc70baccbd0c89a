"""Operations on topics and their subscriptions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from qmd.doors.http import sending, shapes
from qmd.doors.http.declarations import Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response, of_json

PREFIX = "topic:"
TopicName = Annotated[str, Meta(min_length=1, max_length=100)]


class Subscription(Struct, kw_only=True):
    """Messages to the topic that match the selector `where`, or all of them, go to a queue."""

    name: str
    destination: str
    where: str


class Topic(Struct, kw_only=True):
    """A topic; `destination` is its name as that of a queue to which a message is sent."""

    name: str
    destination: str
    unmatched: str | None
    subscriptions: list[Subscription]


class TopicList(Struct, kw_only=True):
    """Topics, by name."""

    topics: list[Topic]


class NewTopic(Struct, kw_only=True, forbid_unknown_fields=True):
    """A topic to create, or to change."""

    name: TopicName
    unmatched: Annotated[
        str, Meta(max_length=600, description="The queue of messages that no subscription takes.")
    ] = ""


class NewSubscription(Struct, kw_only=True, forbid_unknown_fields=True):
    """A subscription to add, or to change."""

    destination: shapes.QueueName
    where: Annotated[
        str, Meta(max_length=4000, description="A selector (JMS), such as `region = 'east'`.")
    ] = ""


async def _list(call: Call) -> Response:
    return of_json({"topics": await call.session.qm.topics.list_all()})


async def _create(call: Call) -> Response:
    new = call.body
    return of_json(await call.session.qm.topics.create(new.name, unmatched=new.unmatched), 201)


async def _show(call: Call) -> Response:
    return of_json(await call.session.qm.topics.show(call.path["topic"]))


async def _delete(call: Call) -> Response:
    await call.session.qm.topics.delete(call.path["topic"])
    return Response(204)


async def _subscribe(call: Call) -> Response:
    new, path = call.body, call.path
    topic = await call.session.qm.topics.subscribe(
        path["topic"], path["subscription"], new.destination, where=new.where
    )
    return of_json(topic)


async def _unsubscribe(call: Call) -> Response:
    topic = await call.session.qm.topics.unsubscribe(call.path["topic"], call.path["subscription"])
    return of_json(topic)


async def _publish(call: Call) -> Response:
    call.path["queue"] = PREFIX + call.path["topic"]
    return await sending.send(call)


_TAG = "Topics"
_ONE = {JSON: Topic}

OPERATIONS = (
    Operation(
        *("GET", "/v1/topics", "listTopics", _TAG, "List the topics", _list),
        {200: Answer("The topics.", {JSON: TopicList})},
    ),
    Operation(
        *("POST", "/v1/topics", "createTopic", _TAG, "Create a topic, or change it", _create),
        {201: Answer("The topic.", _ONE)},
        bodies={JSON: NewTopic},
    ),
    Operation(
        *("GET", "/v1/topics/{topic}", "showTopic", _TAG, "Show a topic", _show),
        {200: Answer("The topic.", _ONE)},
    ),
    Operation(
        *("DELETE", "/v1/topics/{topic}", "deleteTopic", _TAG, "Delete a topic", _delete),
        {204: Answer("It was deleted with its subscriptions; queues stay.")},
    ),
    Operation(
        *("PUT", "/v1/topics/{topic}/subscriptions/{subscription}", "subscribe", _TAG),
        *("Add a subscription to a topic, or change it", _subscribe),
        {200: Answer("The topic after the change.", _ONE)},
        bodies={JSON: NewSubscription},
    ),
    Operation(
        *("DELETE", "/v1/topics/{topic}/subscriptions/{subscription}", "unsubscribe", _TAG),
        *("Remove a subscription of a topic", _unsubscribe),
        {200: Answer("The topic after the change.", _ONE)},
    ),
    sending.sender_of(
        *("/v1/topics/{topic}/messages", "publishMessage", "Publish a message to a topic"),
        _publish,
        "All matching subscriptions get the message, or none: one commit has all of its copies. ",
    ),
)
