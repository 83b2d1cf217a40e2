"""What a run is, as text."""

from __future__ import annotations

from hoptui.domain.details import RunDetails
from hoptui.presentation import details


def test_the_job_of_a_run_is_named() -> None:
    in_job = RunDetails(command="python train.py", environment={"SLURM_JOB_ID": "4711\n"})
    assert ("job", "Slurm 4711") in details.origin_rows(in_job)
    assert "job" not in dict(details.origin_rows(RunDetails(command="python train.py")))
