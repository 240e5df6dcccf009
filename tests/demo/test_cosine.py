from rich.console import Console

from sightline.demo import cosine


def test_both_examples_are_printed_and_drawn(tmp_path, capsys):
    cosine.run(Console(width=100), tmp_path)
    output = capsys.readouterr().out
    assert "0.4248" in output
    assert "0.893" in output
    for name in ("magnitude-trap.png", "temperature-sweep.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert f"wrote {tmp_path / name}" in output
