"""What surrounds a command's own arguments.

Read in this order: `words` (options before the command, and where it stands), `old_names` (names
from before the groups), `completion` (values that a shell offers).
"""
