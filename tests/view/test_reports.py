"""Report pages."""

import re

import numpy as np
import pytest

from sightline.view.reports import Report, ReportImage, ticks


def test_a_report_has_all_sections_and_no_script():
    report = Report("A title", "a subtitle")
    report.add_figures([("accuracy", "93.1%", "95% interval 90% to 95%")])
    report.add_table("Table", ["", "a"], [["x", "1"], ["y", "2"]], "A note.")
    report.add_matrix("Matrix", ["x", "y"], ["x", "y"], np.array([[3, 1], [0, 4]]), np.eye(2, dtype=bool))
    report.add_curves("Curves", {"one": ([0, 10], [0.1, 0.9]), "two": ([0, 5], [0.2, 0.3])}, "Accuracy by step.")
    image = ReportImage(np.zeros((20, 20), np.uint8), ["bold", "small"])
    report.add_images("Images", [image, ReportImage(None, ["x"])])
    page = report.page().html
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Table", "Matrix", "Curves", "Images"]
    assert "<script" not in page
    assert page.count("<img ") == 1
    assert re.findall(r"<title>(.*?)</title>", page)[1:] == [
        "x → x: 3 of 4", "x → y: 1 of 4", "y → x: 0 of 4", "y → y: 4 of 4"
    ]  # fmt: skip
    assert [match.count(" ") + 1 for match in re.findall(r'<polyline[^>]*points="([^"]*)"', page)] == [2, 2]


def test_text_from_outside_is_escaped():
    evil = "<img src=x onerror=alert(1)>"
    report = Report(evil, evil)
    report.add_table(evil, [evil], [[evil]], evil)
    report.add_matrix(evil, [evil], [evil], np.ones((1, 1), int), np.ones((1, 1), bool))
    report.add_images(evil, [ReportImage(np.zeros((2, 2), np.uint8), [f'" onload="{evil}', evil])])
    page = report.page().html
    assert "<img src=x" not in page
    assert 'onload="' not in page


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.91, 0.934), (-3, 1200), (5, 5), (0, 0), (1e-7, 2e-7)])
def test_ticks_cover_the_range(low, high):
    marks = ticks(low, high)
    assert marks[0] <= low
    assert marks[-1] >= high
    assert 2 <= len(marks) <= 12
