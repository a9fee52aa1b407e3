"""Fixtures of the RabbitMQ tests: factories of backends, a private node, a proxy, and runs."""

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.rabbitmq.support import BackendFactory, Runs
from tests.broker import PrivateNode, free_ports, private_node
from tests.proxy import Proxy

TLS_NAME = "broker.example"


@pytest.fixture
def make(shared_broker: str, session_prefix: Callable[[str], str]) -> Iterator[BackendFactory]:
    """Return a factory of backends on the shared broker, all on the session's prefix."""
    factory = BackendFactory(shared_broker, session_prefix)
    yield factory
    factory.close()


@pytest.fixture
def make_apart(shared_broker: str) -> Iterator[BackendFactory]:
    """Return a factory of backends under a prefix of the test's own, which it may damage."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    factory = BackendFactory(shared_broker, lambda _: prefix)
    yield factory
    factory.delete()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a CA and the certificate it gave to a host name that is not ours."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        *["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"],
        *["-subj", "/CN=test authority", "-addext", "keyUsage=critical,keyCertSign"],
    )
    openssl("req", *key, "-keyout", "key.pem", "-out", "request.pem", "-subj", f"/CN={TLS_NAME}")
    (folder / "names").write_text(f"subjectAltName=DNS:{TLS_NAME}\n")
    openssl(
        *["x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key"],
        *["-CAcreateserial", "-extfile", "names", "-days", "2", "-out", "cert.pem"],
    )
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (folder / name).chmod(0o644)
    return folder


@pytest.fixture(scope="session")
def tls_port() -> int:
    """Return the port on which the private node speaks TLS."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def _session_node(certificates: Path, tls_port: int) -> Iterator[PrivateNode]:
    lines = [
        f"listeners.ssl.1 = 127.0.0.1:{tls_port}",
        f"ssl_options.cacertfile = {certificates / 'ca.pem'}",
        f"ssl_options.certfile = {certificates / 'cert.pem'}",
        f"ssl_options.keyfile = {certificates / 'key.pem'}",
        "ssl_options.verify = verify_none",
    ]
    with private_node(lines) as node:
        yield node


@pytest.fixture
def node(_session_node: PrivateNode) -> PrivateNode:
    """Return a running node that the test may disturb; the next one starts it if it is down."""
    _session_node.start()
    return _session_node


@pytest.fixture
def on_node(node: PrivateNode) -> Iterator[BackendFactory]:
    """Return a factory of backends on the private node."""
    factory = BackendFactory(node.url, lambda queue_type: f"node.{queue_type}")
    yield factory
    node.start()
    factory.close()


@pytest.fixture
def proxy(node: PrivateNode) -> Iterator[Proxy]:
    """Return a proxy in front of the private node."""
    with Proxy(node.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(node: PrivateNode, proxy: Proxy, on_node: BackendFactory) -> BackendFactory:
    """Return a factory of backends that reach the private node through the proxy."""
    on_node.backend_url = node.url_for(port=proxy.port)
    return on_node


@pytest.fixture
def runs() -> Iterator[Runs]:
    """Return jobs that count their runs by id; the gate opens at the end whatever happened."""
    runs = Runs()
    yield runs
    runs.gate.set()
