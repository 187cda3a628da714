"""The environments of this package in the forms of other libraries; each needs an extra.

    verifiers_env       an environment of verifiers, with an agent for each role
    openenv_server      a server that OpenEnv's clients talk to
    bounded             limits on the messages and the age of its sessions

Nothing else in the package imports these modules.
"""
