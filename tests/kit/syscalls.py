"""Stands between the code and the real file operations below one directory.

The functions of ``os``, ``open`` and ``fcntl.flock`` are replaced while the context is entered. For
every call that concerns a path below *root*, *before* is asked first and may raise: then the call is
not made. *after* hears what was done. Nothing depends on what the code announces about itself.
"""

from __future__ import annotations

import builtins
import fcntl
import os
from dataclasses import dataclass

PATHS = ("unlink", "mkdir", "rmdir", "scandir", "lstat", "stat", "listdir")
DESCRIPTORS = ("write", "fsync", "fchmod", "fstat")
REAL = {
    name: getattr(os, name) for name in (*PATHS, *DESCRIPTORS, "open", "close", "rename", "replace", "link")
}
REAL_OPEN = builtins.open
REAL_FLOCK = fcntl.flock


@dataclass(frozen=True)
class Call:
    """One call about to be made: its name, the path, and the second path or the bytes."""

    name: str
    path: str
    more: object = None

    def __str__(self):
        return f"{self.name}({self.path})"


class Interposer:
    """See the module. Also usable for several roots, one after the other."""

    def __init__(self, root, before=None, after=None):
        self.root = os.path.realpath(root)
        self._before = before or (lambda call: None)
        self._after = after or (lambda call: None)
        self._paths = {}

    def __enter__(self):
        for name in PATHS:
            setattr(os, name, self._by_path(name))
        for name in DESCRIPTORS:
            setattr(os, name, self._by_descriptor(name))
        for name in ("rename", "replace", "link"):
            setattr(os, name, self._two_paths(name))
        os.open, os.close = self._open, self._close
        builtins.open = self._open_file
        fcntl.flock = self._flock
        return self

    def __exit__(self, *_):
        for name, function in REAL.items():
            setattr(os, name, function)
        builtins.open = REAL_OPEN
        fcntl.flock = REAL_FLOCK

    def _made(self, name, path, more, make):
        """Make the call, announced to both, unless it concerns somebody else."""
        if path is None or not (path == self.root or path.startswith(self.root + os.sep)):
            return make()
        call = Call(name, path, more)
        self._before(call)
        done = make()
        self._after(call)
        return done

    def _path(self, path, dir_fd=None):
        if isinstance(path, int):
            return self._paths.get(path)
        path = os.fspath(path)
        if isinstance(path, bytes):
            return None
        if dir_fd is not None:
            parent = self._paths.get(dir_fd)
            return os.path.join(parent, path) if parent else None
        return os.path.normpath(path)

    def _by_path(self, name):
        def call(path=".", *args, dir_fd=None, **options):
            if dir_fd is not None:
                options["dir_fd"] = dir_fd
            return self._made(
                name, self._path(path, dir_fd), None, lambda: REAL[name](path, *args, **options)
            )

        return call

    def _by_descriptor(self, name):
        def call(descriptor, *args):
            more = bytes(args[0]) if name == "write" else None
            path = self._paths.get(descriptor)
            return self._made(name, path, more, lambda: REAL[name](descriptor, *args))

        return call

    def _two_paths(self, name):
        def call(source, target, **options):
            old, new = self._path(source), self._path(target)
            self._made(name, old, new, lambda: REAL[name](source, target, **options))
            if name != "link":  # open files go with their names
                self._paths = {d: new if path == old else path for d, path in self._paths.items()}

        return call

    def _open(self, path, flags, mode=0o777, *, dir_fd=None):
        where = self._path(path, dir_fd)
        name = "create" if flags & os.O_CREAT and not _exists(path) else "open"
        descriptor = self._made(name, where, flags, lambda: REAL["open"](path, flags, mode, dir_fd=dir_fd))
        if where is not None:
            self._paths[descriptor] = where
        return descriptor

    def _close(self, descriptor):
        self._paths.pop(descriptor, None)
        REAL["close"](descriptor)

    def _flock(self, descriptor, operation):
        path = self._paths.get(descriptor)
        return self._made("flock", path, operation, lambda: REAL_FLOCK(descriptor, operation))

    def _open_file(self, file, mode="r", *args, **options):
        path = self._path(file)
        if path is None:
            return REAL_OPEN(file, mode, *args, **options)
        if isinstance(file, int):
            opened = REAL_OPEN(file, mode, *args, **options)
            self._paths.pop(file, None)  # the file object closes it
        else:
            name = "create" if set(mode) & set("wax") else "open"
            opened = self._made(name, path, mode, lambda: REAL_OPEN(file, mode, *args, **options))
        return _File(self, opened, path)


def _exists(path):
    try:
        REAL["lstat"](path)
    except OSError:
        return False
    return True


class _File:
    """An open file whose reading and writing is announced."""

    def __init__(self, interposer, file, path):
        self._interposer, self._file, self._path = interposer, file, path

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __iter__(self):
        return iter(self._file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def read(self, *args):
        return self._interposer._made("read", self._path, None, lambda: self._file.read(*args))

    def readline(self, *args):
        return self._interposer._made("read", self._path, None, lambda: self._file.readline(*args))

    def write(self, data):
        def make():
            written = self._file.write(data)
            self._file.flush()
            return written

        return self._interposer._made("write", self._path, bytes(data), make)
