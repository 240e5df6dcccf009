import csv
import io
import json
import math
import os
from pathlib import Path

import pytest

from sightline.errors import SightlineError
from sightline.output import RecordWriter, flatten, output_format, record_writer

RECORDS = [
    {"input": "a.png", "label": "é", "scores": {"é": 0.75, "b": 0.25}},
    {"input": 'b,"c".png', "error": "cannot be read"},
]


def written(format, records=RECORDS, columns=None, **options):
    stream = io.StringIO()
    writer = RecordWriter(stream, format, columns, **options)
    for record in records:
        writer.write(record, f"text of {record['input']}")
    writer.close()
    return stream.getvalue()


def test_text_is_one_line_per_record():
    assert written("text") == 'text of a.png\ntext of b,"c".png\n'


def test_json_is_one_array():
    assert json.loads(written("json")) == RECORDS
    assert json.loads(written("json", [])) == []


def test_json_lines_are_one_object_per_line():
    assert [json.loads(line) for line in written("jsonl").splitlines()] == RECORDS


def test_csv_has_a_column_for_every_key_and_keeps_order():
    columns = ["input", "label", "scores.b", "scores.é", "error"]
    rows = list(csv.DictReader(io.StringIO(written("csv", columns=columns))))
    assert rows == [
        {"input": "a.png", "label": "é", "scores.b": "0.25", "scores.é": "0.75", "error": ""},
        {"input": 'b,"c".png', "label": "", "scores.b": "", "scores.é": "", "error": "cannot be read"},
    ]
    assert written("csv", [], columns) == "input,label,scores.b,scores.é,error\n"


def test_csv_columns_follow_from_the_first_record_and_lists_are_json():
    assert written("csv", [{"input": "x", "interval": (0.1, 0.2)}]) == 'input,interval\nx,"[0.1, 0.2]"\n'


@pytest.mark.parametrize("char", ["\x1b", "\x9b", "\r", "\udcff"])
def test_control_characters_are_escaped_in_json_and_replaced_elsewhere(char):
    records = [{"input": f"a{char}b", "list": [char]}]
    for format in ("json", "jsonl"):
        assert char not in written(format, records)
    assert json.loads(written("json", records)) == records
    assert written("text", records) == "text of a\ufffdb\n"
    assert char not in written("csv", records, [f"{char}", "input", "list"])
    assert written("csv", records).splitlines()[1].startswith("a\ufffdb,")


def test_numbers_that_json_cannot_represent_are_null():
    records = [{"input": "x", "loss": math.nan, "interval": (1.0, math.inf), "scores": {"a": -math.inf}}]
    [record] = json.loads(written("json", records), parse_constant=pytest.fail)
    assert record == {"input": "x", "loss": None, "interval": [1.0, None], "scores": {"a": None}}


def test_csv_keeps_tabs_newlines_and_other_scripts():
    records = [{"input": "a\tb\nc\u3000猫"}]
    [row] = csv.DictReader(io.StringIO(written("csv", records)))
    assert row == records[0]


def test_format_is_that_of_the_ending_unless_it_is_given():
    assert [output_format(None, Path(f"a.b/x{ending}")) for ending in (".csv", ".JSONL", ".json", ".txt", "")] == [
        *("csv", "jsonl", "json", "text", "text")
    ]
    assert output_format(None, None) == "text"
    assert output_format("json", Path("x.csv")) == "json"


def test_unknown_format_is_refused():
    with pytest.raises(SightlineError, match="format must be one of csv, json, jsonl, text, got 'jsno'; did you mean"):
        RecordWriter(io.StringIO(), "jsno")


def test_flatten_joins_nested_keys_by_dots():
    assert flatten({"a": {"b": {"c": 1}, "d": 2}, "e": [3]}) == {"a.b.c": 1, "a.d": 2, "e": [3]}


def test_a_failed_write_leaves_no_file(tmp_path):
    path = tmp_path / "out.json"
    with pytest.raises(TypeError, match="not JSON serializable"), record_writer(path, "json") as writer:
        writer.write({"a": object()}, "")
    assert not list(tmp_path.iterdir())
    with record_writer(path, "json") as writer:
        writer.write({"a": 1}, "")
    assert json.loads(path.read_text()) == [{"a": 1}]


def test_csv_columns_of_records_with_errors_follow_from_the_first_one_without():
    first_error = [RECORDS[1], RECORDS[0]]
    assert written("csv", first_error, with_errors=True) == (
        'input,label,scores.é,scores.b,error\n"b,""c"".png",,,,cannot be read\na.png,é,0.75,0.25,\n'
    )
    assert written("csv", RECORDS[1:], with_errors=True) == 'input,error\n"b,""c"".png",cannot be read\n'


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with record_writer(pipe, "jsonl") as writer:
        writer.write({"a": 1}, "")
    assert os.read(reader, 100) == b'{"a": 1}\n'
    os.close(reader)
    assert pipe.is_fifo()
