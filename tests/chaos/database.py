"""A PostgreSQL server with TLS on an address of the cluster's network, which can be killed and started again."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import clock

USER, PASSWORD, NAME = "outpost", "correct-horse", "outpost"
NOBODY = 65534
PORT = 5432

# Durability is PostgreSQL's default: fsync, full_page_writes and synchronous_commit are on.
SETTINGS = {"max_connections": "200", "ssl": "on", "shared_buffers": "128MB", "logging_collector": "off", "log_min_messages": "warning"}


def binaries() -> pathlib.Path:
    """The folder of PostgreSQL's programs."""
    installed = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    if found is None:
        raise SystemExit("tests/chaos: PostgreSQL's 'initdb' is missing (Debian: postgresql)")
    return pathlib.Path(found).resolve().parent


def unprivileged(*words: str) -> list[str]:
    """A command that runs as `nobody`, because PostgreSQL refuses to run as root."""
    if os.geteuid():
        return list(words)
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]


class Database:
    """One server. `address` is where it listens and what its certificate names."""

    def __init__(self, folder: pathlib.Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.data, self.ca = folder / "data", folder / "ca.pem"
        self.process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Initializes the server's folder and its certificate, starts it and creates the database."""
        self.folder.mkdir(parents=True)
        self._certificate()
        password = self.folder / "password"
        password.write_text(PASSWORD)
        for path in [self.folder, *self.folder.iterdir()]:
            os.chown(path, NOBODY, NOBODY)
        self.ca.chmod(0o644)
        init = [str(binaries() / "initdb"), "-D", str(self.data), "-U", USER, "--auth-local=trust", "--auth-host=scram-sha-256"]
        init += [f"--pwfile={password}", "--no-sync", "--no-instructions", "--locale=C", "--encoding=UTF8"]
        subprocess.run(unprivileged(*init), check=True, stdout=subprocess.DEVNULL, cwd=self.folder)
        with open(self.data / "pg_hba.conf", "a") as rules:
            rules.write("hostssl all all 10.77.0.0/16 scram-sha-256\n")
        self.start()
        self.wait()
        self.execute(f"CREATE DATABASE {NAME}", "postgres")

    def start(self) -> None:
        """Starts the server, without waiting until it accepts connections."""
        settings = SETTINGS | {
            "listen_addresses": self.address,
            "unix_socket_directories": str(self.folder),
            "ssl_cert_file": str(self.folder / "server.pem"),
            "ssl_key_file": str(self.folder / "server.key"),
        }
        words = [str(binaries() / "postgres"), "-D", str(self.data), "-p", str(PORT)]
        words += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                unprivileged(*words), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, start_new_session=True
            )

    def ready(self) -> bool:
        """Whether the server accepts connections."""
        check = [str(binaries() / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(PORT)]
        return subprocess.run(check, check=False).returncode == 0

    def wait(self, seconds: float = 60) -> None:
        """Waits until the server accepts connections. Starts it again if the processes of a killed one are still there."""
        deadline = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start; see {self.folder / 'log'}")
            if self.process and self.process.poll() is not None:
                self.start()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills the postmaster with SIGKILL. Its backends end when they notice."""
        if self.process:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """Stops the server at once."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def execute(self, sql: str, database: str = NAME) -> str:
        """Runs a statement over the unix socket and returns its output."""
        words = [str(binaries() / "psql"), "-h", str(self.folder), "-p", str(PORT), "-U", USER, "-d", database, "-qAtc", sql]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def url(self) -> str:
        """The URL for `--store`, without the password."""
        return f"postgres://{USER}@{self.address}:{PORT}/{NAME}?sslrootcert={self.ca}"

    def _certificate(self) -> None:
        """An authority, and a certificate for the server's address that it has signed."""
        authority = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
        authority += ["-subj", "/CN=chaos test", "-keyout", "ca.key", "-out", "ca.pem"]
        authority += ["-addext", "keyUsage=critical,keyCertSign"]
        request = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        request += ["-subj", "/CN=database", "-keyout", "server.key", "-out", "server.csr"]
        (self.folder / "names").write_text(f"subjectAltName=IP:{self.address}\nextendedKeyUsage=serverAuth\n")
        sign = ["openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
        sign += ["-days", "30", "-extfile", "names", "-out", "server.pem"]
        # Valid since yesterday, because the clocks of some nodes are slow.
        environment = os.environ | clock.skewed(-86_400)
        for words in (authority, request, sign):
            subprocess.run(words, check=True, capture_output=True, cwd=self.folder, env=environment)
        (self.folder / "server.key").chmod(0o600)
