from outlay.launcher.run_job import launchers_beside

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}


def test_a_launcher_that_srun_starts_on_each_node_says_that_each_has_a_job_of_its_own():
    assert launchers_beside(4, SLURM) == (
        "note: this launcher runs 2 times at once (SLURM_STEP_NUM_TASKS), each with a job of its own of 4 processes\n"
        "  for one job of all of them: have srun or mpirun start the program itself, as in srun python train.py\n"
    )


def test_only_the_first_launcher_says_so_and_a_launcher_alone_does_not():
    assert launchers_beside(4, SLURM | {"SLURM_PROCID": "1"}) == ""
    assert launchers_beside(4, SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) == ""
    assert launchers_beside(4, {"SLURM_PROCID": "0"}) == ""  # a batch script, outside srun
    assert launchers_beside(4, {}) == ""
    inner = {"OUTLAY_PROCESS_ID": "0", "OUTLAY_NUM_PROCESSES": "2", "OUTLAY_COORDINATOR": "127.0.0.1:1"}
    assert launchers_beside(4, inner) == ""
