"""Unix sockets with a path: their users, and the files that they may replace."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from nftproxy.kernel.unix_sockets import Peer, listen, peer


def test_a_socket_is_its_users_alone(tmp_path: Path) -> None:
    """No other user may connect, nor look into the directory that was made for it, and nothing else is left there."""
    with listen(tmp_path / "run" / "sock", 1):
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "run" / "sock").stat().st_mode) == 0o600
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["sock"]


def test_each_side_knows_the_other(tmp_path: Path) -> None:
    """Both ends of a connection see this process and its user."""
    path = tmp_path / "sock"
    with listen(path, 1) as listening, socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(path))
        with listening.accept()[0] as accepted:
            assert peer(asking) == peer(accepted) == Peer(os.getpid(), os.geteuid())


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """A stale socket of a process that has ended is replaced."""
    listen(tmp_path / "sock", 1).close()
    with listen(tmp_path / "sock", 1), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(tmp_path / "sock"))


def test_a_socket_with_a_listener_stays(tmp_path: Path) -> None:
    """A second listener can't be made, also while the backlog is full, and the first goes on as before."""
    path = tmp_path / "sock"
    with listen(path, 0) as listening:
        with pytest.raises(OSError, match=f"process {os.getpid()} of user {os.geteuid()} listens there"):
            listen(path, 1)
        with pytest.raises(OSError, match="another process listens there"):
            listen(path, 1)
        listening.accept()[0].close()
        assert [each.name for each in tmp_path.iterdir()] == ["sock"]


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_file_that_is_no_socket_stays(tmp_path: Path, kind: str) -> None:
    """Any other file at the path is left alone, also a link to a socket."""
    path = tmp_path / "sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError, match="isn't a socket"):
        listen(path, 1)
    assert kind != "file" or path.read_text() == "precious"
