"""Record the jobs of notebook 11 in profiles/slow_jobs.json: python notebooks/scripts/record_slow_jobs.py"""

import datetime
import os
from pathlib import Path

import torch
from slow_job import train

from rankscope.common.files import write_json
from rankscope.ranks import launch

CAUSES = ["none", "loader", "forward", "backward", "optimizer", "host"]


def all_jobs():
    return {cause: train(cause, report=lambda line: None) for cause in CAUSES}


if __name__ == "__main__":
    provenance = {
        "torch": str(torch.__version__),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.date.today().isoformat(),
        "command": "python notebooks/scripts/record_slow_jobs.py",
        "what": "The job of scripts/slow_job.py on four ranks, once for each cause, as `watch` recorded it.",
    }
    traces = launch(all_jobs, 4, timeout_s=600)[0]
    path = Path(__file__).parents[1] / "profiles" / "slow_jobs.json"
    write_json(path, {"provenance": provenance, "traces": traces})
