import asyncio, time, threading, gc, weakref
from pathlib import Path
import pytest
from qmd import frames
from qmd.frames import NewMessage, EXPRESS, RECOVERABLE, TRANSACTIONAL
from qmd.local_queue import Reader
from qmd.refusal import Refusal
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from tests.unit.qmd.managers import *

def test_basic(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a"); b = await hosts.start("b")
            await b.create("orders", transactional=True)
            dest=f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
            await a.send(dest, *[b"%d" % n for n in range(100)], delivery=TRANSACTIONAL)
            await until(lambda: b.queue("orders").messages == 100)
            await b.settled(); assert await b.receive("orders") == [b"%d" % n for n in range(100)]
            await until(lambda: a.sending_to(dest).messages == 0)
    run(main())

# A
def test_A_link_made_while_pumping(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            async with listening(guid(7)) as elsewhere:
                name = elsewhere.name("orders")
                await a.send(name, b"x")
                remote = await elsewhere.session()
                await a.outgoing.set_paused(a.sending_to(name), True)
                a.world.ahead_s = 0
                await a.send(name, b"y", delivery=EXPRESS, time_to_reach_queue_s=1, acknowledge=4, admin_queue=f"PRIVATE={guid_text(guid(7))}\\5")
                a.world.ahead_s = 5
                await a.outgoing.set_paused(a.sending_to(name), False)
                await a.settled()
                await asyncio.sleep(0.05)
                assert not a.failed.done(), repr(a.failed.exception().__cause__)
    run(main())

# B
def test_B_numbers(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            await a.create("orders")
            many=[NewMessage("orders", b"")]*frames.MESSAGES_MAX
            d1=a.handed_over(many)
            d2=a.handed_over(many)
            await d1; await d2
    run(main())

# C
def test_C_host(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            await a.send("orders@x..y", b"x")
            q=a.sending_to("orders@x..y")
            await until(lambda: q.link.retry.history or a.failed.done())
            await asyncio.sleep(0.05)
            import gc; gc.collect()
            await asyncio.sleep(0.05)
            assert not a.failed.done(), repr(a.failed.exception().__cause__)
    run(main())

# D
def test_D_paused(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a", storage={"commit_rows_max": 100})
            await a.create("orders"); await a.create("local")
            remote = await dial(a, guid(3))
            # one commit under way, then batch with the remote's message, then a big one of a client
            d0=a.handed_over([NewMessage("local", b"")]*100)
            remote.send(packet(b"1", source=guid(3), number=1))
            await until(lambda: a.incoming._waiting_for_disk)
            d1=a.handed_over([NewMessage("local", b"")]*60000)
            await d0
            await d1
            await a.settled()
            remote.send(packet(b"2", source=guid(3), number=2))
            await until(lambda: a.queue("orders").messages == 2)
    run(main())

# F purge
def test_F_purge_stale(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            await a.send("orders", *[b"%d"%n for n in range(10)])
            r=Reader()
            taken=await a.take(r,"orders",5)
            finish=threading.Event()
            await a.slow_read(finish)
            purging=asyncio.ensure_future(a.administration.purge(q))
            await asyncio.sleep(0.01)
            await a.removing(r,"orders",taken)
            finish.set()
            assert await purging == 5
            await a.check()
    run(main())

def test_F_reaper_stale(tmp_path):
    async def main():
        from qmd.reaper import Reaper
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            await a.send("orders", *[b"%d"%n for n in range(10)], time_to_be_received_s=10)
            r=Reader()
            taken=await a.take(r,"orders",5)
            a.world.ahead_s=20
            reading=threading.Event()
            reaper=Reaper(a)
            # first read: next_expiry passes; second outgoing; third messages
            orig=a.storage.read
            finish=threading.Event()
            task=None
            await a.slow_read(finish)
            task=asyncio.ensure_future(reaper.reap())
            await asyncio.sleep(0.01)
            finish.set()
            await task
            await a.removing(r,"orders",taken)
            await a.check()
    run(main())
# G
def test_G_peek(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            for _ in range(50): await a.peek("orders")
            assert len(q.watchers) == 0
    run(main())
# H
def test_H_pin(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            await a.create("orders", transactional=True)
            remote = await dial(a, guid(3))
            remote.send(packet(b"1", source=guid(3), number=1, position=(1<<32,1,0)))
            await until(lambda: a.queue("orders").messages == 1)
            ref=weakref.ref(next(iter(a.peers.connections)))
            remote.close()
            await until(lambda: not a.peers.connections)
            await asyncio.sleep(0.02)
            gc.collect()
            c=ref()
            assert c is None, gc.get_referrers(c)
    run(main())
# I
def test_I_resume(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            async with listening(guid(7), window_size=1000) as elsewhere:
                name = elsewhere.name("orders")
                await a.send(name, b"x")
                remote = await elsewhere.session()
                await until(lambda: remote.messages)
                remote.acknowledge()
                c=next(iter(a.peers.connections))
                remote.transport.pause_reading()
                n=1
                while not c._writing_paused:
                    await a.send(name, b"y"*500_000); n+=1
                    await asyncio.sleep(0)
                    assert n<60
                await a.send(name, b"last"); n+=1
                await a.settled()
                remote.transport.resume_reading()
                await until(lambda: len(remote.messages)==n, f"{n} messages")
    run(main())
# J
def test_J_purge_beyond_taken(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            await a.send("orders", *[b""]*4100)
            r=Reader()
            n=0
            while n<4096: n+=len(await a.take(r,"orders",4096-n))
            assert await a.administration.purge(q)==4
    run(main())
def test_J_peek_skips(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            await a.send("orders", *[b"%d"%n for n in range(30)])
            r=Reader()
            m=await a.take(r,"orders",14)
            a.give_back(r,"orders",[m[0],m[1],m[2],m[3],m[4],m[10],m[11]])  # 5..9, 12, 13 taken
            got=bodies(await a.peek("orders",0,10))
            assert got==[b"%d"%n for n in (0,1,2,3,4,10,11,14,15,16)], got
    run(main())
def test_J_peek_bytes(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            for _ in range(20): await a.send("orders", b"x"*1_000_000)
            assert sum(len(m.packet) for m in await a.peek("orders",0,1000)) < 10_000_000
    run(main())
# K
def test_K_delete_express(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            q=await a.create("orders")
            await a.send("orders", b"x"*1000, delivery=EXPRESS)
            r=Reader()
            await a.take(r,"orders")
            await a.administration.delete(q)
            assert a.usage.express_bytes==0
    run(main())
# L
def test_L_exhausted(tmp_path):
    async def main():
        from qmd.core.sequence import NUMBER_MAX
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            async with listening(guid(7)) as elsewhere:
                name=elsewhere.name("orders")
                await a.send(name, b"x", delivery=TRANSACTIONAL)
                q=a.sending_to(name)
                q.sequence.next_number=NUMBER_MAX
                q.sequence._highest_transmitted=NUMBER_MAX
                q.sequence.outstanding=0
                await a.send(name, b"y", delivery=TRANSACTIONAL)
    run(main())
# M
def test_M_reconnect_storm(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a", delivery={"retry_first_s":0.5,"retry_max_s":1}, quotas={"computer_bytes": 1})
            async with listening(guid(7)) as elsewhere:
                name=elsewhere.name("orders")
                a.settings = a.settings
                import dataclasses
                object.__setattr__(a.settings.quotas,"computer_bytes",10**9)
                await a.send(name, b"y")
                object.__setattr__(a.settings.quotas,"computer_bytes",1)
                end=time.monotonic()+0.3
                seen=0
                while time.monotonic()<end:
                    if elsewhere.remotes and elsewhere.remotes[-1].opened.is_set() and len(elsewhere.remotes)>seen:
                        seen=len(elsewhere.remotes)
                        elsewhere.remotes[-1].send(packet(b"1", source=guid(7), number=seen))
                    await asyncio.sleep(0.001)
                assert seen<=2, seen
    run(main())
# P
def test_P_paused_dials(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            async with listening(guid(7)) as elsewhere:
                name=elsewhere.name("orders")
                a.routes.route(name)
                await a.settled()
                await a.outgoing.set_paused(a.sending_to(name), True)
                await a.send(name, b"y")
                await asyncio.sleep(0.1)
                assert not elsewhere.remotes
    run(main())
# CK
def test_CK_create_cancelled(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            _, writer=await asyncio.open_unix_connection(str(a.socket))
            writer.write(frames.frame(frames.CreateQueue(1,"private$\\orders")))
            await writer.drain()
            await until(lambda: a.storage.pressure)
            writer.transport.abort()
            await a.settled(); await asyncio.sleep(0.05); await a.settled()
            rows=await a.storage.read(lambda db: db.execute("select count(*) from queue where key='private$\\orders'").fetchone()[0])
            assert rows==("private$\\orders" in a.queues)
    run(main())
# CV
def test_CV_wire_names(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            remote = await dial(a, guid(3))
            from protocol import parse_user_message, build_user_message, DirectQueueName
            m=parse_user_message(packet(b"1", source=guid(3), number=1, delivery=EXPRESS))
            for n in range(20):
                name=(f"TCP:1.1.1.1\\{n}"+"x"*30000).encode("utf-16-le")+b"\0\0"
                user=m.user._replace(message_number=n+1,destination_queue=DirectQueueName(len(name),name))
                remote.send(build_user_message(m._replace(user=user)))
            await until(lambda: a.incoming.refused_count==20)
            assert sum(map(len,a.incoming._queues_by_wire_name)) < 100_000
    run(main())
# CY
def test_CY_double_nack(tmp_path):
    async def main():
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            await a.create("plain"); await a.create("admin")
            remote = await dial(a, guid(3))
            p=packet(b"1", source=guid(3), number=1, queue="plain", position=(1<<32,1,0), acknowledge=4, admin="DIRECT=OS:.\\private$\\admin")
            remote.send(p); 
            await until(lambda: a.incoming.refused_count==1)
            remote.send(p)
            await until(lambda: a.incoming.refused_count==2)
            await a.settled()
            assert a.queue("admin").messages==1
    run(main())
# AA
def test_AA_rst(tmp_path):
    async def main():
        import socket, struct
        async with Hosts(tmp_path) as hosts:
            a = await hosts.start("a")
            for _ in range(20):
                s=socket.create_connection(("127.0.0.1", a.port))
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii",1,0))
                s.close()
            await asyncio.sleep(0.1)
            remote = await dial(a, guid(3))
            assert a.peers._handshakes==0 and len(a.peers.connections)==1
    run(main())
