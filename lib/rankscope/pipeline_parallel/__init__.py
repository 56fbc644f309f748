"""Pipeline parallelism: schedules, their bubbles, and runs on real ranks."""
