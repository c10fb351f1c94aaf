"""Ctrl-C, SIGTERM and a closed terminal: a polite stop first, an immediate end the second time."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Truthy once the run has been asked to stop.

    Python runs signal handlers in the main thread only after a call into XLA has returned, which can take minutes.
    So the signals' numbers arrive through a socket in a thread of their own, which can answer at once.
    """

    def __init__(self, on_stop: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self.elsewhere: int | None = None  # what another process of the same run was sent
        self._on_stop = on_stop
        self._previous: dict[int, Any] = {}
        self._wakeup = -1
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def __bool__(self) -> bool:
        return self.signal is not None or self.elsewhere is not None

    @property
    def exit_code(self) -> int:
        """What shells expect of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM, 129; else 0."""
        number = self.signal or self.elsewhere
        return 128 + number if number else 0

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask for a stop; the second time end the process at once, without saving."""
        if self.signal is not None:
            sys.stdout.write("\x1b[?25h\n" if sys.stdout.isatty() else "")  # a live display may have hidden the cursor
            sys.stdout.flush()
            os._exit(128 + number)
        self.signal = number
        self._on_stop()

    def __enter__(self) -> Stop:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals belong to the main thread; an embedding program calls `request`
        reader, writer = self._sockets = socket.socketpair()
        writer.setblocking(False)
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                self._previous[number] = signal.signal(number, lambda *_: None)
        self._wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reader,), name="qdhuac-signals", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sockets is None:
            return
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._sockets[1].close()  # the listener's recv returns empty, and it ends

    def _listen(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(16):
                for number in numbers:
                    if number == signal.SIGHUP:
                        _leave_terminal()
                    if number in SIGNALS:
                        self.request(number)


def _leave_terminal() -> None:
    """Whatever is said from here on goes nowhere: writing to a terminal that has been closed is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        if stat.S_ISCHR(os.fstat(number).st_mode):
            os.dup2(nowhere, number)
    os.close(nowhere)
