"""The style sheet loads nothing and knows both themes."""

import re

from app.page_style import STYLE


def test_it_loads_nothing_and_has_a_dark_theme_and_balanced_braces() -> None:
    assert not re.search(r"url\(|@import|https?:", STYLE)
    assert "prefers-color-scheme:dark" in STYLE
    assert STYLE.count("{") == STYLE.count("}")


def test_every_colour_that_is_used_is_defined_in_both_themes() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme:dark)", 1)
    for name in set(re.findall(r"var\((--[a-z]+)\)", STYLE)):
        assert f"{name}:" in light and f"{name}:" in dark.split("}}", 1)[0]
