"""What holds for the whole program: it is quick to help, and fails in words."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

PROGRAM = str(Path(sys.executable).with_name("interlace"))
VERBS = ("demo", "split", "inspect", "methods", "run", "predict", "export", "report", "bench")
HEAVY = ("torch", "sklearn", "scipy", "polars", "numpy", "pyarrow", "pydantic", "matplotlib")

Call = Callable[..., Result]


def test_help_loads_nothing_heavy() -> None:
    code = f"import interlace.cli, sys; sys.exit(str([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_help_is_there_in_a_second() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([PROGRAM, "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 1


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_shows_an_example_and_what_comes_out(call: Call, verb: str) -> None:
    done = call(verb, "--help")
    assert done.exit_code == 0
    text = done.stdout
    assert f"interlace {verb}" in text.partition("Usage")[2].partition("\n")[2]
    assert "What comes out" in text


def test_version(call: Call) -> None:
    import interlace

    assert call("--version").stdout == f"interlace {interlace.__version__}\n"


def test_without_a_verb_it_shows_what_there_is(call: Call) -> None:
    done = call()
    assert all(verb in done.output for verb in VERBS)


def test_a_fingerprint_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from interlace.cli.console import say, show

    fingerprint = "SHA256:8A:AB:12:CD:8F"  # :AB: and :CD: are names of emoji
    say(fingerprint)
    show(fingerprint)
    printed = capsys.readouterr()
    assert printed.out == printed.err == f"{fingerprint}\n"


def test_an_error_is_one_line_and_exit_code_2(call: Call, folder: Path) -> None:
    done = call("run", "absent.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: absent.yaml cannot be read")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_debug_shows_the_traceback_too(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" in call("--debug", "run", "absent.yaml").stderr
    assert "Traceback" not in call("run", "absent.yaml").stderr
    monkeypatch.setenv("INTERLACE_DEBUG", "1")
    assert "Traceback" in call("run", "absent.yaml").stderr


def test_a_fault_of_ours_names_its_type_and_no_data(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise ValueError("could not convert '1952-03-14'")

    monkeypatch.setattr("interlace.job.spec.read_job", broken)
    done = call("run", "job.yaml")
    assert done.exit_code == 1
    assert "ValueError" in done.stderr
    assert "--debug" in done.stderr
    assert "1952" not in done.stderr


def test_a_reader_who_has_had_enough_is_no_error(folder: Path) -> None:
    command = f"'{PROGRAM}' split --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(call: Call, folder: Path) -> None:
    (folder / "locked").mkdir(mode=0o500)
    done = call("demo", "clinics", "--out", "locked/demo")
    assert done.exit_code == 2
    assert "Permission denied" in done.stderr


def test_a_folder_whose_parent_is_a_file(call: Call, folder: Path) -> None:
    (folder / "file").touch()
    done = call("demo", "clinics", "--out", "file/demo")
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
