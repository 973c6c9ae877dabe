"""What surrounds a command's own arguments.

Read in this order: `words` (options before the command, and where it stands), `completion` (values
that a shell offers).
"""
