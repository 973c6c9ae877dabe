"""The state of a running training on disk: when it is written, whose it is, and what is kept.

`settings` says when; `run_identity` says of which run a state is, and what two runs differ in; the
writer and the reader of one state are in `state_file`; `checkpoint_folder` keeps the last few, and
goes past damaged ones. `evergram.training.resume` ties them to the loop.
"""
