"""What one rank was charged with, as sums over time that a question can cut anywhere.

A question asks for the charges that were dispatched after an instant (the worker's last
sample, or 30 s before the question, whichever is later). Charges are kept in order of
their dispatch beside running totals, so the answer is one bisection and a subtraction,
however many dispatches are open. A charge that arrives late shifts the totals behind it:
that costs as much as there are later charges, which is few.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Charges:
    """Charges of one rank in order of dispatch.

    times: dispatched_at of each charge. tokens, blocks: totals before each charge and
    after the last, so one longer than `times`; only differences mean anything.
    """

    __slots__ = ("blocks", "times", "tokens")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.tokens: list[int] = [0]
        self.blocks: list[int] = [0]

    def add(self, dispatched_at: int, tokens: int, blocks: int) -> None:
        """Charge a dispatch."""
        times = self.times
        place = bisect_right(times, dispatched_at)
        times.insert(place, dispatched_at)
        self._insert(self.tokens, place, tokens)
        self._insert(self.blocks, place, blocks)

    def remove(self, dispatched_at: int, tokens: int, blocks: int) -> None:
        """Take back a charge that was added with these very numbers."""
        times = self.times
        place = bisect_left(times, dispatched_at)
        while self._at(place) != (tokens, blocks):  # equal charges of one instant are alike
            place += 1
        del times[place]
        self._delete(self.tokens, place, tokens)
        self._delete(self.blocks, place, blocks)

    def after(self, instant: int) -> tuple[int, int]:
        """(tokens, blocks) of all charges dispatched later than `instant`."""
        times, tokens, blocks = self.times, self.tokens, self.blocks
        place = bisect_right(times, instant) if times and times[0] <= instant else 0
        return tokens[-1] - tokens[place], blocks[-1] - blocks[place]

    def _at(self, place: int) -> tuple[int, int]:
        return self.tokens[place + 1] - self.tokens[place], self.blocks[place + 1] - self.blocks[place]

    @staticmethod
    def _insert(totals: list[int], place: int, amount: int) -> None:
        totals.insert(place + 1, totals[place] + amount)
        if amount:
            for later in range(place + 2, len(totals)):
                totals[later] += amount

    @staticmethod
    def _delete(totals: list[int], place: int, amount: int) -> None:
        if place == 0:  # the usual end of a charge; the base moves up
            del totals[0]
            return
        del totals[place + 1]
        if amount:
            for later in range(place + 1, len(totals)):
                totals[later] -= amount
