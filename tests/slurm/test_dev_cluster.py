"""slurm/dev-cluster: nodes, jobs, GPUs, failures on demand, separate networks, a clean end."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import NODES, PROGRAM, Cluster, wait_for
from tests.slurm.conftest import cluster_with

STAYS = "echo $$ >stays.$SLURM_JOB_ID; exec sleep 300"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    server.accept()
"""


@pytest.fixture
def host_names(cluster: Cluster) -> None:
    if not cluster.has_host_names:
        pytest.skip("nodes have no host names of their own without root")


def pid_of(cluster: Cluster, job: str) -> int:
    """Return the process of a job that runs `STAYS`."""
    path = cluster.folder / f"stays.{job}"
    return int(wait_for(lambda: path.exists() and path.read_text(), f"job {job} to run"))


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def daemons(state: Path) -> dict[int, str]:
    """Return the processes that a cluster started."""
    found = {}
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("DEV_CLUSTER_STATE") == str(state)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.name()
        except psutil.Error:
            continue
    return found


def test_every_node_comes_up(cluster: Cluster) -> None:
    assert {name: cluster.node_state(name) for name in NODES} == dict.fromkeys(NODES, "idle")
    partitions = set(cluster.run(["sinfo", "-h", "-o", "%P %N"]).splitlines())
    assert partitions == {
        "cpu* cpu[1-4]",
        "gpu gpu[1-2]",
        "short cpu[1-4]",
        "scavenge cpu[1-4],gpu[1-2]",
    }


def test_jobs_run_and_are_cancelled(cluster: Cluster) -> None:
    done = cluster.sbatch("--nodelist=cpu2", "--wrap", "echo on $SLURMD_NODENAME")
    stays = cluster.sbatch("--wrap", STAYS)
    cluster.wait_for_job(done, "COMPLETED")
    assert cluster.output(done) == "on cpu2\n"
    pid = pid_of(cluster, stays)
    assert stays in cluster.run(["squeue", "-h", "-o", "%i", "--states=RUNNING"]).split()
    cluster.run(["scancel", stays])
    cluster.wait_for_job(stays, "CANCELLED")
    wait_for(lambda: not is_alive(pid), "the job's process to end")


@pytest.mark.usefixtures("host_names")
def test_each_node_has_its_own_host_name(cluster: Cluster) -> None:
    srun = ["srun", "--partition=scavenge", "--nodes=6", "hostname"]
    assert sorted(cluster.run(srun).split()) == sorted(NODES)
    assert [cluster.run(["hostname"], host=name).strip() for name in NODES] == list(NODES)
    assert cluster.run(["hostname"]).strip() == "login"


def test_commands_run_outside_of_the_hosts_too(cluster: Cluster) -> None:
    srun = ["srun", "--nodelist=cpu3", "printenv", "SLURMD_NODENAME"]
    assert subprocess.check_output(srun, env=cluster.environment, text=True) == "cpu3\n"


def test_gpus_are_given_out(cluster: Cluster) -> None:
    visible = ["printenv", "CUDA_VISIBLE_DEVICES"]
    one = cluster.run(["srun", "--partition=gpu", "--gres=gpu:1", *visible])
    both = cluster.run(["srun", "--partition=gpu", "--gpus=2", "--nodes=1", *visible])
    assert (one, both) == ("0\n", "0,1\n")
    jobs = [
        cluster.sbatch("-pgpu", "-wgpu1", "-G1", "--wrap", f"{' '.join(visible)}; sleep 300")
        for _ in range(2)
    ]
    wait_for(lambda: all(cluster.output(job) for job in jobs), "two jobs on one node")
    assert sorted(cluster.output(job) for job in jobs) == ["0\n", "1\n"]


def test_a_gpu_is_refused_where_there_is_none(cluster: Cluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.sbatch("--partition=cpu", "--gres=gpu:1", "--wrap", "true")
    assert "Requested node configuration is not available" in refused.value.stderr


def test_an_account_is_refused(cluster: Cluster) -> None:
    if not cluster.refuses_an_account:
        pytest.skip("this SLURM has no job_submit/lua")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        cluster.sbatch("--account=closed", "--wrap", "true")
    assert "Invalid account" in caught.value.stderr
    assert cluster.sbatch("--account=open", "--wrap", "true")


def test_short_has_a_limit_of_one_minute(cluster: Cluster) -> None:
    fits = cluster.sbatch("--partition=short", "--wrap", "true")
    assert cluster.job(fits)["TimeLimit"] == "00:01:00"
    long = cluster.sbatch("--partition=short", "--time=2", "--wrap", "true")
    wait_for(lambda: cluster.job(long)["Reason"] == "PartitionTimeLimit", "SLURM's reason")


@pytest.mark.slow  # SLURM looks every 15 s at what it preempts
def test_scavenge_gives_way(cluster: Cluster) -> None:
    wide = ("--nodes=4", "--exclusive")
    low = cluster.sbatch("--partition=scavenge", "--constraint=cpu", *wide, "--wrap", STAYS)
    cluster.wait_for_job(low, "RUNNING")
    high = cluster.sbatch(*wide, "--wrap", "true")
    cluster.wait_for_job(high, "COMPLETED", limit_s=60)
    again = cluster.wait_for_job(low, "RUNNING", limit_s=60)
    assert again["Restarts"] == "1"


def test_crash_kills_and_start_brings_back(cluster: Cluster) -> None:
    here, there = (cluster.sbatch(f"--nodelist={name}", "--wrap", STAYS) for name in NODES[:2])
    killed, spared = pid_of(cluster, here), pid_of(cluster, there)
    cluster.node("crash", "cpu1")
    assert not is_alive(killed)
    assert is_alive(spared)
    cluster.node("start", "cpu1")
    srun = ["srun", "--nodelist=cpu1", "printenv", "SLURMD_NODENAME"]
    assert cluster.run(srun) == "cpu1\n"


def test_stop_leaves_jobs_running(cluster: Cluster) -> None:
    job = cluster.sbatch("--nodelist=cpu3", "--wrap", "while [ ! -e go ]; do sleep 0.05; done")
    cluster.wait_for_job(job, "RUNNING")
    cluster.node("stop", "cpu3")
    assert "slurmd-cpu3.pid" not in {path.name for path in (cluster.state / "run").iterdir()}
    (cluster.folder / "go").touch()
    cluster.node("start", "cpu3")
    cluster.wait_for_job(job, "COMPLETED")


def test_a_drained_node_starts_nothing(cluster: Cluster) -> None:
    cluster.node("drain", "cpu4")
    assert cluster.node_state("cpu4") == "drained"
    job = cluster.sbatch("--nodelist=cpu4", "--wrap", "true")
    wait_for(lambda: "ReqNodeNotAvail" in cluster.job(job)["Reason"], "SLURM's reason")
    cluster.node("resume", "cpu4")
    cluster.wait_for_job(job, "COMPLETED")


def test_jobs_outlive_the_controller(cluster: Cluster) -> None:
    job = cluster.sbatch("--wrap", STAYS)
    pid = pid_of(cluster, job)
    cluster.node("stop", "login")
    assert "DOWN" in cluster.run(["sh", "-c", "scontrol ping || true"])
    cluster.node("start", "login")
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert is_alive(pid)


def test_up_again_starts_what_is_missing(cluster: Cluster) -> None:
    before = daemons(cluster.state)
    cluster.node("crash", "gpu2")
    first, second = cluster.dev_cluster("up"), cluster.dev_cluster("up")
    assert first == second
    assert f"export SLURM_CONF={cluster.state}/slurm.conf" in first
    after = daemons(cluster.state)
    assert sorted(after.values()) == sorted(before.values())
    (replaced,) = set(before) - set(after)
    assert before[replaced] == "slurmd"


def test_wrong_use_is_one_line(cluster: Cluster) -> None:
    for arguments, complaint in [
        (("climb",), "no verb 'climb'"),
        (("node", "crash", "cpu9"), "no host 'cpu9'; there are: login cpu1"),
        (("node", "crush", "cpu1"), "no verb 'node crush'"),
        (("node", "crash", "login"), "login can only stop and start"),
        (("on", "cpu1"), "on takes a host and a command"),
    ]:
        with pytest.raises(subprocess.CalledProcessError) as wrong:
            cluster.dev_cluster(*arguments)
        assert wrong.value.returncode == 2
        assert wrong.value.stderr.startswith(f"dev-cluster: {complaint}")
        assert len(wrong.value.stderr.splitlines()) == 1


def test_help_names_every_verb() -> None:
    shown = subprocess.check_output([PROGRAM, "--help"], text=True)
    verbs = re.findall(r"dev-cluster ([a-z]+ ?[a-z]*)", shown)
    nodes = ("crash", "stop", "start", "drain", "resume", "cut", "plug")
    assert [verb.strip() for verb in verbs] == ["up", "status", "down", "on"] + [
        f"node {verb}" for verb in nodes
    ]


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    others = Cluster(tmp_path)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        others.dev_cluster("up")
    assert "holds other things" in refused.value.stderr
    others.down()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.usefixtures("host_names")
def test_a_second_cluster_comes_and_goes(cluster: Cluster) -> None:
    """It runs beside the first one, with a /tmp per node; `down` removes it entirely."""
    first = daemons(cluster.state)
    with cluster_with(tmp="own", options="KillWait=2") as second:
        config = second.run(["scontrol", "show", "config"])
        assert "KillWait                = 2 sec" in config
        mine = Path(f"/tmp/{second.state.name}-of-cpu1")
        second.run(["touch", str(mine)], host="cpu1")
        assert second.run(["ls", str(mine)], host="cpu1") == f"{mine}\n"
        assert not mine.exists()
        job = second.sbatch("--wrap", f"setsid sh -c '{STAYS}' & exec sleep 300")
        pid = pid_of(second, job)
        assert daemons(second.state)
    assert not is_alive(pid)
    wait_for(lambda: not daemons(second.state), "the last daemon to be gone", 5)
    assert not second.state.exists()
    assert daemons(cluster.state) == first
    with pytest.raises(subprocess.CalledProcessError) as gone:
        second.dev_cluster("status")
    assert gone.value.returncode == 1


def reaches(cluster: Cluster, host: str, address: str, port: str) -> bool:
    try:
        cluster.run(["python3", "-c", CONNECT, address, port], host=host)
    except subprocess.CalledProcessError:
        return False
    return True


@contextlib.contextmanager
def listening(cluster: Cluster, address: str) -> Iterator[str]:
    """Run a listening server on login for the block, and yield its port."""
    with cluster.start(["python3", "-c", LISTEN, address]) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("listens", "asked", "reached"),
    [("127.0.0.1", "127.0.0.1", False), ("0.0.0.0", "127.0.0.1", False), ("login", "login", True)],
)
def test_hosts_have_networks_of_their_own(
    netns_cluster: Cluster, listens: str, asked: str, reached: bool
) -> None:
    with listening(netns_cluster, listens) as port:
        assert reaches(netns_cluster, "login", asked, port)
        assert reaches(netns_cluster, "cpu1", asked, port) == reached


def test_a_cut_cable(netns_cluster: Cluster) -> None:
    """The node cannot be reached while its job keeps running; reconnected, it works again."""
    job = netns_cluster.sbatch("--nodelist=cpu2", "--wrap", STAYS)
    pid = pid_of(netns_cluster, job)
    with listening(netns_cluster, "login") as port:
        assert reaches(netns_cluster, "cpu2", "login", port)
        netns_cluster.node("cut", "cpu2")
        assert not reaches(netns_cluster, "cpu2", "login", port)
        assert is_alive(pid)
        netns_cluster.node("plug", "cpu2")
        wait_for(lambda: reaches(netns_cluster, "cpu2", "login", port), "the network to be back")
    assert netns_cluster.job(job)["JobState"] == "RUNNING"


def test_jobs_span_hosts(netns_cluster: Cluster) -> None:
    shown = netns_cluster.run(["srun", "--nodes=4", "hostname", "-i"])
    assert len(set(shown.split())) == 4
    assert "127.0.0.1" not in shown
