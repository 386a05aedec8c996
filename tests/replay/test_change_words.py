"""Changes read as sentences, one a change; what happened to many at once is told once."""

from projections.events.discovery import KeyDeleted, Keyspace
from replay.change_words import words_of
from replay.changes import changes_between
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_changes import eventful, found_in


def at(us: int) -> str:
    return f"T{us}"


def test_every_change_has_its_sentence() -> None:
    world, start = eventful()
    words = words_of(found_in(world, start), at)
    told = "\n".join(words)
    for sentence in (
        "worker dynamo/4 (aggregated, model tiny) joined at T2000000 (offset ",
        "worker dynamo/3 (aggregated, model tiny) left at T2000000 (offset ",
        "settings version 2 by admin at T2000000",
        "dynamo.load.max_staleness null -> 1s",
        "was silent for 30 s and counts as gone",
        "1 rank became silent (before: fresh): dynamo/1 rank 0",
        "1 rank reports other blocks in use, most of all dynamo/2 rank 0 20 -> 500",
        "1 pick was made",
        "1 dispatch ended: 1 ok",
    ):
        assert sentence in told


def test_no_change_is_said_in_words() -> None:
    world, start = eventful()
    assert words_of(changes_between(world.log, None, start, start), at) == ["nothing changed"]


def test_many_workers_that_leave_at_once_are_one_sentence() -> None:
    world = RecordedLog(workers=6)
    start = world.log.end_offset() - 1
    for number in range(1, 7):
        world.say(KeyDeleted(Keyspace.INSTANCES, "dynamo", f"backend/generate/{number}", 99))
    [sentence] = words_of(found_in(world, start), at)
    assert sentence.startswith("6 workers left at T1000000 (offset ")
    assert sentence.endswith("dynamo/3 (aggregated, model tiny) and 3 more")
