"""Changes read as sentences, one a change; what happened to many at once is told once."""

from projections.bounds import SECOND_US
from projections.events.control import FoldModeAdopted
from projections.events.discovery import KeyDeleted, Keyspace
from replay.change_words import words_of
from replay.changes import changes_between
from tests.projections.kv.kv_script import batch_of, stored
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


def test_ranks_that_lost_their_blocks_are_told_with_the_reason() -> None:
    world = RecordedLog()
    world.say(FoldModeAdopted((1,)))
    for worker in (1, 2, 3):
        world.say(batch_of(stored(1, "a", "b", worker=worker), publisher_id=70 + worker))
    start = world.log.end_offset() - 1
    world.pass_time(SECOND_US)
    world.say(batch_of(stored(9, "c"), publisher_id=71))
    world.say(FoldModeAdopted(()))
    words = words_of(found_in(world, start), at)
    assert words[0].startswith("rank dynamo/1#0 lost 2 blocks by a gap at T2000000 (offset ")
    assert words[1].startswith("3 ranks lost their blocks, each as the index was switched off at T2000000")
    assert words[1].endswith("dynamo/1#0, dynamo/2#0, dynamo/3#0")
    assert words[2] == (
        "3 ranks hold other numbers of blocks, "
        "most of all dynamo/1#0 2 -> 0, dynamo/2#0 2 -> 0, dynamo/3#0 2 -> 0"
    )
    one = words_of(changes_between(world.log, None, start, start + 1), at)
    assert one[1] == "1 rank holds other numbers of blocks, most of all dynamo/1#0 2 -> 1"
