"""The window of a queue against a model of plain sets, with all possible races.

Commits, their callbacks, and the three steps of a refill (asked, read, answered) are separate
rules, so that any of them may come between any two others.  Callbacks run in the order of their
commits, as those of the storage's writer do; no other order is defined.
"""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qmd.core.ready_window import LEVEL_SHIFT_BITS, ReadyWindow
from storage.tables.runs import runs_of

levels = st.sampled_from([0, 4, 4, 4, 8])
sizes = st.sampled_from([1, 1, 1, 5])
choices = st.integers(0, 1000)


class Model:
    """The messages of a queue, as sets of their keys."""

    def __init__(self):
        self.arrivals = 0
        self.items = {}  # key -> (item, size) of all messages so far
        self.disk = set()  # keys of committed rows
        self.added = set()  # keys that were added to the window
        self.express = set()
        self.taken = set()
        self.held = set()  # those of `taken` that were taken in runs
        self.leaving = set()  # taken, and their deletion is committed
        self.ghosts = set()  # deleted on disk while ready; remove() follows

    def new_key(self, level, size):
        """Allocate the key of a message."""
        self.arrivals += 1
        key = level << LEVEL_SHIFT_BITS | self.arrivals
        self.items[key] = (f"item {key:#x}", size)
        return key

    def is_ready(self, key):
        return key not in self.taken

    @property
    def put_back(self):
        """Keys of messages that their readers may put back or remove one by one."""
        return self.taken - self.held - self.leaving - self.ghosts

    @property
    def ready(self):
        """Keys of stored messages that readers may take."""
        return {key for key in self.disk & self.added if self.is_ready(key)}


class Queue(RuleBasedStateMachine):
    """The window, the model, the writer's callbacks and one refill at a time."""

    def __init__(self):
        super().__init__()
        self.window = None
        self.model = Model()
        self.callbacks = deque()
        self.asked = None  # the key from which the refill reads
        self.read = None  # the rows that it read, and whether they are all

    @initialize(entries_max=st.integers(1, 6), bytes_max=st.sampled_from([4, 12, 1000]))
    def open(self, entries_max, bytes_max):
        self.entries_max, self.bytes_max = entries_max, bytes_max
        self.window = ReadyWindow(entries_max=entries_max, bytes_max=bytes_max)

    # Messages arrive.

    @rule(arriving=st.lists(st.tuples(levels, sizes), min_size=1, max_size=4))
    def commit(self, arriving):
        for level, size in arriving:
            key = self.model.new_key(level, size)
            self.model.disk.add(key)
            self.callbacks.append(("add", key))

    @rule(arriving=st.lists(st.tuples(levels, sizes), min_size=1, max_size=9), order=choices)
    def commit_together(self, arriving, order):
        """Commit messages that are added together, most often in the order of their keys."""
        keys = [self.model.new_key(level, size) for level, size in arriving]
        self.model.disk.update(keys)
        self.callbacks.append(("add all", keys if order % 3 else sorted(keys)))

    @rule(arriving=st.lists(st.tuples(levels, sizes), min_size=1, max_size=9))
    def commit_many(self, arriving):
        """Commit messages that stay on disk instead of being added one by one."""
        keys = [self.model.new_key(level, size) for level, size in arriving]
        self.model.disk.update(keys)
        self.callbacks.append(("leave on disk", keys))

    @rule(level=levels, size=sizes)
    def arrive_express(self, level, size):
        key = self.model.new_key(level, size)
        self.model.express.add(key)
        self.window.add(key, *self.model.items[key], stored=False)

    @precondition(lambda self: self.callbacks)
    @rule()
    def call_back(self):
        kind, key = self.callbacks.popleft()
        if kind == "add all":
            self.model.added.update(key)
            self.window.add_all([(each, *self.model.items[each]) for each in key])
        elif kind == "add":
            self.model.added.add(key)
            self.window.add(key, *self.model.items[key], stored=True)
        elif kind == "leave on disk":
            self.model.added.update(key)
            self.window.leave_on_disk(min(key))
        elif kind == "remove runs":
            self.window.remove_all(runs=runs_of(key))
            self.model.leaving.difference_update(key)
            self.model.taken.difference_update(key)
            self.model.held.difference_update(key)
        elif kind == "release all":
            self.window.remove_all(key)
            self.model.ghosts.difference_update(key)
            self.model.leaving.difference_update(key)
            self.model.taken.difference_update(key)
        else:
            if key % 2:
                self.window.remove(key)
            else:
                self.window.remove_all([key])
            self.model.ghosts.discard(key)
            self.model.leaving.discard(key)
            self.model.taken.discard(key)

    # Messages are taken, put back and removed.

    @rule()
    def pop(self):
        peeked = self.window.peek()
        popped = self.window.pop()

        assert peeked == popped
        if popped is None:
            self.check_that_none_is_known()
        else:
            self.check_that_it_was_first(*popped)

    @rule(entries_max=st.integers(1, 4), bytes_max=st.integers(0, 12))
    def pop_run(self, entries_max, bytes_max):
        run = self.window.pop_run(entries_max, bytes_max)

        if not run:
            self.check_that_none_is_known()
        assert len(run) <= entries_max
        assert len(run) <= 1 or sum(size for _, _, size in run) <= bytes_max
        for key, item, size in run:
            self.check_that_it_was_first(key, item)
            assert size == self.model.items[key][1]

    def check_that_none_is_known(self):
        ready, horizon = self.model.ready | self.model.express, self.window.horizon
        assert horizon is not None or not ready
        assert all(key >= horizon for key in ready)
        assert horizon is None or self.asked is not None or self.window.needs_refill

    def check_that_it_was_first(self, key, item):
        ready = self.model.ready | self.model.express
        assert item == self.model.items[key][0]
        assert self.model.is_ready(key), "twice"
        assert key in self.model.disk | self.model.ghosts | self.model.express, "unknown or removed"
        assert all(key <= other for other in ready), "out of order"
        assert not self.window.needs_refill or self.window.peek() is None
        self.model.express.discard(key)
        self.model.taken.add(key)

    @precondition(lambda self: self.model.items)
    @rule(choice=choices)
    def take(self, choice):
        key = pick(self.model.items, choice)

        item = self.window.take(key)

        if item is None:
            assert key not in self.model.express
            horizon = self.window.horizon
            assert key not in self.model.ready or (horizon is not None and key >= horizon)
        else:
            assert self.model.is_ready(key)
            assert key in self.model.disk | self.model.ghosts | self.model.express
            assert item == self.model.items[key][0]
            self.model.express.discard(key)
            self.model.taken.add(key)

    @precondition(lambda self: self.model.disk & self.model.added)
    @rule(choice=choices)
    def hold(self, choice):
        key = pick(self.model.disk & self.model.added, choice)

        assert self.window.hold(key) is self.model.is_ready(key)

        self.model.taken.add(key)

    @precondition(lambda self: self.model.ready)
    @rule(choice=choices)
    def hold_runs(self, choice):
        keys = sorted(self.model.ready)[choice % len(self.model.ready) :]

        self.window.hold_runs(runs_of(keys))

        self.model.taken.update(keys)
        self.model.held.update(keys)

    @precondition(lambda self: self.model.held & self.model.disk)
    @rule(choice=choices)
    def finish_runs(self, choice):
        """Consume several held messages."""
        keys = sorted(self.model.held & self.model.disk)[: 1 + choice % 9]
        self.model.disk.difference_update(keys)
        self.model.leaving.update(keys)
        self.callbacks.append(("remove runs", keys))

    @precondition(lambda self: self.model.put_back)
    @rule(choice=choices)
    def put_back(self, choice):
        key = pick(self.model.put_back, choice)
        self.model.taken.remove(key)
        if key not in self.model.disk:
            self.model.express.add(key)
        self.window.put_back(key, *self.model.items[key])

    @precondition(lambda self: self.model.put_back)
    @rule(choice=choices)
    def finish(self, choice):
        """Consume a taken message: delete it on disk, then in memory."""
        key = pick(self.model.put_back, choice)
        if key in self.model.disk:
            self.model.disk.remove(key)
            self.model.leaving.add(key)
            self.callbacks.append(("remove", key))
        else:
            self.window.remove(key)
            self.model.taken.remove(key)

    @precondition(lambda self: self.model.ready)
    @rule(choice=choices)
    def release(self, choice):
        """Remove a message that is not taken, as a late acknowledgment does."""
        key = pick(self.model.ready, choice)
        self.model.disk.remove(key)
        self.model.ghosts.add(key)
        self.callbacks.append(("remove", key))

    @precondition(lambda self: self.model.ready)
    @rule(choice=choices)
    def release_all(self, choice):
        """Remove messages that are taken or not, as an acknowledgment of several does."""
        free = self.model.disk & self.model.added - self.model.leaving - self.model.held
        keys = sorted(free)[: 1 + choice % 4]
        self.model.disk.difference_update(keys)
        self.model.ghosts.update(set(keys) - self.model.taken)
        self.model.leaving.update(set(keys) & self.model.taken)
        self.callbacks.append(("release all", keys))

    @precondition(lambda self: not self.model.leaving)
    @rule(choice=choices)
    def clear_to_disk(self, choice):
        from_key = pick(self.model.items, choice) if self.model.items and choice % 3 else 0

        self.window.clear_to_disk(from_key)

        stored = self.model.taken & self.model.disk
        self.model.taken -= {key for key in stored if key >= from_key}
        self.model.held &= self.model.taken

    @precondition(lambda self: self.model.held & self.model.disk)
    @rule(choice=choices)
    def return_to_disk(self, choice):
        """Release several held messages, as a shared reader does."""
        keys = sorted(self.model.held & self.model.disk)[: 1 + choice % 8]

        self.window.leave_on_disk(min(keys), returned=runs_of(keys))

        self.model.taken.difference_update(keys)
        self.model.held.difference_update(keys)

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
        keys = sorted(key for key in self.model.disk if key >= self.asked)
        rows = [(key, *self.model.items[key]) for key in keys[:rows_max]]
        self.read = rows, len(keys) <= rows_max

    @precondition(lambda self: self.read is not None)
    @rule()
    def answer(self):
        rows, complete = self.read
        self.asked = self.read = None
        self.window.refill(rows, complete=complete)

    @precondition(lambda self: self.window is not None)
    @invariant()
    def the_window_agrees_with_the_model(self):
        check_entries(self.window, self.model)
        check_memory(self.window, self.model, self.entries_max, self.bytes_max)

    def teardown(self):
        """Complete all steps; then check that every message comes out, in order."""
        if self.window is None:
            return
        while self.callbacks:
            self.call_back()
        complete_refill(self)
        expected = sorted(self.model.ready | self.model.express)
        found = []
        while len(found) <= len(expected):
            if self.window.needs_refill:
                self.ask()
                complete_refill(self)
            elif (entry := self.window.pop()) is not None:
                found.append(entry[0])
            else:
                break
        assert found == expected
        assert len(self.window) == self.window.bytes == 0


def complete_refill(machine):
    """Read and answer a refill that has begun."""
    if machine.asked is not None and machine.read is None:
        machine.look(3)
    if machine.read is not None:
        machine.answer()


def check_entries(window, model):
    """Check that the window has all ready messages below its horizon, and no others."""
    entries = list(window.entries())
    keys = [key for key, _ in entries]
    horizon = window.horizon
    known = {k for k in model.ready | model.express if horizon is None or k < horizon}
    assert keys == sorted(set(keys))
    assert known <= set(keys) <= model.disk | model.ghosts | model.express
    assert not model.taken & set(keys)
    assert all(item == model.items[key][0] for key, item in entries)
    waiting = [key for key in model.express if horizon is not None and key >= horizon]
    assert len(keys) + len(waiting) == len(window), "stored beyond the horizon"


def check_memory(window, model, entries_max, bytes_max):
    """Check the bounds of the window's memory."""
    stored = len(window) - len(model.express)
    assert stored <= entries_max
    assert stored <= 1 or window.bytes <= bytes_max + 5
    assert sum(model.items[key][1] for key, _ in window.entries()) >= (
        window.bytes if window.horizon is None else 0
    )


def pick(keys, choice):
    keys = sorted(keys)
    return keys[choice % len(keys)]


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
