"""The what-if page: whole by itself, and nothing from a log becomes markup."""

import re
from html.parser import HTMLParser
from itertools import pairwise

from app.marks import time_text
from app.whatif_document import whatif_document
from app.whatif_page import whatif_page
from projections.bounds import SECOND_US
from projections.events.picks import PickMade
from replay.alternative import Alternative
from replay.log_walk import record_at, records_of
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_whatif import SAME, TURNS, asked, busy

HOSTILE = "<script>alert(1)</script>"
VOID = {"meta", "line", "rect", "circle", "path"}


class Balanced(HTMLParser):
    """Fails where tags do not close in order; notes what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag not in VOID or tag in ("rect", "path", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(world: RecordedLog, *alternatives: Alternative, title: str = "Under x") -> str:
    found = asked(world, *alternatives)
    return whatif_page(found, whatif_document(found, time_text), title, "some/data")


def test_the_page_is_well_formed_and_fetches_nothing() -> None:
    page = page_of(busy(), TURNS)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == [] and parser.fetched == []
    assert "<script" not in page and not re.search(r"url\(|@import|https?://", page)
    assert page.count("<svg") >= 4


def test_what_comes_from_a_log_is_escaped() -> None:
    world = RecordedLog()
    world.sample(1, 900)
    replica = world.replica()
    for _ in range(4):
        replica.ask(HOSTILE)
        replica.read()
    page = page_of(world, TURNS, title=HOSTILE)
    assert HOSTILE not in page and page.count("&lt;script&gt;") > 1


def test_a_sweep_of_one_setting_is_a_line_and_of_two_a_grid() -> None:
    one = [TURNS._replace(labels=(("picker", text),)) for text in ("a", "b")]
    assert "The sweep" in page_of(busy(), *one) and "largest share" in page_of(busy(), *one)
    two = [
        SAME._replace(labels=(("picker", first), ("max_staleness", second)))
        for first in "ab"
        for second in "xy"
    ]
    page = page_of(busy(), *two)
    assert page.count('class="shade"') == 4 and "max_staleness x" in page


def test_a_range_without_picks_is_a_page_too() -> None:
    page = page_of(RecordedLog(), TURNS)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == [] and "No pick moves." in page


def test_times_are_those_of_the_picks_and_gaps_are_as_wide_as_they_lasted() -> None:
    world = RecordedLog()
    replica = world.replica()
    for wait_s in (0, 1, 40, 1):
        world.pass_time(wait_s * SECOND_US)
        world.sample(1, 900)
        world.sample(2, 100)
        replica.read()
        replica.ask(f"after-{wait_s}", tokens=16)
    found = asked(world, TURNS)
    document = whatif_document(found, str)
    first, last = (int(at) for at in document["span"])
    assert last - first == 42 * SECOND_US
    records = [record_at(offset, data) for offset, data in records_of(world.log, 0)]
    times = [r.fact.question.asked_at for r in records if r is not None and isinstance(r.fact, PickMade)]
    assert (first, last) == (times[0], times[-1])
    page = whatif_page(found, document, "t", "log")
    assert f"log · {first} to {last}" in page
    assert "Stretches without a pick are drawn as 0." in page
    path = re.search(r'class="area" d="([^"]+)"', page)
    assert path is not None
    places = sorted({float(x) for x in re.findall(r"[ML]([0-9.]+),", path[1])})
    widths = [after - before for before, after in pairwise(places)]
    assert max(widths) > 30 * min(widths)


def test_a_model_that_no_worker_serves_has_no_spread() -> None:
    world = busy()
    replica = world.replica()
    replica.read()
    replica.ask("typo", tokens=16, model="nope")
    found = asked(world, TURNS)
    document = whatif_document(found, str)
    assert "nope" in document["by_model"] and "nope" not in document["spread"]
    page = whatif_page(found, document, "t", "log")
    assert "<td>nope</td>" in page and "<b>nope</b>" not in page
