"""Honest programs: a back end that stops everything would withstand every attack as well."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck import Behavior
from pettingllms.sandbox.types import Limits

OURS = ("pettingllms", "worker", "program.py")

BEHAVIORS = (
    *(
        Behavior(
            f"{name} says that there are no new processes",
            program,
            ("process_limit",),
            stderr="new processes are not allowed in this sandbox",
            hidden=(*OURS, "<sandbox>"),
            limits=Limits(),
        )
        for name, program in (
            ("os.fork", "import os; os.fork()"),
            ("os.system", "import os; os.system('true'); print('done')"),
            ("os.popen", "import os; os.popen('true').read()"),
            ("os.spawnl", "import os; os.spawnl(os.P_WAIT, '/bin/true', 'true')"),
            ("os.execl", "import os; os.execl('/bin/true', 'true')"),
            ("subprocess", "import subprocess; subprocess.run(['true'])"),
            ("a shell", "import subprocess; subprocess.check_output('true', shell=True)"),
            ("multiprocessing.Pool", "import multiprocessing as m; m.Pool(2)"),
            (
                "multiprocessing.Process",
                "import multiprocessing as m; m.Process(target=print).start()",
            ),
            ("multiprocessing.Queue", "import multiprocessing as m; m.Queue()"),
            (
                "a pool of processes",
                "import concurrent.futures as c; c.ProcessPoolExecutor(2).submit(print)",
            ),
            (
                "asyncio",
                "import asyncio\nasync def f(): await asyncio.create_subprocess_exec('true')\nasyncio.run(f())",
            ),
        )
    ),
)
