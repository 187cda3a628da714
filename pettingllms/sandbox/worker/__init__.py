"""The worker: the one program that runs inside every back end and starts the untrusted ones.

Standard library only. It is started as `python -I -S <this folder>` (see `__main__`), imports
nothing else of the package, and speaks the frames of `frames` on its standard input and output.

    client --frames--> server --fork--> program (untrusted, pid 1 of its own namespaces)

    frames      what travels: a header of numbers, then raw bytes
    server      reads requests, answers with results
    jobs        starts a process for some runs, watches it, decides each status
    program     runs one program on one case inside the process
    jail        what a worker and a program give up, in which order
    view        what is visible of the host's files
    landlock, seccomp, syscalls, kernel     the kernel interfaces
"""
