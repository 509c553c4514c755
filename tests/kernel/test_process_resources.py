"""The process's use of memory, in separate processes, as it is set for a whole process."""

from __future__ import annotations

import subprocess
import sys


def run(text: str) -> str:
    """Return the output of a Python program that has imported gc, and process_resources as process."""
    program = f"import gc\nfrom nftproxy.kernel import process_resources as process\n{text}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_garbage_is_looked_for_seldom_but_still() -> None:
    """Half a million objects cause two searches and not hundreds, and cycles among them are found."""
    program = """
process.collect_garbage_rarely()
gc.collect()
before = sum(each["collections"] for each in gc.get_stats())
for _ in range(250_000):
    cycle = []
    cycle.append([cycle])
print(sum(each["collections"] for each in gc.get_stats()) - before, gc.get_count()[0] < 200_000)
"""
    assert run(program) == "2 True"


def test_frozen_objects_are_not_searched_by_the_collector() -> None:
    """Objects from before are out of the collector's sight.  Later objects are not."""
    program = """
kept = [[] for _ in range(100_000)]
process.freeze_objects()
later = []
print(gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 1_000, gc.is_tracked(later))
"""
    assert run(program) == "True True True"


def test_threads_take_short_turns() -> None:
    """A thread that computes gives Python's lock up at least a thousand times a second."""
    assert run("import sys; process.take_short_turns(); print(sys.getswitchinterval() <= 0.001)") == "True"


def test_free_memory_goes_back() -> None:
    """Most of the memory that was allocated in small pieces and freed leaves the process."""
    program = """
def resident():
    return int(open("/proc/self/statm").read().split()[1])
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
before = resident()
pieces = [libc.malloc(1000) for _ in range(50_000)]
for piece in pieces: ctypes.memset(piece, 1, 1000)
last = libc.malloc(1000)  # so that the heap does not shrink by itself
full = resident()
for piece in pieces: libc.free(piece)
pieces.clear()
process.trim_memory()
print(resident() - before < (full - before) / 2)
"""
    assert run(program) == "True"


def test_free_memory_of_another_thread_goes_back() -> None:
    """The memory of large blocks that another thread has made leaves the process, also while the thread lives."""
    program = """
import threading
def resident():
    return int(open("/proc/self/statm").read().split()[1])
process.share_a_heap()
kept, is_full, may_end = [], threading.Event(), threading.Event()
def fill():
    for parts in (20, 240, 240, 20):  # as sets of the kernel are read
        block = bytearray()
        for _ in range(parts): block += bytes(30_000)
        kept.append(bytes(block))
    del block
    is_full.set()
    may_end.wait()
before = resident()
threading.Thread(target=fill).start()
is_full.wait()
full = resident()
kept.clear()
process.trim_memory()
print(resident() - before < (full - before) / 4)
may_end.set()
"""
    assert run(program) == "True"
