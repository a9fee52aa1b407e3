"""Debian packages of servers that tests start by themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(package: str, service: str) -> None:
    """Install a package, announced first; its service is neither started nor enabled."""
    print(f"Not here: apt-get install {package} (no service)", file=sys.stderr)
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "-qq", *command], env=env, check=False, stdout=sys.stderr)
        if shutil.which("update-rc.d"):  # which tells systemd, too
            subprocess.run(["update-rc.d", service, "disable"], check=False, capture_output=True)
    finally:
        if ours:
            policy.unlink()
