"""The window on a queue against a plain sorted dictionary, with everything that can race.

Commits, their callbacks, and the three moments of a refill (asked, read, answered) are separate
steps, so that any of them may come between any two others.  Callbacks run in the order of their
commits, as the writer's do; nothing else is promised.
"""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qmd.core.ready_window import LEVEL_SHIFT_BITS, ReadyWindow

levels = st.sampled_from([0, 4, 4, 4, 8])
sizes = st.sampled_from([1, 1, 1, 5])
choices = st.integers(0, 1000)


class Queue(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.window = None
        self.arrivals = 0
        self.items = {}  # key -> (item, size) of all that ever was
        self.disk = set()  # keys of committed rows
        self.added = set()  # those whose add() was called
        self.express = set()
        self.taken = set()
        self.leaving = set()  # taken, and their deletion is committed
        self.ghosts = set()  # deleted on disk while ready; remove() follows
        self.callbacks = deque()
        self.asked = None
        self.read = None

    @initialize(entries_max=st.integers(1, 6), bytes_max=st.sampled_from([4, 12, 1000]))
    def open(self, entries_max, bytes_max):
        self.entries_max, self.bytes_max = entries_max, bytes_max
        self.window = ReadyWindow(entries_max=entries_max, bytes_max=bytes_max)

    def new_key(self, level, size):
        self.arrivals += 1
        key = level << LEVEL_SHIFT_BITS | self.arrivals
        self.items[key] = (f"item {key:#x}", size)
        return key

    def is_ready(self, key):
        return key not in self.taken

    @property
    def ready(self):
        """Stored keys that readers have a right to."""
        return {key for key in self.disk & self.added if self.is_ready(key)}

    # Messages arrive.

    @rule(arriving=st.lists(st.tuples(levels, sizes), min_size=1, max_size=4))
    def commit(self, arriving):
        for level, size in arriving:
            key = self.new_key(level, size)
            self.disk.add(key)
            self.callbacks.append(("add", key))

    @rule(arriving=st.lists(st.tuples(levels, sizes), min_size=1, max_size=9))
    def commit_many(self, arriving):
        """So many that they are not added one by one."""
        keys = [self.new_key(level, size) for level, size in arriving]
        self.disk.update(keys)
        self.callbacks.append(("leave on disk", keys))

    @rule(level=levels, size=sizes)
    def arrive_express(self, level, size):
        key = self.new_key(level, size)
        self.express.add(key)
        self.window.add(key, *self.items[key], stored=False)

    @precondition(lambda self: self.callbacks)
    @rule()
    def call_back(self):
        what, key = self.callbacks.popleft()
        if what == "add":
            self.added.add(key)
            self.window.add(key, *self.items[key], stored=True)
        elif what == "leave on disk":
            self.added.update(key)
            self.window.leave_on_disk(min(key))
        elif what == "remove all":
            self.window.remove_taken(key)
            self.leaving.difference_update(key)
            self.taken.difference_update(key)
        else:
            self.window.remove(key)
            self.ghosts.discard(key)
            self.leaving.discard(key)
            self.taken.discard(key)

    # Messages are taken, return, and go.

    @rule()
    def pop(self):
        peeked = self.window.peek()
        popped = self.window.pop()

        assert peeked == popped
        ready = self.ready | self.express
        if popped is None:
            horizon = self.window.horizon
            assert horizon is not None or not ready
            assert all(key >= horizon for key in ready)
            assert horizon is None or self.asked is not None or self.window.needs_refill
            return
        key, item = popped
        assert item == self.items[key][0]
        assert self.is_ready(key), "twice"
        assert key in self.disk | self.ghosts | self.express, "never was, or is gone"
        assert all(key <= other for other in ready), "out of order"
        assert not self.window.needs_refill or self.window.peek() is None
        self.express.discard(key)
        self.taken.add(key)

    @precondition(lambda self: self.items)
    @rule(choice=choices)
    def take(self, choice):
        key = pick(self.items, choice)

        item = self.window.take(key)

        if item is None:
            assert key not in self.express
            horizon = self.window.horizon
            assert key not in self.ready or (horizon is not None and key >= horizon)
        else:
            assert self.is_ready(key)
            assert key in self.disk | self.ghosts | self.express
            assert item == self.items[key][0]
            self.express.discard(key)
            self.taken.add(key)

    @precondition(lambda self: self.disk & self.added)
    @rule(choice=choices)
    def hold(self, choice):
        key = pick(self.disk & self.added, choice)

        assert self.window.hold(key) is self.is_ready(key)

        self.taken.add(key)

    @precondition(lambda self: self.ready)
    @rule(choice=choices)
    def hold_all(self, choice):
        keys = sorted(self.ready)[choice % len(self.ready) :]

        self.window.hold_all(keys)

        self.taken.update(keys)

    @precondition(lambda self: self.taken & self.disk)
    @rule(choice=choices)
    def finish_all(self, choice):
        """What was held is consumed, many at once."""
        keys = sorted(self.taken & self.disk)[: 1 + choice % 5]
        self.disk.difference_update(keys)
        self.leaving.update(keys)
        self.callbacks.append(("remove all", keys))

    @precondition(lambda self: self.taken - self.leaving - self.ghosts)
    @rule(choice=choices)
    def put_back(self, choice):
        key = pick(self.taken - self.leaving - self.ghosts, choice)
        self.taken.remove(key)
        if key not in self.disk:
            self.express.add(key)
        self.window.put_back(key, *self.items[key])

    @precondition(lambda self: self.taken - self.leaving - self.ghosts)
    @rule(choice=choices)
    def finish(self, choice):
        """What was taken is consumed: deleted on disk, then in memory."""
        key = pick(self.taken - self.leaving - self.ghosts, choice)
        if key in self.disk:
            self.disk.remove(key)
            self.leaving.add(key)
            self.callbacks.append(("remove", key))
        else:
            self.window.remove(key)
            self.taken.remove(key)

    @precondition(lambda self: self.ready)
    @rule(choice=choices)
    def release(self, choice):
        """A message goes that nobody has taken, as after a late acknowledgment."""
        key = pick(self.ready, choice)
        self.disk.remove(key)
        self.ghosts.add(key)
        self.callbacks.append(("remove", key))

    @rule(choice=choices)
    def clear_to_disk(self, choice):
        from_key = pick(self.items, choice) if self.items and choice % 3 else 0

        self.window.clear_to_disk(from_key, keep_taken=self.leaving)

        stored = self.taken & self.disk
        self.taken -= {key for key in stored if key >= from_key and key not in self.leaving}

    @rule()
    def purge(self):
        doomed = self.ready
        dropped = [key for key, _ in self.window.purge()]

        assert dropped == sorted(set(dropped))
        assert self.express <= set(dropped) <= self.disk | self.ghosts | self.express
        self.express.clear()
        self.disk -= doomed

    # The disk is read.

    @precondition(lambda self: self.asked is None and self.window.horizon is not None)
    @rule()
    def ask(self):
        horizon = self.window.horizon
        self.asked = self.window.begin_refill()
        assert self.asked == horizon
        assert not self.window.needs_refill
        assert not self.window.wants_refill

    @precondition(lambda self: self.asked is not None and self.read is None)
    @rule(rows_max=st.integers(1, 8))
    def look(self, rows_max):
        keys = sorted(key for key in self.disk if key >= self.asked)
        rows = [(key, *self.items[key]) for key in keys[:rows_max]]
        self.read = rows, len(keys) <= rows_max

    @precondition(lambda self: self.read is not None)
    @rule()
    def answer(self):
        rows, complete = self.read
        self.asked = self.read = None
        self.window.refill(rows, complete=complete)

    # What holds at any time.

    @precondition(lambda self: self.window is not None)
    @invariant()
    def what_is_ready_below_the_horizon_is_in_the_window(self):
        entries = list(self.window.entries())
        keys = [key for key, _ in entries]
        horizon = self.window.horizon
        known = {k for k in self.ready | self.express if horizon is None or k < horizon}
        assert keys == sorted(set(keys))
        assert known <= set(keys) <= self.disk | self.ghosts | self.express
        assert not self.taken & set(keys)
        assert all(item == self.items[key][0] for key, item in entries)
        waiting = [key for key in self.express if horizon is not None and key >= horizon]
        assert len(keys) + len(waiting) == len(self.window), "stored beyond the horizon"

    @precondition(lambda self: self.window is not None)
    @invariant()
    def memory_is_bounded(self):
        stored = len(self.window) - len(self.express)
        assert stored <= self.entries_max
        assert stored <= 1 or self.window.bytes <= self.bytes_max + 5
        assert sum(self.items[key][1] for key, _ in self.window.entries()) >= (
            self.window.bytes if self.window.horizon is None else 0
        )

    def teardown(self):
        """Let everything come to rest; then nothing is missing, and all is in order."""
        if self.window is None:
            return
        while self.callbacks:
            self.call_back()
        self.answer_everything()
        expected = sorted(self.ready | self.express)
        found = []
        while len(found) <= len(expected):
            if self.window.needs_refill:
                self.ask()
                self.answer_everything()
            elif (entry := self.window.pop()) is not None:
                found.append(entry[0])
            else:
                break
        assert found == expected
        assert len(self.window) == self.window.bytes == 0

    def answer_everything(self):
        if self.asked is not None and self.read is None:
            self.look(3)
        if self.read is not None:
            self.answer()


def pick(keys, choice):
    keys = sorted(keys)
    return keys[choice % len(keys)]


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
