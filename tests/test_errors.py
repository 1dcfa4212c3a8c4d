"""Names and texts of users in messages."""

import pytest

from pfl_ops.errors import PflOpsError, check_name, echo, escaped, in_a_line, nearest, unknown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain η 🦊", "plain η 🦊"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202e\ud800", "\\u202e\\ud800"),
        ("a" * 60, "a" * 60),
        ("a" * 61, "a" * 57 + "..."),
    ],
)
def test_echo_escapes_and_cuts(text: str, shown: str) -> None:
    assert echo(text) == shown and shown.isprintable()
    assert escaped(shown) == shown


def test_nearest_is_blind_to_case() -> None:
    assert nearest("FEDAVG", ["fliu", "fedavg"]) == "fedavg"
    assert nearest("vgg", ["VGG11"]) == "VGG11"
    assert nearest("x" * 10**6, ["fedavg"]) is None


def test_unknown_lists_no_more_than_40_names() -> None:
    message = str(unknown("thing", "?" * 100, [f"n{i:03d}" for i in range(99)]))
    assert message.startswith(f"no thing named '{'?' * 57}...'. Known: n000,") and message.endswith("n039, ....")
    assert str(unknown("thing", "x", [])) == "no thing named 'x'. There is none."


@pytest.mark.parametrize("name", ["a", "a.b-c_d", "9lives", "ñandú", "a" * 100])
def test_names_that_files_can_have(name: str) -> None:
    assert check_name("study", name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "a\n", "a\x00", "a" * 101, "🦊", None, 3]
)
def test_names_that_no_file_should_have(name: str) -> None:
    with pytest.raises(PflOpsError, match="the name of a study has at most 100 letters"):
        check_name("study", name)


def test_names_of_what_begins_with_a_vowel() -> None:
    with pytest.raises(PflOpsError, match=r"^the name of an algorithm has"):
        check_name("algorithm", "a/b")


def test_an_error_that_can_not_print_itself_is_a_line() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert in_a_line(Silent()) == "Silent: (its message can't be printed)"
    assert in_a_line(KeyError()) == "KeyError"
    assert in_a_line(ValueError("a\n\x1bb")) == "ValueError: a \\x1bb"
