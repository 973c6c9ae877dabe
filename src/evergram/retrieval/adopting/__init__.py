"""Tables of somebody's own, read at any version: `view_search` searches a store of either sort,
`adopted_search` one that holds vectors alone, and `adopted_check` proves whose vectors they are.
"""
