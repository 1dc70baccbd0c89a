"""The peers' benchmark: its tables, its section of the manual, and a turn with a real server."""

from pathlib import Path

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import measure, report, servers

SIZES = measure.Sizes(window=600, paced=40, single=20, batches=300)


def a_round(qmd: float, other: float) -> report.Round:
    """Return a round with these messages a second."""
    return {
        servers.QMD: {"W1": {"messages_per_s": qmd}},
        servers.RABBITMQ: {"W1": {"messages_per_s": other}},
    }


def test_a_ratio_is_that_of_the_turns_of_one_round():
    rounds = [a_round(100, 50), a_round(300, 100), a_round(10, 100)]

    _, *rows = report.ratios(rounds)

    assert rows == [["W1: messages/s", "RabbitMQ", "2.00", "0.10", "3.00", "≥ 2", ""]]


def test_a_missed_goal_is_named():
    _, (*_, comment) = report.ratios([a_round(199, 100)])

    assert comment == "missed"


def test_a_peer_that_failed_in_a_round_has_the_figures_of_the_others():
    rounds = [a_round(100, 50), {servers.QMD: {"W1": {"messages_per_s": 200.0}}}]

    ((_, (head, qmd, rabbitmq)),) = list(report.medians(rounds))

    assert head == ["W1", "messages/s"]
    assert qmd == ["qmd", "150 (100 to 200)"]
    assert rabbitmq == ["RabbitMQ", "50"]


def test_a_section_replaces_the_one_before_and_nothing_else(tmp_path):
    file = tmp_path / "benchmarks.md"
    file.write_text(f"before\n{peers.BEGIN}\nold\n{peers.END}\nafter\n")

    peers.write("| new |", file)

    assert file.read_text() == f"before\n{peers.BEGIN}\n\n| new |\n\n{peers.END}\nafter\n"


def test_the_manual_has_the_section():
    text = peers.DOCS.read_text()

    assert text.count(peers.BEGIN) == text.count(peers.END) == 1


def test_a_server_that_is_not_there_is_named(tmp_path):
    found = peers.missing([servers.QMD, servers.REDIS], tmp_path)

    assert found == {"Redis": "there is no redis-server"}


def test_a_folder_of_a_server_is_shown_inside_its_tree():
    assert servers.in_tree(None, Path("/tmp/x"), ["redis-server"]) == ["redis-server"]
    command = servers.in_tree(Path("/tree"), Path("/tmp/x"), ["redis-server"])

    assert command[:2] == ["unshare", "--mount"]
    assert command[-3:] == ["/tree", "/tmp/x", "redis-server"]


@pytest.mark.parametrize("name", [servers.QMD, servers.RECOVERABLE, servers.REDIS])
def test_a_turn_has_all_figures(name):
    peer = servers.PEERS[name]
    if why := peer.missing(None):
        pytest.skip(why)
    if name == servers.REDIS:
        pytest.importorskip("redis", reason="make bench installs its client")
        found = measure.local(peer, SIZES, None)
    else:
        found = measure.link(peer, SIZES, None)

    for figures in found.values():
        assert figures["messages_per_s"] > 0
        assert figures["written_bytes"] > 1000, "each message has a kibibyte"
        assert figures["peak_rss_mb"] > 1
