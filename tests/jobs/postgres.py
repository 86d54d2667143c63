"""A PostgreSQL server for tests: on a free loopback port, in memory, removed at the end."""

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = ("initdb", "pg_ctl", "psql")
SETTINGS = (
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=60",
    "autovacuum=off",
    "listen_addresses=127.0.0.1",
)


def find_binaries() -> Path | None:
    """Where initdb is; distributions keep it off the path."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if all((place / name).exists() for name in PROGRAMS)), None)


def server_user() -> str | None:
    """The user to run PostgreSQL as: it refuses root, so root uses the system user `postgres`."""
    if os.geteuid() != 0:
        return getpass.getuser()
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else None


class PostgresServer:
    """Can be stopped and started again, with its data, at the same address."""

    def __init__(self, binaries: Path, user: str) -> None:
        self._binaries = binaries
        self._user = user
        self._directory = Path(tempfile.mkdtemp(prefix="onyx-pg-", dir=fast_directory()))
        shutil.chown(self._directory, user)
        self._data = self._directory / "data"
        self.port = _free_port()
        self._run(
            "initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=onyx", "-D", self._data
        )
        self.start()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://onyx@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = " ".join(f"-c {setting}" for setting in (*SETTINGS, f"port={self.port}"))
        options += f" -c unix_socket_directories={self._directory}"
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self._directory / "log", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate", "-w", "-D", self._data)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    def create(self, database: str, template: str = "template1") -> str:
        """A new database, and its address."""
        self.sql(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        self.sql(f'DROP DATABASE "{database}" WITH (FORCE)')

    def sql(self, statement: str, database: str = "postgres") -> None:
        self._run("psql", "-q", "-h", "127.0.0.1", "-p", self.port, "-U", "onyx", "-d", database, "-c", statement)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._binaries / program), *map(str, arguments)]
        log = self._directory / "commands"
        with log.open("w") as output:  # not a pipe: the server would inherit it and keep it open
            user = self._user if os.geteuid() == 0 else None
            done = subprocess.run(command, stdout=output, stderr=output, user=user, cwd="/", check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {log.read_text()}")


def fast_directory() -> str | None:
    """A directory in memory, where there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own is made inside of it
    return str(memory) if os.access(memory, os.W_OK) else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
