"""Errors say what was given, what was expected, and what to type instead."""

from __future__ import annotations

import pytest

from skipway.errors import (
    MissingPackageError,
    ModelRunError,
    ShapeMismatchError,
    SkipwayError,
    UnknownNameError,
    suggest,
)


def test_three_lines() -> None:
    error = SkipwayError("a branch of width 3", "width 4", "nn.Linear(3, 4)")
    assert str(error) == "a branch of width 3\nexpected: width 4\ntry: nn.Linear(3, 4)"
    assert (error.given, error.expected, error.hint) == ("a branch of width 3", "width 4", "nn.Linear(3, 4)")


def test_lines_without_content_are_left_out() -> None:
    assert str(SkipwayError("no", hint="yes")) == "no\ntry: yes"


def test_users_may_catch_value_error() -> None:
    for kind in (SkipwayError, ShapeMismatchError, ModelRunError):
        assert issubclass(kind, ValueError)


def test_unknown_name_suggests_the_nearest() -> None:
    error = UnknownNameError("design", "preactt", ["preact", "post_act", "plain"])
    assert str(error) == "unknown design 'preactt'\nexpected: did you mean 'preact'?"


def test_unknown_name_far_from_all_lists_them() -> None:
    error = UnknownNameError("design", "zzz", ["preact", "plain"])
    assert str(error) == "unknown design 'zzz'\nexpected: one of: plain, preact"


def test_a_long_list_is_cut_and_counted() -> None:
    error = UnknownNameError("model", "zzz", [f"resnet{i:02d}" for i in range(30)])
    assert str(error).endswith("resnet11, … (30 in all)")


def test_missing_package_says_what_to_type() -> None:
    assert str(MissingPackageError("timm", "a model named timm:…", "timm")) == (
        "a model named timm:… needs the package 'timm', which is not installed\ntry: pip install 'skipway[timm]'"
    )
    assert str(MissingPackageError("rich", "a table")).endswith("try: pip install rich")


@pytest.mark.parametrize(("typed", "meant"), [("RESNET50", "resnet50"), ("resnt50", "resnet50"), ("q", None)])
def test_suggestions(typed: str, meant: str | None) -> None:
    assert suggest(typed, ["resnet50", "vgg16"])[:1] == ([meant] if meant else [])
