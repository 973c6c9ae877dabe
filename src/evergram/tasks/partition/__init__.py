"""What pushes a query's candidates in a softmax over all of them.

Read in this order: `log_partition`, the logarithm of the sum over all candidates, in tiles;
`limited_shares`, the same where no candidate takes more than its share.
"""
