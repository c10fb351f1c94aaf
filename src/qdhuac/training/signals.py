"""Ctrl-C, SIGTERM and a closed terminal. The first signal asks the run to save and stop, the second ends it at once."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
T = TypeVar("T")
PATIENCE = 5.0  # seconds that code of the user's has to notice a signal


class Stopped(BaseException):
    """Raised in code of the user's at a signal."""


class Stop:
    """True once the run has been asked to stop. A `with` block catches the signals.

    Python runs signal handlers only after a call into XLA has returned, which can take minutes. Therefore a thread
    reads the numbers of the signals from a socket and can answer at once.
    """

    def __init__(self, on_stop: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self.elsewhere: int | None = None  # the signal that another process of the run received
        self._on_stop = on_stop
        self._previous: dict[int, Any] = {}
        self._wakeup = -1
        self._writer: socket.socket | None = None
        self._rescue: Callable[[], None] | None = None
        self._leaving, self._heard = threading.Lock(), threading.Event()

    def __bool__(self) -> bool:
        return self.signal is not None or self.elsewhere is not None

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as shells expect; 0 without a signal."""
        number = self.signal or self.elsewhere
        return 128 + number if number else 0

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask the run to save and stop. A second call ends the process without saving."""
        if self.signal is not None:
            sys.stdout.write("\x1b[?25h\n" if sys.stdout.isatty() else "")  # show the cursor again
            sys.stdout.flush()
            os._exit(128 + number)
        self.signal = number
        self._on_stop()
        self._heard.set()
        if self._rescue is not None:
            threading.Timer(PATIENCE, self._give_up).start()

    def interruptible(self, call: Callable[[], T], rescue: Callable[[], None]) -> T | None:
        """The result of `call`, code of the user's that may never return; None if a signal has ended it.

        If it goes on all the same, since Python runs no handler while other code hangs, `rescue` is called in another
        thread and the process ends.
        """
        try:
            self._rescue = rescue
            try:
                return None if self else call()
            finally:
                self._rescue = None
        except Stopped:
            self._heard.wait()  # the other thread may be later than the handler
            return None
        finally:
            with self._leaving:  # not while the rescue is at work
                pass

    def _give_up(self) -> None:
        with self._leaving:
            if self._rescue is not None:
                try:
                    self._rescue()
                finally:
                    os._exit(self.exit_code)

    def _interrupt(self, *_: object) -> None:
        if self._rescue is not None:
            raise Stopped

    def __enter__(self) -> Stop:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread can catch signals; others call `request`
        reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._previous[number] = signal.signal(number, self._interrupt)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reader,), name="qdhuac-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._writer.close()  # ends the thread

    def _listen(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(16):
                for number in numbers:
                    if number == signal.SIGHUP:
                        _leave_terminal()
                    if number in SIGNALS:
                        self.request(number)


def _leave_terminal() -> None:
    """Redirect output to /dev/null: the terminal is closed, and writing to it is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        if stat.S_ISCHR(os.fstat(number).st_mode):
            os.dup2(nowhere, number)
    os.close(nowhere)
