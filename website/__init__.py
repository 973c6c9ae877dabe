"""The documents as a site: `make docs`.

`python -m website` gathers in build/pages the pages of docs/, and those that are made of the code:
the API of every room, the help of every command, and the service's paths. mkdocs makes the site of
them, and fails where a link leads nowhere.
"""
