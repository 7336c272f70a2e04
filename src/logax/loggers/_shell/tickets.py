"""Where the records of a run come from: calls of `tap` and `spool`, and blocks of `live`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from logax._delivery.direct import deliver_soon
from logax._delivery.packets import Owner, Parcel
from logax._delivery.routes import Batch
from logax._harvest.tap import Ticket
from logax.loggers._shell.inbox import Inbox
from logax.loggers._shell.own_steps import with_own_steps


class LogdictRoute:
    """To a run, for records that were a logdict before they left the program.

    Such records may lack steps of their keys.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox, self.check = inbox, inbox.check

    def take(self, parcel: Parcel) -> None:
        """Take in a parcel that is of no call, on whatever thread of XLA's."""
        deliver_soon(parcel, self)

    def deliver(self, batch: Batch) -> None:
        """Take in a batch."""
        self._inbox.deliver(with_own_steps(batch))


@dataclasses.dataclass(frozen=True, eq=False)
class RunTicket(Ticket):
    """Numbers for calls whose records are a run's."""

    route: Inbox | LogdictRoute
    owner: Any

    def check(self) -> None:
        self.route.check()

    def take(self, parcel: Parcel) -> None:
        """Take in what is of no call."""
        self.route.take(parcel)


class LiveRoute:
    """To a run, with nothing wrapped that could say whose the records are."""

    def __init__(self, inbox: Inbox, number: Any) -> None:
        self._inbox, self._owner = inbox, Owner(np.asarray(number))

    def deliver(self, batch: Batch) -> None:
        self._inbox.deliver(batch._replace(owner=self._owner))


class LiveTarget:
    """A run that is open, as `live` takes it."""

    def __init__(self, inbox: Inbox, number: Any) -> None:
        self._inbox, self._number = inbox, number

    @contextlib.contextmanager
    def streamed_live(self) -> Iterator[LiveRoute]:
        """Where records go for the length of the block."""
        yield LiveRoute(self._inbox, self._number)
