"""The live regions of a page, and the stream of their changes."""

import asyncio
import json

from qmd.console.live import ENDED, NOTHING, Streams, regions

PAGE = """<main><div class="x" id="live-a" data-live><div>1</div><div id="b">&lt;div&gt;</div></div>
<div id="still">2</div>
<table id="live-t" data-live><tbody><tr><td>{}</td></tr></tbody></table></main>"""


def test_the_live_elements_are_found_with_their_contents():
    found = regions(PAGE.format(3))

    assert list(found) == ["live-a", "live-t"]
    assert found["live-a"].startswith('<div class="x" id="live-a" data-live><div>1</div>')
    assert found["live-a"].endswith('<div id="b">&lt;div&gt;</div></div>')
    assert found["live-t"].endswith("<td>3</td></tr></tbody></table>")


def test_only_changes_are_sent_and_the_stream_ends_with_the_login():
    pages = [PAGE.format(1).encode(), PAGE.format(1).encode(), PAGE.format(2).encode(), b"", None]
    streams = Streams(0.0)

    async def make():
        return pages.pop(0)

    async def all_events():
        return [each async for each in streams.events(make)]

    first, nothing, second, odd, end = asyncio.run(all_events())

    assert (nothing, odd, end) == (NOTHING, NOTHING, ENDED)
    for event, names in ((first, ["live-a", "live-t"]), (second, ["live-t"])):
        head, data, *rest = event.split(b"\n")
        assert (head, rest) == (b"event: regions", [b"", b""])
        assert list(json.loads(data.removeprefix(b"data: "))) == names
    assert streams.has_room
