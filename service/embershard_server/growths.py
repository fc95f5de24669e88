"""Tables that grow while calls are answered: most of the work is done before, some rows a tick."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from embershard.engine.beside import Rest, beside, let_go, rest_s, without_frames
from embershard.engine.growth import Growing, Growth, check_room
from embershard.errors import Overloaded
from embershard.store.agreement import everywhere, meeting
from embershard_server.joint import Joint, shielded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from embershard.engine.replica import Outcome, Replica
    from embershard.engine.tick import Action, Ticker


class Growths:
    """What the engine's thread does about it (`actions`, all joint), and what a caller asks for."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._world = replica, replica.engine.world

    def serve(self, ticker: Ticker) -> None:
        """Before it ticks."""
        self.joint = Joint(ticker)

    @property
    def actions(self) -> dict[str, Action]:
        """What all ranks do together."""
        return {"grow": self._begin, "grow_on": self._go_on, "grow_end": self._end}

    async def grow(self, growth: Growth, apply: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Makes a growth ready, and then has its entry applied, which serves it.

        Raises:
            InvalidInput: the table can't grow so.
            Overloaded: there is no memory for it, or a table is growing already.
        """
        return await self.joint.to_its_end(self._grow(growth, apply))

    async def _grow(self, growth: Growth, apply: Callable[[], Awaitable[Outcome]]) -> Outcome:
        seeded: Future[Any] = await self.joint.act("grow", growth)
        try:
            await shielded(seeded)
            copied_s: float
            while copied_s := await self.joint.act("grow_on"):
                await asyncio.sleep(rest_s(copied_s))
            return await apply()
        finally:
            await self.joint.act("grow_end")

    def _begin(self, growth: Growth) -> Future[Any]:
        """Joint: makes room for more rows, and begins to seed them."""
        if self._replica.growing:
            raise Overloaded(f"table {growth.table!r} can't grow now, as one is growing; try again once it has")
        check_room(self._replica.engine, growth)
        growing = Growing(self._replica.engine, {growth.table: growth.rows})
        self._replica.growing = growing
        if not growing.engine.made_beside:
            growing.make()
        seeded: Future[Any] = Future()
        meet = meeting(self._world, f"growing/{growth.table}/{growth.rows}")

        def seed() -> None:
            rest = Rest()
            try:
                with everywhere(meet, f"table {growth.table!r} can't grow", Overloaded):
                    if growing.engine.made_beside:
                        growing.make()
                    growing.seed(lambda _: rest())
            except Exception as error:
                seeded.set_exception(without_frames(error))
            else:
                seeded.set_result(None)

        beside("growing", seed)
        return seeded

    def _go_on(self, _: Any) -> float:
        """Joint: copies some rows; returns how long that took, in seconds, 0 once all were copied."""
        start = time.perf_counter()
        copied = self._replica.growing is not None and self._replica.growing.copy()
        return (time.perf_counter() - start) * copied

    def _end(self, _: Any) -> None:
        """Joint: whatever has become of it."""
        ended, self._replica.growing = [self._replica.growing], None
        if ended[0]:
            ended[0].drop()
            let_go(ended)
