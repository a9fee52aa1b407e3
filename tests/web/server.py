"""A web server that forks for each request, as those of production do for many.

It prints its port. Each line of its input is the name of a stop: the next request is served by a
process that kills itself there. Once that process has ended, its status is printed.
"""

import os
import sys
from wsgiref.simple_server import WSGIServer, make_server

import django
from django.core.handlers.wsgi import WSGIHandler

from tests.web.stops import STOPS


def serve(server: WSGIServer, stop: str) -> int:
    """Serve one request in a process of its own, and return how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    STOPS[stop]()
    server.handle_request()
    os._exit(0)


def main() -> None:
    django.setup()
    with make_server("127.0.0.1", 0, WSGIHandler()) as server:
        print(server.server_port, flush=True)
        for line in sys.stdin:
            print(serve(server, line.strip()), flush=True)


if __name__ == "__main__":
    main()
