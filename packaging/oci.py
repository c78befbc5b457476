#!/usr/bin/env python3
"""Writes a container image without a container builder.

The archive is both an OCI image layout and what `docker load` reads. The first layer has glibc and the certificates of
Debian packages, the second one the program.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The user of the server; a number, so that Kubernetes can see that it is not root.
USER = 65532
PASSWD = f"root:x:0:0:root:/:/usr/sbin/nologin\noutpost:x:{USER}:{USER}:Outpost:/data:/usr/sbin/nologin\n"
GROUP = f"root:x:0:\noutpost:x:{USER}:\n"
# Files of the Debian packages that the program does not use.
UNUSED = ("usr/share/man", "usr/share/lintian", "usr/share/locale", "usr/sbin")
# Volumes. The root file system may be read-only: the server writes nowhere else.
MODE_BY_FOLDER = {"data": 0o700, "models": 0o755}
ENVIRONMENT = {
    "PATH": "/usr/bin",
    "OUTPOST_DATA": "/data",
    "OUTPOST_MODELS": "/models",
    # Inside a container, the host decides which addresses reach the port.
    "OUTPOST_LISTEN": "0.0.0.0:8080",
    "OUTPOST_INSECURE_HTTP": "true",
    "OUTPOST_NO_PULL": "true",
    "OUTPOST_LOG_FORMAT": "json",
}


def unpack_base(debs: list[Path], root: Path) -> None:
    """A root file system of the packages, without what only a shell would use."""
    for deb in debs:
        subprocess.run(["dpkg-deb", "--extract", deb, root], check=True)
    for name in UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    for folder in [*root.glob("usr/lib/*/gconv"), *root.glob("usr/lib/*/audit")]:
        shutil.rmtree(folder)
    # In newer releases of Debian these folders are links that another package has.
    for name in ("lib", "lib64"):
        if (root / "usr" / name).is_dir() and not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    authorities = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    certificates = root / "etc/ssl/certs"
    certificates.mkdir(parents=True, exist_ok=True)
    (certificates / "ca-certificates.crt").write_text("".join(file.read_text().strip() + "\n" for file in authorities))
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/group").write_text(GROUP)
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    for name in MODE_BY_FOLDER:
        (root / name).mkdir(exist_ok=True)


def normalized(entry: tarfile.TarInfo, time: int) -> tarfile.TarInfo:
    """The same file makes the same entry on every machine."""
    owner = USER if entry.name in MODE_BY_FOLDER else 0
    entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime = owner, owner, "", "", time
    entry.mode = MODE_BY_FOLDER.get(entry.name, entry.mode)
    return entry


def pack(root: Path, time: int) -> bytes:
    """An uncompressed tar of a folder, with its entries in order of their names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, path.relative_to(root).as_posix(), recursive=False, filter=lambda entry: normalized(entry, time))
    return buffer.getvalue()


class Layout:
    """Blobs of an image, by their sha256."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def add(self, media_type: str, content: bytes) -> dict:
        """Returns the descriptor of the blob."""
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media_type: str, value: dict) -> dict:
        return self.add(media_type, json.dumps(value, sort_keys=True).encode())

    def write(self, file: Path, index: dict, docker_manifest: list, time: int) -> None:
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
        files["manifest.json"] = json.dumps(docker_manifest).encode()
        files |= {f"blobs/sha256/{digest}": content for digest, content in self.blobs.items()}
        with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:
            for name in ("blobs", "blobs/sha256"):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o755, time
                archive.addfile(folder)
            for name, content in sorted(files.items()):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode, entry.mtime = len(content), 0o644, time
                archive.addfile(entry, io.BytesIO(content))


def image_config(arguments: argparse.Namespace, diff_ids: list[str], created: str) -> dict:
    config = {
        "User": f"{USER}:{USER}",
        "ExposedPorts": {"8080/tcp": {}},
        "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
        "Entrypoint": ["/usr/bin/outpost"],
        "Cmd": ["serve"],
        "Volumes": {"/data": {}, "/models": {}},
        "WorkingDir": "/data",
        "StopSignal": "SIGTERM",
        "Labels": {"org.opencontainers.image.version": arguments.version, "org.opencontainers.image.licenses": "Apache-2.0"},
    }
    if arguments.health_check:
        # Docker's format has this field; OCI runtimes ignore it. Times are in nanoseconds.
        second = 1_000_000_000
        test = ["CMD", "/usr/bin/outpost", "health"]
        config["Healthcheck"] = {"Test": test, "Interval": 10 * second, "Timeout": 5 * second, "StartPeriod": 60 * second, "Retries": 3}
    return {
        "created": created,
        "architecture": ARCHITECTURES[arguments.machine],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [{"created": created, "created_by": name} for name in ("packages of Debian", f"outpost {arguments.version}")],
    }


def build(arguments: argparse.Namespace) -> None:
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    created = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    layout, layers, diff_ids = Layout(), [], []
    with tempfile.TemporaryDirectory() as work:
        base, program = Path(work, "base"), Path(work, "program")
        base.mkdir()
        unpack_base(sorted(arguments.deb), base)
        shutil.copytree(arguments.root, program, symlinks=True)
        for root in (base, program):
            archive = pack(root, time)
            diff_ids.append("sha256:" + hashlib.sha256(archive).hexdigest())
            layers.append(layout.add("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress(archive, 6, mtime=0)))
    config = layout.add_json("application/vnd.oci.image.config.v1+json", image_config(arguments, diff_ids, created))
    media_type = "application/vnd.oci.image.manifest.v1+json"
    manifest = layout.add_json(media_type, {"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers})
    manifest["platform"] = {"architecture": ARCHITECTURES[arguments.machine], "os": "linux"}
    manifest["annotations"] = {
        "org.opencontainers.image.ref.name": arguments.version,
        "io.containerd.image.name": f"docker.io/library/outpost:{arguments.version}",
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}

    def path(descriptor: dict) -> str:
        return "blobs/" + descriptor["digest"].replace(":", "/")

    tags = [f"outpost:{arguments.version}"]
    docker = [{"Config": path(config), "RepoTags": tags, "Layers": [path(layer) for layer in layers]}]
    layout.write(arguments.to, index, docker, time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder with the program and its documents")
    parser.add_argument("--deb", type=Path, action="append", required=True, help="a Debian package of the first layer")
    parser.add_argument("--version", required=True)
    parser.add_argument("--machine", choices=ARCHITECTURES, required=True)
    parser.add_argument("--health-check", action="store_true", help="the program has the command `health`")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    build(parser.parse_args())


if __name__ == "__main__":
    main()
