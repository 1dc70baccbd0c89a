"""The gate of links that dial only because messages of peers ask for acknowledgments."""

import asyncio

from qmd.peers.dial_gate import HOST_SESSIONS, PAUSE_MAX_S, DialGate, pause_s


def run(test):
    asyncio.run(asyncio.wait_for(test, 30))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_few_links_have_a_turn_and_one_host_has_a_quarter_of_them():
    async def test():
        gate = DialGate(turns=8, sessions_max=1000)
        tasks = [asyncio.create_task(gate.enter(f"a{each}", "a")) for each in range(50)]
        tasks += [asyncio.create_task(gate.enter(f"b{each}", "b")) for each in range(50)]
        await settle()

        assert gate.dialling == 4  # two of each host
        assert gate.waiting == 96

        gate.leave("a")
        await settle()
        assert gate.dialling == 4
        for task in tasks:
            task.cancel()

    run(test())


def test_every_waiting_link_gets_its_turn():
    async def test():
        gate = DialGate(turns=4, sessions_max=1000)
        done = []

        async def dial(name):
            assert await gate.enter(name, name[0])
            await asyncio.sleep(0)
            done.append(name)
            gate.leave(name[0])

        await asyncio.gather(*(dial(f"{host}{each}") for host in "abc" for each in range(20)))

        assert len(done) == 60
        assert (gate.dialling, gate.waiting) == (0, 0)

    run(test())


def test_a_link_that_an_application_needs_does_not_wait():
    async def test():
        gate = DialGate(turns=1, sessions_max=1000)
        assert await gate.enter("first", "a")
        waiting = asyncio.create_task(gate.enter("second", "a"))
        await settle()
        assert not waiting.done()

        gate.let_through("second")

        assert await waiting is False
        assert gate.dialling == 1  # it has no turn, and does not leave

    run(test())


def test_a_cancelled_link_gives_its_turn_back():
    async def test():
        gate = DialGate(turns=1, sessions_max=1000)
        assert await gate.enter("first", "a")
        cancelled = asyncio.create_task(gate.enter("second", "b"))
        third = asyncio.create_task(gate.enter("third", "c"))
        await settle()

        gate.leave("a")  # the second one gets the turn, and is cancelled before it runs
        cancelled.cancel()

        assert await third is True
        assert gate.dialling == 1

    run(test())


def test_connections_for_one_host_are_limited_until_they_close():
    async def test():
        gate = DialGate(turns=100, sessions_max=1000)
        for each in range(HOST_SESSIONS):
            assert await gate.enter(each, "a")
            gate.connected(f"session {each}", "a")
            gate.leave("a")
        waiting = asyncio.create_task(gate.enter("further", "a"))
        assert await gate.enter("other", "b")
        await settle()
        assert not waiting.done()

        gate.closed("session 3")

        assert await waiting is True

    run(test())


def test_the_pause_grows_to_an_hour():
    pauses = [pause_s(failures) for failures in range(40)]

    assert pauses == sorted(pauses)
    assert pauses[0] == 30
    assert pauses[-1] == PAUSE_MAX_S == 3600
