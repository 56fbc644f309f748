"""A collective that plays: the playback of a schedule, its picture that moves, and its explorer."""
