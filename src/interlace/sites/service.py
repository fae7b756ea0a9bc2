"""A site's processes: FLARE's client at every party, the server at the one that hosts it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from interlace.errors import InterlaceError, JobError
from interlace.sites.folder import ENVIRONMENT, PartyFolder
from interlace.sites.provision import environment

REGISTERED = "Successfully registered client"
FOREGROUND = "foreground.pid"  # FLARE keeps its own, `pid.fl`, in the background alone
UP_SECONDS = 90.0  # until the server has taken the site in
DOWN_SECONDS = 15.0  # until a process that was asked to end is killed


def kits_of(folder: PartyFolder) -> list[Path]:
    """The kits whose processes run at this party, in the order in which they start.

    Raises:
        JobError: the party has none yet.
    """
    if not (folder.kit / "startup").exists():
        raise JobError(
            f"'{folder.name}' has no start-up kit yet: `interlace party request`, then "
            "`interlace party install`"
        )
    return [*([folder.server] if folder.server.exists() else []), folder.kit]


def up(folder: PartyFolder, tell: Callable[[str], None] = lambda _text: None) -> None:
    """Start this organisation's processes in the background, unless they run, and wait until it is
    connected.

    FLARE's own watchdog starts them again if they end, and gives up at the fifth time that it had
    to within five minutes of the time before.

    Raises:
        InterlaceError: the server has not taken the site in.
    """
    kits = kits_of(folder)
    if all(map(process_of, kits)):
        return
    for kit in kits:
        if not tended(kit):
            _forget(kit)
            with (kit / "output.txt").open("ab") as output:
                subprocess.Popen(
                    [str(kit / "startup" / "start.sh")],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_environment(folder),
                    start_new_session=True,
                )
            tell(f"starting {kit.name}")
    log = folder.kit / "log.txt"
    start = log.stat().st_size if log.exists() else 0
    until = time.monotonic() + UP_SECONDS
    while time.monotonic() < until:
        if log.exists():
            with log.open(errors="replace") as file:
                file.seek(start)
                if REGISTERED in file.read():
                    return
        time.sleep(0.2)
    raise InterlaceError(
        f"the server {folder.site.host}:{folder.site.port} has not taken '{folder.name}' in within "
        f"{UP_SECONDS:.0f} seconds; it is tried on. `interlace party check` looks for the reason, "
        f"and {log} has what FLARE says"
    )


def stay(folder: PartyFolder) -> int:
    """Run this organisation's processes in the foreground, as a service manager or container
    wants it, until one ends or we are told to.

    Returns:
        The exit status of the process that ended first; 0 where we were told to end.
    """
    running: list[subprocess.Popen[bytes]] = []
    told: list[int] = []

    def end(number: int, _frame: object) -> None:
        told.append(number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    for kit in kits_of(folder):
        if process_of(kit) is not None:
            raise JobError(f"'{folder.name}' is up already ({kit})")
        _forget(kit)
        command = [str(kit / "startup" / "sub_start.sh"), "--once"]
        running.append(subprocess.Popen(command, env=_environment(folder), start_new_session=True))
        (kit / FOREGROUND).write_text(str(running[-1].pid))  # its script becomes the process
    while not told and all(process.poll() is None for process in running):
        time.sleep(0.5)
    code = next((p.returncode for p in running if p.poll() is not None), 0)
    for process in reversed(running):
        _end(process.pid, lambda p=process: p.poll() is not None)  # type: ignore[misc]
    for kit in kits_of(folder):
        _forget(kit)
    return 0 if told else code


def down(folder: PartyFolder) -> list[str]:
    """End this organisation's processes.

    Returns:
        Those that ran.
    """
    ended = []
    for kit in reversed(kits_of(folder)):
        pid = process_of(kit)
        (kit / "shutdown.fl").touch()  # so that the watchdog does not start it again
        if pid is not None:
            _end(pid, lambda kit=kit: process_of(kit) is None)  # type: ignore[misc]
            ended.append(kit.name)
        watchdog = _pid(kit / "daemon_pid.fl")
        until = time.monotonic() + DOWN_SECONDS
        while watchdog is not None and _alive(watchdog) and time.monotonic() < until:
            time.sleep(0.2)
        _forget(kit)
    return ended


def process_of(kit: Path) -> int | None:
    """The process that runs a kit now, or ``None``."""
    return _running(kit, "pid.fl", FOREGROUND)


def tended(kit: Path) -> bool:
    """Whether a kit's process runs, or a watchdog is there that will start it."""
    return _running(kit, "pid.fl", FOREGROUND, "daemon_pid.fl") is not None


def _running(kit: Path, *names: str) -> int | None:
    """The first process of those whose numbers are in these files that runs, or ``None``."""
    for name in names:
        pid = _pid(kit / name)
        if pid is not None and _alive(pid) and _is_flare(pid):
            return pid
    return None


def _end(pid: int, gone: Callable[[], bool]) -> None:
    """Ask a process to end, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + DOWN_SECONDS
        while time.monotonic() < until:
            if gone():
                return
            time.sleep(0.1)


def _environment(folder: PartyFolder) -> dict[str, str]:
    return {**environment(), ENVIRONMENT: str(folder.root)}


def _forget(kit: Path) -> None:
    for name in ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl", FOREGROUND):
        (kit / name).unlink(missing_ok=True)


def _pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _alive(pid: int) -> bool:
    """Whether a process is there, and is no zombie of ours."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_flare(pid: int) -> bool:
    """Whether a process is one of FLARE's, and no other that got its number since a restart."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # no such files on this system
    return b"nvflare" in command or b"sub_start" in command
