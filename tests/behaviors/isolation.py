"""Attacks on what is around the program: files, network, other processes, the kernel."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck import Behavior, attack

_FILES = (
    attack("password hashes are not visible", "open('/etc/shadow').read()"),
    attack("the host's name is not readable", "open('/etc/hostname').read()"),
    attack("no memory is readable in /proc", "open('/proc/self/mem', 'rb').read(1)"),
    attack("there is no /sys", "os.listdir('/sys/kernel')"),
    attack(
        "root's home folder shows nothing but the way to Python",
        """
        if all(f"/root/{name}/" in os.__file__ for name in os.listdir('/root')):
            raise OSError("nothing else")
        """,
    ),
    attack("the folder above /tmp is no way out", "os.listdir('/tmp/../etc')"),
    attack(
        "a link does not lead out",
        "os.symlink('/etc/passwd', '/tmp/link'); open('/tmp/link').read()",
    ),
    attack("the standard library cannot be deleted", "os.unlink(os.__file__)"),
    attack("the standard library cannot be replaced", "os.rename(os.__file__, '/tmp/os.py')"),
    attack("the mode of files of the host cannot be changed", "os.chmod(os.__file__, 0o777)"),
    attack("the owner of files of the host cannot be changed", "os.chown(os.__file__, 0, 0)"),
    attack("files of the host cannot be cut", "os.truncate(os.__file__, 0)"),
    attack(
        "nothing can be created beside the program's folder",
        "os.mkdir(os.path.join(os.path.realpath('/tmp'), '..', 'evil'))",
    ),
    attack("nothing can be created in /dev", "open('/dev/evil', 'w')"),
    attack("device files cannot be made", "os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))"),
    attack("no kernel log is reachable", "open('/dev/kmsg')"),
    attack("no terminal is reachable", "open('/dev/tty')"),
    attack("shared memory files cannot be made", "open('/dev/shm/x', 'w')"),
    attack(
        "programs in /tmp cannot be run",
        "import ctypes\nopen('/tmp/x.so', 'wb').write(open(ctypes._ctypes.__file__, 'rb').read() if hasattr(ctypes, '_ctypes') else b'')\nctypes.CDLL('/tmp/x.so')",
    ),
)

_NETWORK = (
    attack("no IPv6 socket", "socket.socket(socket.AF_INET6)"),
    attack("no netlink socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    attack("no packet socket", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    attack(
        "no socket of any family",
        """
        refused = 0
        for family in range(48):
            for kind in (1, 2, 3, 5):
                try: socket.socket(family, kind)
                except OSError as error: refused += error.errno == errno.EPERM
        if refused == 48 * 4: raise OSError("all refused")
        """,
    ),
    attack("no connection to this machine", "socket.create_connection(('127.0.0.1', 22), 1)"),
    attack(
        "no message to an address over a socket pair",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b'x', '\\0evil')",
    ),
    attack("no socket pair of another family", "socket.socketpair(socket.AF_INET)"),
    attack(
        "no page from the web", "import urllib.request as u; u.urlopen('http://1.1.1.1', timeout=1)"
    ),
)

_BOUNDS = (
    attack(
        "no program for the kernel on a socket",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 26, bytes(16))",
    ),
    attack(
        "no filter of a socket can be read",
        "socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, 26, 16)",
    ),
    attack("no larger pipe", "import fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)"),
    attack("no pages given to a pipe", "call(278, os.pipe()[1], 0, 0, 0)"),
    attack(
        "no descriptors in flight", "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])"
    ),
    attack("no watches of files", "call(253)"),
    attack("no notes about folders", "import fcntl; fcntl.fcntl(os.open('/tmp', 0), 1026, 2)"),
    attack("no leases", "import fcntl; fcntl.fcntl(os.open('/tmp/l', os.O_CREAT), 1024, 0)"),
    attack("no locked memory", "call(149, 0, 4096)"),
    attack("no timers in the kernel", "call(222, 0, 0, 0)"),
    attack("no queued signals", "call(129, 1, 34, 0)"),
    attack("no System V queues", "call(68, 42, 0o1600)"),
    attack("no System V semaphores", "call(64, 42, 1, 0o1600)"),
    attack("no mapped secrets", "call(447, 0)"),
    attack(
        "all that sockets and pipes hold is within the limit of memory",
        """
        total = 0
        try:
            while True:
                a, b = socket.socketpair()
                for end in (a, b):
                    end.setblocking(False)
                    os.set_inheritable(end.fileno(), True)
                    try:
                        while True: total += end.send(bytes(1 << 12))
                    except BlockingIOError: pass
                    end.detach()
        except OSError: pass
        if total < 64 << 20: raise OSError("bounded")
        """,
    ),
    attack(
        "no lock on a file of Python's",
        "import fcntl; fcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_SH)",
    ),
    attack(
        "a lock that is granted does not exist",
        """
        import fcntl, struct
        fd = os.open('/dev/null', os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        libc.syscall(72, fd, 36, struct.pack('hhqqi', 1, 0, 0, 0, 0))  # asks as another owner
        raise OSError("refused")
        """,
    ),
    attack(
        "no wake-up of others through a file that both have mapped",
        """
        libc.mmap.restype = ctypes.c_void_p
        page = libc.mmap(None, 4096, 1, 1, os.open(os.__file__, 0), 0)
        call(202, ctypes.c_void_p(page), 1, 1)
        """,
    ),
    attack(
        "no look at which parts of a file others have read",
        "os.preadv(os.open(os.__file__, 0), [bytearray(1)], 0, os.RWF_NOWAIT)",
    ),
    attack(
        "no emptying of the host's file cache",
        """
        import mmap
        file = mmap.mmap(os.open(os.__file__, 0), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
        file.madvise(21)
        """,
    ),
    attack(
        "no merging of memory with that of other processes",
        "import mmap; mmap.mmap(-1, 4096).madvise(12)",
    ),
    attack(
        "few signals wait in the kernel's memory",
        """
        wanted = {signal.SIGRTMIN}
        signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
        for _ in range(5000): os.kill(os.getpid(), signal.SIGRTMIN)
        taken = 0
        while signal.sigtimedwait(wanted, 0): taken += 1
        if taken <= 1024: raise OSError("bounded")
        """,
    ),
    attack("no mark on the mode of a device", "os.chmod('/dev/null', 0o600)"),
    attack("a process cannot be made dumpable", "if libc.prctl(4, 1, 0, 0, 0): raise OSError"),
    attack("no tracer can be named", "if libc.prctl(0x59616d61, -1, 0, 0, 0): raise OSError"),
    attack("no speculation control", "if libc.prctl(53, 0, 0, 0, 0): raise OSError"),
    attack("no other memory descriptor", "if libc.prctl(35, 8, 0, 0, 0): raise OSError"),
)

_PROCESSES = (
    attack("the fork server cannot be opened", "os.pidfd_open(2)"),
    attack("no limits of another process can be read", "__import__('resource').prlimit(2, 7)"),
    attack("no process without a shell", "os.system('true')"),
    attack("the own group cannot be signalled", "os.kill(0, signal.SIGTERM)"),
    attack("the parent cannot be signalled", "os.kill(os.getppid() or 2, signal.SIGTERM)"),
    attack("no process by number can be signalled", "[os.kill(n, 0) for n in range(2, 50)]"),
    attack("no process can be spawned", "os.posix_spawn('/bin/sh', ['sh'], {})"),
    attack("no shell can be started", "import subprocess; subprocess.run('true', shell=True)"),
    attack("no process by clone", "call(56, 17, 0, 0, 0, 0)"),
    attack("no process by clone3", "call(435, 0, 0)"),
    attack("no new session of daemons", "os.fork() or os.setsid()"),
    attack("no handle of another process", "os.pidfd_open(1)"),
    attack("no higher priority", "os.nice(-5)"),
    attack("no capabilities", "call(126, 0, 0)"),
)

_KERNEL = (
    attack("no unmounting", "call(166, b'/tmp', 2)"),
    attack("no other root", "os.chroot('/tmp')"),
    attack("no namespaces of others", "call(308, 0, 0)"),
    attack("no kernel modules", "call(175, 0, 0, 0)"),
    attack("no performance counters", "call(298, 0, 0, -1, -1, 0)"),
    attack("no userfaultfd", "call(323, 0)"),
    attack(
        "no named shared memory",
        "import _posixshmem as s; s.shm_open('/x', os.O_RDWR | os.O_CREAT, 0o600)",
    ),
    attack("no named semaphores", "import multiprocessing; multiprocessing.Lock()"),
    attack("no message queues", "call(240, b'x', 0o102, 0o600, 0)"),
    attack("no setting of the clock", "import time; time.clock_settime(time.CLOCK_REALTIME, 0)"),
    attack("no other host name", "socket.sethostname('evil')"),
    attack("no restart of the machine", "call(169, 0xfee1dead, 672274793, 0x1234567, 0)"),
    attack("no file by its handle", "call(304, 0, 0, 0)"),
    attack("no typing into a terminal", "import fcntl; fcntl.ioctl(0, 0x5412, b'x')"),
    attack("no weaker filter", "call(317, 0, 0, 0)"),
    attack("no extended attributes", "os.setxattr('/tmp', 'user.x', b'x')"),
)

BEHAVIORS: tuple[Behavior, ...] = (*_FILES, *_NETWORK, *_BOUNDS, *_PROCESSES, *_KERNEL)
