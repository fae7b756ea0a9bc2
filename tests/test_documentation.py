"""What the README and the pages tell a reader to do works as it stands there.

Each page is worked through from top to bottom in an empty folder, as a reader would: a block with
a caption is a file to write, a ``console`` block holds commands after ``$``, a ``python`` block is
run (a page's blocks share their names). Commands that set the environment up are taken as done.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

from interlace.job.spec import read_job
from interlace.methods.catalogue import entry

ROOT = Path(__file__).resolve().parents[1]
ALL_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = [p for p in ALL_PAGES if p.name != "CONTRIBUTING.md" and "```" in p.read_text()]

SET_UP = re.compile(r"(git clone|cd|pip|python -m pip|source|make (?!demo))\b")
REPOSITORY_COMMANDS = {"make demo": "interlace demo"}


class Block(NamedTuple):
    """A fenced block: its language, its caption (a file name) and its text."""

    language: str
    caption: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for token in MarkdownIt().parse(page.read_text()):
        if token.type != "fence":
            continue
        info = token.info.replace("{code-block}", "").split()
        option = re.match(r":caption: (\S+)\n+", token.content)
        text = token.content[option.end() :] if option else token.content
        yield Block(info[0] if info else "", option[1] if option else "", text)


def commands(text: str) -> Iterator[str]:
    """The commands of a console block: lines after ``$``, with their ``>`` continuations."""
    for match in re.finditer(r"^\$ (.*(?:\n> .*)*)", text, flags=re.MULTILINE):
        command = match[1].replace("\n> ", "\n").partition("  #")[0].rstrip()
        command = REPOSITORY_COMMANDS.get(command, command)
        if not SET_UP.match(command):
            yield command


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_reader_can_follow_the_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.caption:
            Path(block.caption).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.language == "console":
            for command in commands(block.text):
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", command],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_job_that_the_readme_shows_can_be_run(tmp_path: Path) -> None:
    jobs = [b.text for b in blocks(ROOT / "README.md") if b.language == "yaml"]
    assert jobs
    for text in jobs:
        (tmp_path / "job.yaml").write_text(text)
        assert entry(read_job(tmp_path / "job.yaml").method.name).role == "method"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_of_the_repository_lead_somewhere(page: Path) -> None:
    for token in MarkdownIt().parse(page.read_text()):
        for child in token.children or []:
            target = str(child.attrs.get("href") or child.attrs.get("src") or "")
            if target and not re.match(r"[a-z]+:|#", target):
                file = page.parent / target.partition("#")[0]
                assert file.exists() or file.with_suffix(".md").exists(), target
