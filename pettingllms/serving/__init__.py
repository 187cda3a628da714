"""A trained team behind an OpenAI-compatible HTTP interface.

    requests    what a body may hold, and what it asks for
    worker      one thread that samples for all requests at once
    completing  a request as its job: text from tokens, pieces of a stream, stop strings
    wire        answers in OpenAI's form, whole or as server-sent events
    team        `model="team"`: the whole team plays on a question
    app         the HTTP interface on top of these
    proxy       the same interface in front of vLLM's server

`model` names a role, or `team`. Parameters that are not supported are refused by name, never ignored.
"""
