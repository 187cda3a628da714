"""Numbers of the system calls that the program filter knows: `name:x86_64:aarch64`.

Source: the kernel's asm/unistd_64.h and asm-generic/unistd.h. "-" marks a call that the
architecture does not have. A call in none of the tables is refused with EPERM, and with ENOSYS if
its number is larger than all of these.
"""

from __future__ import annotations

ALLOWED = """
access:21:- alarm:37:- arch_prctl:158:- brk:12:214 capget:125:90 chdir:80:49 chmod:90:-
clock_getres:229:114 clock_gettime:228:113 clock_nanosleep:230:115 close:3:57 close_range:436:436
dup:32:23 dup2:33:- dup3:292:24 epoll_create1:291:20 epoll_ctl:233:21 epoll_pwait:281:22
epoll_wait:232:- eventfd2:290:19 exit:60:93 exit_group:231:94 faccessat:269:48 faccessat2:439:439
fadvise64:221:223 fallocate:285:47 fchdir:81:50 fchmod:91:52 fchmodat:268:53 fdatasync:75:83
flock:73:32 fstat:5:80 fstatfs:138:44 fsync:74:82 ftruncate:77:46 futex:202:98
get_robust_list:274:100 getcpu:309:168 getcwd:79:17 getdents64:217:61 getegid:108:177
geteuid:107:175 getgid:104:176 getgroups:115:158 getitimer:36:102 getpeername:52:205
getpgid:121:155 getpgrp:111:- getpid:39:172 getppid:110:173 getpriority:140:141 getrandom:318:278
getresgid:120:150 getresuid:118:148 getrlimit:97:163 getrusage:98:165 getsid:124:156
getsockname:51:204 getsockopt:55:209 gettid:186:178 gettimeofday:96:169 getuid:102:174 link:86:-
linkat:265:37 lseek:8:62 lstat:6:- madvise:28:233 membarrier:324:283 mkdir:83:- mkdirat:258:34
mmap:9:222 mprotect:10:226 mremap:25:216 munmap:11:215 nanosleep:35:101 newfstatat:262:79
open:2:- openat:257:56 pause:34:- pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 pread64:17:67
preadv:295:69 preadv2:327:286 pselect6:270:72 pwrite64:18:68 pwritev:296:70 pwritev2:328:287
read:0:63 readlink:89:- readlinkat:267:78 readv:19:65 recvfrom:45:207 rename:82:- renameat:264:38
renameat2:316:276 restart_syscall:219:128 rmdir:84:- rseq:334:293 rt_sigaction:13:134
rt_sigpending:127:136 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133
rt_sigtimedwait:128:137 sched_getaffinity:204:123 sched_getparam:143:121
sched_getscheduler:145:120 sched_yield:24:124 select:23:- sendfile:40:71 set_robust_list:273:99
set_tid_address:218:96 setitimer:38:103 setsid:112:157 setsockopt:54:208 shutdown:48:210
sigaltstack:131:132 stat:4:- statfs:137:43 statx:332:291 symlink:88:- symlinkat:266:36
sysinfo:99:179 time:201:- times:100:153 truncate:76:45 umask:95:166 uname:63:160 unlink:87:-
unlinkat:263:35 utimensat:280:88 wait4:61:260 waitid:247:95 write:1:64 writev:20:66
"""
"""Always allowed: memory, threads, clocks, own signals, files and pipes."""

CHECKED = """
clone:56:220 clone3:435:435 execve:59:221 execveat:322:281 fcntl:72:25 fork:57:- ioctl:16:29
kill:62:129 prctl:157:167 prlimit64:302:261 sendto:44:206 setrlimit:160:164 socketpair:53:199
tgkill:234:131 tkill:200:130 vfork:58:-
"""
"""Allowed or refused by their arguments; `seccomp` holds the conditions."""

HOSTILE = """
acct:163:89 add_key:248:217 adjtimex:159:171 bpf:321:280 chroot:161:51 clock_adjtime:305:266
clock_settime:227:112 delete_module:176:106 finit_module:313:273 fsconfig:431:431 fsmount:432:432
fsopen:430:430 fspick:433:433 init_module:175:105 io_uring_enter:426:426
io_uring_register:427:427 io_uring_setup:425:425 ioperm:173:- iopl:172:- kcmp:312:272
kexec_file_load:320:294 kexec_load:246:104 keyctl:250:219 modify_ldt:154:- mount:165:40
mount_setattr:442:442 move_mount:429:429 name_to_handle_at:303:264 open_by_handle_at:304:265
open_tree:428:428 perf_event_open:298:241 pidfd_getfd:438:438 pivot_root:155:41
process_madvise:440:440 process_vm_readv:310:270 process_vm_writev:311:271 ptrace:101:117
quotactl:179:60 reboot:169:142 request_key:249:218 setdomainname:171:162 sethostname:170:161
setns:308:268 settimeofday:164:170 swapoff:168:225 swapon:167:224 syslog:103:116 umount2:166:39
unshare:272:97 userfaultfd:323:282 vhangup:153:58
"""
"""No honest Python program makes these: the program is killed, status `forbidden`."""


def numbers(table: str, machine: str) -> dict[str, int]:
    """Call name -> number on `machine` ("x86_64" or "aarch64") for one of the tables above."""
    column = {"x86_64": 1, "aarch64": 2}[machine]
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
