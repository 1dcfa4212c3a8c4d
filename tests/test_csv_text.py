"""CSV that a spreadsheet shows and never runs."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from pfl_ops.csv_text import inert, rows_to_csv, to_csv

FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=HYPERLINK(0)", "-", "- a", "-0x1"]
PLAIN = ["-1", "+1", "-0.5", "-1e-05", "-.5", "-inf", "nan", "fliu", "a=b", "", "1-2", "'quoted"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_would_run_gets_a_quote(text: str) -> None:
    assert inert(text) == "'" + text.replace("\r", "\n")


@pytest.mark.parametrize("value", [*PLAIN, -1, -0.5, None, True])
def test_numbers_and_other_texts_stay(value: object) -> None:
    assert inert(value) is value or inert(value) == value


def test_a_table_keeps_its_numbers_and_quotes_texts_and_headings() -> None:
    table = pd.DataFrame(
        {
            "=name": ["=1+1", "a\r=2+2", None],
            "difference": [-0.1, np.nan, 1 / 3],
            "n": [-1, 2, 3],
            "mixed": [-1, "@x", -0.25],
            "lr": ["-0.1", "1e-3", "-"],
        },
        index=[5, 5, 7],
    )
    rows = list(csv.reader(io.StringIO(to_csv(table), newline="")))
    assert rows == [
        ["'=name", "difference", "n", "mixed", "lr"],
        ["'=1+1", "-0.1", "-1", "-1", "-0.1"],
        ["a\n=2+2", "", "2", "'@x", "1e-3"],
        ["", repr(1 / 3), "3", "-0.25", "'-"],
    ]
    assert "\r" not in to_csv(table)


def test_two_columns_of_one_name_and_no_rows() -> None:
    assert to_csv(pd.DataFrame([["=a", -1]], columns=["x", "x"])) == "x,x\n'=a,-1\n"
    assert to_csv(pd.DataFrame({"x": []})) == "x\n"


def test_rows_are_quoted_too() -> None:
    assert rows_to_csv([["name", "=x"], ["-1", -1, "@y"]]) == "name,'=x\n-1,-1,'@y\n"
