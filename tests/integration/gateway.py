"""A router for tests: answers SSDP's search on loopback, and the SOAP calls that map a port. It forwards nothing.

SSDP has its one group and port, 239.255.255.250:1900, which any number of responders share.
"""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GROUP, PORT = "239.255.255.250", 1900
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"

DESCRIPTION = f"""<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType><serviceList><service>
<serviceType>{SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>/control</controlURL><eventSubURL>/events</eventSubURL><SCPDURL>/scpd.xml</SCPDURL>
</service></serviceList></device></deviceList></device></deviceList></device></root>"""


class Gateway:
    """`mappings`: outer port -> (inner host and port, lease). `taken`: outer ports of another machine's."""

    def __init__(self, outside: str = "203.0.113.7") -> None:
        self.outside = outside
        self.mappings: dict[int, tuple[str, int, int]] = {}
        self.added: list[int] = []
        self.taken: set[int] = set()
        self.broken = False
        self.held = threading.Event()
        self.held.set()

    def answer(self, action: str, fields: dict[str, str]) -> dict[str, str] | int:
        """What the action returns, or an error's number."""
        self.held.wait(10)
        if self.broken:
            return 501
        if action == "GetExternalIPAddress":
            return {"NewExternalIPAddress": self.outside}
        if action == "GetStatusInfo":
            return {"NewConnectionStatus": "Connected", "NewLastConnectionError": "ERROR_NONE", "NewUptime": "1"}
        port = int(fields.get("NewExternalPort", 0))
        if action == "AddPortMapping":
            if port in self.taken:
                return 718
            lease = int(fields["NewLeaseDuration"])
            self.mappings[port] = (fields["NewInternalClient"], int(fields["NewInternalPort"]), lease)
            self.added.append(port)
            return {}
        if action == "DeletePortMapping":
            return {} if self.mappings.pop(port, None) else 714
        return 401


@contextmanager
def gateway(outside: str = "203.0.113.7") -> Iterator[Gateway]:
    """A router that is there while the block lasts."""
    it = Gateway(outside)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(it))
    server.daemon_threads = True
    search = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    search.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    search.bind((GROUP, PORT))
    member = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
    search.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    search.settimeout(0.1)
    ended = threading.Event()
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}),
        threading.Thread(target=_answer_searches, args=(search, server.server_port, ended)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield it
    finally:
        it.held.set()
        ended.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()
        search.close()


def _answer_searches(search: socket.socket, port: int, ended: threading.Event) -> None:
    kind = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
    answer = (
        f"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nST: {kind}\r\nUSN: uuid:test::{kind}\r\nEXT:\r\n"
        f"LOCATION: http://127.0.0.1:{port}/root.xml\r\n\r\n"
    ).encode()
    while not ended.is_set():
        try:
            question, asker = search.recvfrom(2048)
        except TimeoutError:
            continue
        if question.startswith(b"M-SEARCH"):
            search.sendto(answer, asker)


def _handler(it: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, DESCRIPTION)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            action = self.headers["SOAPAction"].strip('"').rpartition("#")[2]
            answer = it.answer(action, dict(re.findall(r"<(New\w+)>([^<]*)</", body)))
            if isinstance(answer, int):
                self._send(
                    500,
                    _soap(
                        f"<s:Fault><detail><UPnPError><errorCode>{answer}</errorCode></UPnPError></detail></s:Fault>"
                    ),
                )
                return
            fields = "".join(f"<{name}>{value}</{name}>" for name, value in answer.items())
            self._send(200, _soap(f'<u:{action}Response xmlns:u="{SERVICE}">{fields}</u:{action}Response>'))

        def _send(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _soap(body: str) -> str:
    return f'<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{body}</s:Body></s:Envelope>'
