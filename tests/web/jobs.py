"""The job of the web process; it notes its runs in a file."""

import os
from pathlib import Path

from django_jobq import job


@job(name="tests.ship")
def ship(order: str) -> None:
    """Append one line, whole even if the process dies the moment after."""
    path = Path(os.environ["JOBQ_TEST_NOTES"])
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{order}\n".encode())
    os.close(file)
