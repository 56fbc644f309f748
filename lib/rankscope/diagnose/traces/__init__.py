"""Which rank is late, and why: from traces, or live."""
