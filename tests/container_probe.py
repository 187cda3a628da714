"""Run inside a container, past the worker: says what the container itself allows."""

import json
import os
import socket
import sys
from pathlib import Path

OURS = ("PATH", "LANG", "HOME", "HOSTNAME", "PYTHONHASHSEED", "LC_CTYPE")


def refusal(action):
    """The errno of an action that fails."""
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def write_to_root():
    Path("/opt/x").touch()


def write_to_tmp():
    Path("/tmp/x").touch()


def connect():
    socket.create_connection(("192.0.2.1", 80), 1)


def main():
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":\t") for line in lines if ":\t" in line)
    capabilities = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    sys.stdout.write(
        json.dumps(
            {
                "uid": os.getuid(),
                "privileges": status["NoNewPrivs"],
                "seccomp": status["Seccomp"],
                "capabilities": [status[name] for name in capabilities],
                "interfaces": [path.name for path in Path("/sys/class/net").iterdir()],
                "connect": refusal(connect),
                "socket": refusal(socket.socket),
                "root": refusal(write_to_root),
                "tmp": refusal(write_to_tmp),
                "shm": Path("/dev/shm").exists(),
                "docker": Path("/var/run/docker.sock").exists(),
                "secrets": [name for name in os.environ if name not in OURS],
            }
        )
    )


main()
