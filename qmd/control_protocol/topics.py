"""Requests of topics and their subscriptions."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

Text = Annotated[str, msgspec.Meta(max_length=4096)]


class CreateTopic(Request, tag="create_topic", frozen=True):
    """Create a topic, or change `unmatched` of one that exists. -> the topic, as in `ShowTopic`

    `unmatched`: the destination of messages that no subscription takes; without one they are
    refused.
    """

    name: Text
    unmatched: Text = ""


class DeleteTopic(Request, tag="delete_topic", frozen=True):
    """Delete a topic with its subscriptions; queues stay. -> the topic as it was"""

    name: Text


class Subscribe(Request, tag="subscribe", frozen=True):
    """Add a subscription to a topic, or change it. -> the topic, as in `ShowTopic`

    Messages to the topic that match the selector `where`, or all of them, go to `destination`.
    """

    topic: Text
    name: Text
    destination: Text
    where: Text = ""


class Unsubscribe(Request, tag="unsubscribe", frozen=True):
    """Remove a subscription of a topic. -> the topic, as in `ShowTopic`"""

    topic: Text
    name: Text


class ShowTopic(Request, tag="show_topic", frozen=True):
    """Show a topic.

    -> {name, destination, unmatched, subscriptions: [{name, destination, where}, ...]}
    """

    name: Text


class ListTopics(Request, tag="list_topics", frozen=True):
    """List the topics. -> [topic as in `ShowTopic`, ...]"""


TopicRequest = CreateTopic | DeleteTopic | Subscribe | Unsubscribe | ShowTopic | ListTopics

add_verbs(TopicRequest)
