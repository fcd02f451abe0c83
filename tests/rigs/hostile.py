#!/usr/bin/env python3
"""Processes that must not block layersweep. Each prints `ready` when it is prepared.

  serve DIR UID [OPTIONS [private]]
                            a filesystem on FUSE at DIR (private: only in its mount namespace);
                            after SIGUSR1 it does not answer
  root DIR [UID]            has DIR as its root; with UID, in a user namespace of that user
  hide FILE PADDING         has FILE mapped where PADDING, several pages, was among its arguments
  exec FILE                 at SIGUSR1 becomes another program, and closes FILE on the way
  mounts DIR UID N          N mounts of that user, in a separate namespace
  stack DIR UID N           about N mounts of that user with long paths, each below the other
  overlay DIR UID NAME      an overlay of that user, with DIR/NAME below
"""
import ctypes
import mmap
import os
import signal
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
NEWNS, NEWUSER = 0x20000, 0x10000000
MAP_PRIVATE, MAP_FIXED = 2, 16


def check(result, what):
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind, flags=0, data=None):
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    check(LIBC.mount(words[0], words[1], words[2], flags, words[3]), f"mount {target}")


def say(word):
    # Not `print`: a signal whose handler also prints would interrupt it.
    os.write(1, f"{word}\n".encode())


def ready():
    say("ready")


def become(uid):
    """Becomes a user with all capabilities in separate namespaces."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    check(LIBC.unshare(NEWUSER | NEWNS), "unshare")
    # Otherwise the maps belong to root.
    LIBC.prctl(4, 1, 0, 0, 0)
    for name, text in [("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")]:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def attributes(node):
    mode, size = (0o40755, 4096) if node == 1 else (0o100644, 1 << 16)
    return struct.pack("<6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(code, node, body):
    if code == 26:
        return struct.pack("<4I2H2I2H8I", 7, 31, 4096, 0, 8, 6, 1 << 16, 1, 16, 0, 0, *[0] * 7)
    if code == 3:
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if code == 1:
        if body.rstrip(b"\0") != b"page":
            return 2
        return struct.pack("<4QII", 2, 0, 0, 0, 0, 0) + attributes(2)
    if code in (14, 27):
        return struct.pack("<QII", 0, 0, 0)
    if code == 15:
        offset, size = struct.unpack("<QI", body[8:20])
        return b"x" * max(0, min(size, (1 << 16) - offset))
    if code == 28:
        return b""
    if code == 17:
        return struct.pack("<5Q10I", 0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7)
    if code in (18, 25, 29, 34):
        return b""
    return 38


def serve(place, uid, options="", where=""):
    if where == "private":
        check(LIBC.unshare(NEWNS), "unshare")
        mount(None, "/", None, MS_REC | MS_PRIVATE)
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={fuse},rootmode=40000,user_id={uid},group_id={uid}" + (options and "," + options)
    mount("hostile", place, "fuse", 0, data)
    silent = []
    signal.signal(signal.SIGUSR1, lambda *_: (silent.append(1), say("silent")))
    ready()
    while True:
        try:
            request = os.read(fuse, 1 << 18)
        except FileNotFoundError:
            # The caller was interrupted before the request was read.
            continue
        _, code, unique, node = struct.unpack("<IIQQ", request[:24])
        if silent or code in (2, 36, 42):
            continue
        reply = answer(code, node, request[40:])
        error, reply = (-reply, b"") if isinstance(reply, int) else (0, reply)
        try:
            os.write(fuse, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)
        except OSError:
            pass


def root(place, uid=None):
    if uid is not None:
        become(int(uid))
    os.chroot(place)
    ready()
    time.sleep(600)


def hide(path, _padding):
    # The address of the arguments is the 48th field; the name before may have spaces.
    with open("/proc/self/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    # The first page without other data.
    start = -(-int(fields[45]) // mmap.PAGESIZE) * mmap.PAGESIZE
    file = os.open(path, os.O_RDONLY)
    libc_sleep = LIBC.sleep
    place = LIBC.mmap(start, mmap.PAGESIZE, mmap.PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0)
    if place != start:
        sys.exit("mmap")
    ready()
    libc_sleep(600)


def execute(path):
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    signal.signal(signal.SIGUSR1, lambda *_: (say("silent"), os.execv("/bin/sleep", ["sleep", "600"])))
    ready()
    signal.pause()
    os.close(file)


def mounts(place, uid, count):
    become(int(uid))
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("many", place, "tmpfs")
    # Doubles the number of mounts each time.
    first, doublings = int(count), 0
    while first > 16:
        first, doublings = (first + 1) // 2, doublings + 1
    for at in range(first - 1):
        os.mkdir(f"{place}/b{at}")
        mount(place, f"{place}/b{at}", None, MS_BIND)
    for at in range(doublings):
        os.mkdir(f"{place}/d{at}")
    for at in range(doublings):
        mount(place, f"{place}/d{at}", None, MS_BIND | MS_REC)
    ready()
    time.sleep(600)


def stack(place, uid, count):
    become(int(uid))
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("many", place, "tmpfs")
    below = f"{place}/{'y' * 200}"
    os.mkdir(below)
    many = 1
    while many < int(count):
        mount(place, below, None, MS_BIND | MS_REC)
        many *= 2
    ready()
    time.sleep(600)


def overlay(place, uid, name):
    become(int(uid))
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("few", place, "tmpfs")
    for one in (name, "other", "merged"):
        os.mkdir(f"{place}/{one}")
    mount("overlay", f"{place}/merged", "overlay", 0, f"lowerdir={place}/{name}:{place}/other")
    ready()
    time.sleep(600)


if __name__ == "__main__":
    {"serve": serve, "root": root, "hide": hide, "exec": execute, "mounts": mounts, "stack": stack, "overlay": overlay}[sys.argv[1]](*sys.argv[2:])
