"""An upgrade of two image encoders: [BC]'s future work, on real images.

Read in this order: `pictures` (which images, and what their pixels alone say), `encoders` (the two
models, whose weights are in packages), `vectors` (their vectors, computed once and kept),
`made_up` (vectors for tests), `measures` (an upgrade's cost), `heads` (a head on each encoder,
trained by Evergram), `upgrades` (what one run does), `columns` (what its results say), `claims`,
`experiment`.
"""
