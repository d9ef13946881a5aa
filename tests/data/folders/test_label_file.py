"""Tests of labels in a CSV file: with or without a header, by name or by path, and tables that are refused."""

import pytest

from eblvm_lit.data.folders.label_file import labels_of
from eblvm_lit.errors import DataError


def read(tmp_path, text, *names):
    table = tmp_path / "labels.csv"
    table.write_bytes(text.encode())
    return labels_of(table, [tmp_path / name for name in names])


@pytest.mark.parametrize(
    "text",
    [
        "a.png,cat\nx/b.png,dog\nz.png,eel\n",
        "file,label\nx/b.png,dog\na.png,cat\n",
        "image,kind\r\na.png, cat\r\nb.png,dog\r\n\r\n",
        "\ufeffa.png,cat\nb.png,dog\n",
        "a.png,cat \n b.png ,dog\n",
    ],
)
def test_rows_name_images_with_and_without_a_header(text, tmp_path):
    assert read(tmp_path, text, "x/b.png", "a.png") == ["dog", "cat"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a.png,cat\n", "no label for b.png: "),
        ("file,label\n", "no label for a.png: "),
        ("", "no label for a.png"),
        ("a.png,cat\nb.png,dog\na.png,dog\n", "two labels for a.png, cat and dog"),
        ("file,split,label\na.png,train,cat\nb.png,test,dog\n", "each row is file,label, without other columns"),
        ("a.png;cat\nb.png;dog\n", "no label for a.png: add a row file,label"),
    ],
)
def test_tables_that_do_not_fit_are_refused(text, sentence, tmp_path):
    with pytest.raises(DataError, match=sentence):
        read(tmp_path, text, "a.png", "x/b.png")


def test_a_name_in_two_folders_needs_its_path(tmp_path):
    with pytest.raises(DataError, match=r"no label for a\.png"):
        read(tmp_path, "a.png,cat\n", "x/a.png", "y/a.png")
    assert read(tmp_path, "x/a.png,cat\ny/a.png,dog\nz.png,dog\n", "x/a.png", "y/a.png") == ["cat", "dog"]
