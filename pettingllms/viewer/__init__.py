"""A viewer for runs and evaluations in the browser.

    folders     finds runs and evaluations, opens their files, says whether they are still going
    index       where each episode of a trajectories.jsonl starts, also of one of gigabytes
    episodes    an episode as the page shows it: facts for the table, the tree without token ids
    library     answers the page's questions about the runs it was given
    app         the HTTP interface on top: loopback only, read only
    export      the same page and answers as one file that opens from disk
    static/     the page: classic scripts without a build step, and the libraries in vendor/

The page shows what language models wrote. It is text everywhere: no string from a run is ever
markup, a name of a file, or a program. Nothing here imports a deep-learning library.
"""
