"""A site with a page, a git repository and three package registries.

Builds everything under ROOT and serves it over TLS and plain HTTP on
127.0.0.1, where it is called `registry.test`. Prints one line of JSON with the
ports, then serves until it is killed or its standard input ends.

usage: site.py ROOT CERTIFICATE KEY
"""

import base64
import hashlib
import http.server
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile

HOST = "registry.test"


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def archive(files):
    """A gzipped tar of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def page(root):
    write(f"{root}/page", "a page")
    write(f"{root}/large", b"x" * 3_000_000)


def git(root):
    """A repository that plain file servers can serve."""
    work, bare = f"{root}/work", f"{root}/repo.git"
    write(f"{work}/README", "from git")
    identity = ["-c", "user.name=t", "-c", "user.email=t@registry.test"]
    for command in (
        ["git", "init", "-q", work],
        ["git", "-C", work, "add", "README"],
        ["git", "-C", work, *identity, "commit", "-q", "-m", "first"],
        ["git", "clone", "-q", "--bare", work, bare],
        ["git", "-C", bare, "update-server-info"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def pip(root):
    wheel = "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "ORIGIN = 'from pip'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    names = [*files, f"{info}/RECORD"]
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in names)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel_file:
        for name, text in files.items():
            wheel_file.writestr(name, text)
    write(f"{root}/simple/tiny/{wheel}", buffer.getvalue())
    write(f"{root}/simple/tiny/index.html", f'<a href="{wheel}">{wheel}</a>')


def npm(root, base):
    manifest = {"name": "tiny", "version": "1.0.0", "main": "index.js"}
    tarball = archive({
        "package/package.json": json.dumps(manifest),
        "package/index.js": "module.exports = 'from npm'",
    })
    digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    dist = {"tarball": f"{base}/npm-files/tiny-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    write(f"{root}/npm-files/tiny-1.0.0.tgz", tarball)
    write(f"{root}/npm/tiny", json.dumps({
        "name": "tiny",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**manifest, "dist": dist}},
    }))


def cargo(root, base):
    crate = archive({
        "tiny-0.1.0/Cargo.toml": '[package]\nname = "tiny"\nversion = "0.1.0"\n',
        "tiny-0.1.0/src/lib.rs": "//! From cargo.\n",
    })
    write(f"{root}/crates/tiny-0.1.0.crate", crate)
    download = f"{base}/crates/{{crate}}-{{version}}.crate"
    write(f"{root}/index/config.json", json.dumps({"dl": download}))
    write(f"{root}/index/ti/ny/tiny", json.dumps({
        "name": "tiny", "vers": "0.1.0", "deps": [], "features": {}, "yanked": False,
        "cksum": hashlib.sha256(crate).hexdigest(),
    }) + "\n")


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", self.server.away)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(length)
        answer = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def main():
    root, certificate, key = sys.argv[1:]
    os.makedirs(root, exist_ok=True)
    handler = lambda *arguments: Handler(*arguments, directory=root)
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    secure = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure.socket = context.wrap_socket(
        secure.socket, server_side=True, do_handshake_on_connect=False
    )
    base = f"https://{HOST}:{secure.server_port}"
    plain.away = f"http://inner.test:{plain.server_port}/page"
    page(root)
    git(root)
    pip(root)
    npm(root, base)
    cargo(root, base)
    for server in (plain, secure):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"http": plain.server_port, "https": secure.server_port}), flush=True)
    sys.stdin.read()


main()
