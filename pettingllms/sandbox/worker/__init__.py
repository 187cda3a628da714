"""The worker: the one program that runs inside every back end and starts the untrusted ones.

Standard library only. It is started as `python .../worker/__main__.py OPTIONS` (see `embedded`),
imports nothing else of the package, and speaks the frames of `frames` on its standard input and
output.

    client --frames--> server --limits--> fork server --fork--> program (untrusted, process 1 of
                                                                its own namespaces)

    start       turns a fresh interpreter into a serving worker
    frames      what travels: a header of numbers, then raw bytes
    server      reads requests, answers with results; texts go from descriptor to descriptor
    supervisor  has processes forked, watches them, decides the status of every run
    process     a program's process: its job and how it arrives; give up everything, do the job, exit
    program     runs a program as Python runs a script
    isolation   what a worker and a program give up, in which order; Landlock
    seccomp     the filter of system calls
    rootfs      the part of the host's files that programs see
    kernel      system calls that Python does not offer
"""
