"""Read, check, edit and draw workflow files: from TOML to a validated `Workflow`.

Nothing here starts MPI, or imports or runs a user's code.
"""
