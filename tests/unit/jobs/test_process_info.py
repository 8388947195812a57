import pytest

from outlay.core.error_types import JoinError
from outlay.jobs.process_info import read_process_info

LAUNCHED = {"OUTLAY_PROCESS_ID": "1", "OUTLAY_NUM_PROCESSES": "2", "OUTLAY_COORDINATOR": "127.0.0.1:5000"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_JOB_ID": "123456",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-1@1",
}


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


def test_nothing_set_is_a_process_alone():
    assert read_process_info({"PATH": "/bin", "JOB_COMPLETION_INDEX": "3"}) is None


def test_a_launched_process():
    info = read_process_info(LAUNCHED)
    assert (info.process, info.num_processes, info.address) == (1, 2, ("127.0.0.1", 5000))
    assert info.origin["process"] == "OUTLAY_PROCESS_ID"


def test_a_pod_of_an_indexed_job():
    pod = without(LAUNCHED, "OUTLAY_PROCESS_ID") | {"JOB_COMPLETION_INDEX": "0"}
    assert (read_process_info(pod).process, read_process_info(pod).origin["process"]) == (0, "JOB_COMPLETION_INDEX")


def test_a_task_of_srun():
    info = read_process_info(SLURM)
    assert (info.process, info.num_processes) == (5, 8)
    assert (info.local_process, info.num_local_processes) == (1, 4)
    assert info.address[0] == "gpu007"
    assert all(61440 <= port < 65536 for port in (info.address[1], *info.other_ports))
    assert info.name == "SLURM job 123456, step 0, start 0"


def test_the_steps_of_one_job_are_told_apart():
    one, other, again = (
        read_process_info(SLURM | more) for more in ({}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"})
    )
    assert len({info.name for info in (one, other, again)}) == 3
    assert one.coordinator != other.coordinator
    assert set(one.other_ports) != set(other.other_ports)


def test_a_step_on_one_node_is_not_heard_outside():
    alone = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_NODEID": "0"}
    assert read_process_info(alone).address[0] == "127.0.0.1"


@pytest.mark.parametrize("environment", [LAUNCHED, SLURM, OPEN_MPI])
def test_a_token_is_known_and_not_shown(environment):
    info = read_process_info(environment | {"OUTLAY_TOKEN": "hidden"})
    assert info.secret == "hidden"
    assert "hidden" not in repr(info)


def test_the_coordinator_of_srun_can_be_given():
    assert read_process_info(SLURM | {"OUTLAY_COORDINATOR": "head:7000"}).coordinator == "head:7000"


def test_uneven_tasks_of_srun():
    uneven = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}
    assert read_process_info(uneven).num_local_processes == 3


def test_a_process_of_mpirun_on_one_machine():
    first, second = read_process_info(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"}), read_process_info(OPEN_MPI)
    assert (first.process, second.process) == (0, 1)
    assert first.coordinator == second.coordinator
    assert first.address[0] == "127.0.0.1"


def test_a_process_of_mpirun_on_several_machines_needs_to_be_told_where_to_meet():
    spread = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(JoinError, match=r"missing: OUTLAY_COORDINATOR\n  fix: mpirun -x OUTLAY_COORDINATOR=FIRST_HOST"):
        read_process_info(spread)
    assert read_process_info(spread | {"OUTLAY_COORDINATOR": "a:7000"}).coordinator == "a:7000"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            without(LAUNCHED, "OUTLAY_COORDINATOR"),
            r"only some variables of Outlay[^\0]*set: OUTLAY_PROCESS_ID=1, OUTLAY_NUM_PROCESSES=2\n"
            r"  missing: OUTLAY_COORDINATOR \(host:port of process 0\)\n  fix: ",
        ),
        (
            without(SLURM, "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
            r"set: SLURM_PROCID=5, SLURM_STEP_NODELIST=gpu\[007-008\], SLURM_JOB_ID=123456\n"
            r"  missing: SLURM_STEP_ID \(which srun.*\), SLURM_STEP_NUM_TASKS \(how many there are\)\n"
            r"  fix: start the processes with srun: srun python",
        ),
        (
            without(OPEN_MPI, "OMPI_COMM_WORLD_SIZE"),
            r"missing: OMPI_COMM_WORLD_SIZE \(how many there are\)\n  fix: start with: mpirun",
        ),
        (LAUNCHED | {"OUTLAY_PROCESS_ID": "2"}, r"there is no process 2 of 2: .*\n  process from OUTLAY_PROCESS_ID"),
        (LAUNCHED | {"OUTLAY_PROCESS_ID": "two"}, r"OUTLAY_PROCESS_ID='two' is not a number"),
        (LAUNCHED | {"OUTLAY_COORDINATOR": "head"}, r"coordinator 'head' is not host:port"),
    ],
)
def test_what_is_set_by_half_or_cannot_be_is_refused(environment, message):
    with pytest.raises(JoinError, match=message):
        read_process_info(environment)
