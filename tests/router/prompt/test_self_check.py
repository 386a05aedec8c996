"""The match ratio of predicted blocks, and when it is trusted."""

from router.prompt.self_check import CHECKS_KEPT, CHECKS_MIN, MODELS_MAX, SelfCheck


def checked(check: SelfCheck, model: str, times: int, predicted: int, held: int) -> None:
    for _ in range(times):
        check.note(model, predicted, held)


def test_a_model_is_trusted_until_enough_checks_speak_against_it() -> None:
    check = SelfCheck(0.5)
    assert check.is_trusted("m") and check.ratio("m") is None
    checked(check, "m", CHECKS_MIN - 1, 10, 0)
    assert check.is_trusted("m") and check.ratio("m") is None
    check.note("m", 10, 0)
    assert not check.is_trusted("m") and check.ratio("m") == 0.0
    assert check.is_trusted("other")


def test_the_ratio_is_of_blocks_not_of_requests() -> None:
    check = SelfCheck(0.5)
    checked(check, "m", CHECKS_MIN, 1, 0)
    checked(check, "m", CHECKS_MIN, 99, 99)
    assert check.ratio("m") == 0.99 and check.is_trusted("m")


def test_a_mended_model_comes_back_by_itself() -> None:
    check = SelfCheck(0.5)
    checked(check, "m", CHECKS_KEPT, 10, 0)
    assert not check.is_trusted("m")
    checked(check, "m", CHECKS_KEPT // 2, 10, 10)
    assert check.is_trusted("m") and check.ratio("m") == 0.5
    checked(check, "m", CHECKS_KEPT // 2, 10, 10)
    assert check.ratio("m") == 1.0


def test_other_files_begin_anew() -> None:
    check = SelfCheck(0.5)
    checked(check, "m", CHECKS_MIN, 10, 0)
    check.forget("m")
    check.forget("never seen")
    assert check.is_trusted("m") and check.states() == []


def test_a_least_ratio_of_nothing_trusts_every_model() -> None:
    check = SelfCheck(0.0)
    checked(check, "m", CHECKS_MIN, 10, 0)
    assert check.is_trusted("m")


def test_models_are_bounded_and_told_by_name() -> None:
    check = SelfCheck(0.5)
    for number in range(MODELS_MAX + 10):
        check.note(f"m{number:04}", 2, 1)
    states = check.states()
    assert len(states) == MODELS_MAX and states == sorted(states)
    assert states[0].model == "m0010" and states[0][1:] == (1, 2, 1, None, True)
