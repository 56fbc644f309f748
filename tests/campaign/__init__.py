"""An attack on the library, seeded and counted: what others' files, words, names and signals may do to it.

    python -m tests.campaign [--seed N] [--only files,commands,names,kills,stores] [--scale X] [--case N]

Each case has a judge. It lets pass success, and failure that is said in one sentence; anything else is a violation,
printed with the command that repeats it: a traceback, another type of error, more processor time or memory than the
limits in `pool`, a process, a shared segment or a temporary folder left behind, a finished point of a profile lost, a
folder of somebody else in the places for temporary files changed, a watched training job delayed by a stopped store.
"""
