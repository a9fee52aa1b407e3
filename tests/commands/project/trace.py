"""A file to which every process of a test appends what happens, one JSON object a line."""

import json
import os


def note(event: str, **fields: object) -> None:
    """Append an event; one write, so that lines of several processes do not mix."""
    line = json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n"
    file = os.open(os.environ["PROJECT_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
