"""Golden texts: what compares them, what writes them, and what finds those that no test uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import sheet

pytest_plugins = ["pytester"]

MODULE = """
import pytest

def test_greets(golden):
    golden("hello\\nworld\\n")
    golden("pid 4121 of /tmp/x", "details", normalize={r"(pid) \\d+": r"\\1 N", "/tmp": "DIR"})
    golden(["one", "two"], "lines")

@pytest.mark.parametrize("mood", ["good", "a/b"])
def test_moods(golden, mood):
    golden(mood)
"""
FILES = {"greets.txt", "greets-details.txt", "greets-lines.txt", "moods-good.txt", "moods-a_b.txt"}


@pytest.fixture(autouse=True)
def only_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """To import the other plugins in each session takes longer than the session."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def goldens(pytester: pytest.Pytester) -> Path:
    """The folder of the golden files of `MODULE`, as a run with the option has written them."""
    pytester.makepyfile(test_words=MODULE)
    run(pytester, "--update-snapshots").assert_outcomes(passed=3)
    return pytester.path / "golden" / "test_words"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "tests.golden", "-p", "no:cacheprovider", *arguments)


def test_the_option_writes_each_text_as_it_is(pytester: pytest.Pytester, goldens: Path) -> None:
    assert {file.name for file in goldens.iterdir()} == FILES
    assert (goldens / "greets.txt").read_bytes() == b"hello\nworld\n"
    assert (goldens / "greets-details.txt").read_bytes() == b"pid N of DIR/x"
    assert (goldens / "greets-lines.txt").read_bytes() == b"one\ntwo\n"
    result = run(pytester)
    result.assert_outcomes(passed=3)
    assert result.ret == 0


def test_another_text_fails_with_the_difference_and_the_command(
    pytester: pytest.Pytester, goldens: Path
) -> None:
    (goldens / "greets.txt").write_text("hello\nmoon\n")
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["-moon", "+world", "to keep it: pytest --update-snapshots 'test_words.py::test_greets'"]
    )
    run(pytester, "--update-snapshots").assert_outcomes(passed=3)
    assert (goldens / "greets.txt").read_text() == "hello\nworld\n"


def test_a_newline_at_the_end_and_a_carriage_return_count(pytester: pytest.Pytester, goldens: Path) -> None:
    for other, line in (
        (b"hello\nworld", "-world (without a newline)"),
        (b"hello\r\nworld\n", r"-hello\r"),
    ):
        (goldens / "greets.txt").write_bytes(other)
        result = run(pytester, "test_words.py::test_greets")
        result.assert_outcomes(failed=1)
        assert line in result.stdout.lines


def test_a_missing_file_fails_and_is_not_written(pytester: pytest.Pytester, goldens: Path) -> None:
    (goldens / "greets.txt").unlink()
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["there is no golden file *greets.txt; to write it: pytest --update-snapshots *"]
    )
    assert not (goldens / "greets.txt").exists()


def test_a_file_without_a_test_fails_the_session(pytester: pytest.Pytester, goldens: Path) -> None:
    gone = goldens.parent / "test_gone" / "x.txt"
    gone.parent.mkdir()
    old = [goldens / "moods-bad.txt", goldens / "old.txt", gone]
    for file in old:
        file.write_text("x")
    for distribution in ((), ("-p", "xdist", "-n", "2")):
        result = run(pytester, *distribution)
        result.assert_outcomes(passed=3)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines([str(file) for file in sorted(old)])
    run(pytester, "--update-snapshots").assert_outcomes(passed=3)
    assert not any(file.exists() for file in old)
    assert {file.name for file in goldens.iterdir()} == FILES


@pytest.mark.parametrize(
    "some", [["-k", "moods"], ["test_words.py::test_moods"], ["--deselect", "test_words.py"]]
)
def test_a_part_of_a_module_leaves_the_other_files(
    pytester: pytest.Pytester, goldens: Path, some: list[str]
) -> None:
    for option in ([], ["--update-snapshots"]):
        assert run(pytester, *some, *option).ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert {file.name for file in goldens.iterdir()} == FILES


def test_a_skipped_test_keeps_its_files(pytester: pytest.Pytester, goldens: Path) -> None:
    pytester.makepyfile(test_words="import pytest\ndef test_greets(golden):\n    pytest.skip('not here')\n")
    assert run(pytester).ret == pytest.ExitCode.OK
    assert run(pytester, "--update-snapshots").ret == pytest.ExitCode.OK
    assert {file.name for file in goldens.iterdir()} == FILES


def test_two_texts_of_one_name_are_a_fault(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_x(golden):\n    golden('a')\n    golden('b')\n")
    result = run(pytester, "--update-snapshots")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ValueError: two golden texts of this test are named ''"])


def test_a_sheet_has_each_text_below_its_heading() -> None:
    texts = {"wide": "one  \n\ntwo\n", "narrow": ["one ", "two"], "none": "", "no lines": []}
    assert sheet(texts) == (
        "== wide\none\n\ntwo\n\n== narrow\none\ntwo\n\n== none\n(nothing)\n\n== no lines\n(nothing)\n"
    )
