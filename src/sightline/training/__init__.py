"""One loop for all tasks, and what it needs: schedules, averages, checkpoints, processes, a log."""
