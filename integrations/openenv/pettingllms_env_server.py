"""`pettingllms-env-server`: an environment for OpenEnv's clients, over HTTP and WebSocket."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pettingllms.cli.guard import guarded, listening_on
from pettingllms.trainers.settings import as_object, check_values, setting, task_setting

EXAMPLES = (
    "pettingllms-env-server --env sokoban",
    "pettingllms-env-server --env coding --env-args.split test --port 9000 --max-sessions 64",
)


@dataclass
class EnvServerOptions:
    """Settings of the server."""

    env: str = task_setting("coding", "Environment: a name, or a path my_package.my_env:env")
    env_args: Mapping[str, Any] = task_setting(
        {}, "Arguments of the environment as JSON, or one by one: --env-args.max_turns 2"
    )
    host: str = setting(
        "Where", "127.0.0.1", "Address to listen on; the default is this machine alone"
    )
    port: int = setting("Where", 8000, "Port to listen on", at_least=1, at_most=65535)
    max_sessions: int = setting("How", 16, "Sessions at the same time", at_least=1)
    max_age: float = setting("How", 3600.0, "Seconds after which a session ends", positive=True)
    max_message: int = setting("How", 1 << 20, "Most bytes of a client's message", at_least=1024)

    def __post_init__(self) -> None:
        self.env_args = as_object("env_args", self.env_args)
        check_values(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until it is stopped; returns its exit code: 0 when stopped, 2 on an error."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(parse(words)))


def parse(argv: Sequence[str]) -> EnvServerOptions:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    from pettingllms.cli.options import OptionParser, fields_of

    options = fields_of(EnvServerOptions)
    parser = OptionParser(
        options,
        prog="pettingllms-env-server",
        description="Serves an environment to OpenEnv's clients: an episode a session.",
        examples=EXAMPLES,
    )
    arguments = parser.read(argv)
    return EnvServerOptions(**parser.values(arguments, [option.name for option in options]))


def _run(options: EnvServerOptions) -> int:
    from pettingllms_openenv import ServerLimits, served

    limits = ServerLimits(options.max_sessions, options.max_age, options.max_message)
    import uvicorn  # OpenEnv brings it

    with listening_on(options.host, options.port) as listening:
        service = served(options.env, limits, **options.env_args)
        server = uvicorn.Server(
            uvicorn.Config(service.app, ws_max_size=limits.message_bytes, log_level="warning")
        )
        print(f"serving {options.env} at http://{options.host}:{options.port}", flush=True)
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            # uvicorn has shut down by now: it only raises the signal that stopped it once more.
            print("stopped", flush=True)
        finally:
            service.template.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
