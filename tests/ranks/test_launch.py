"""`launch`: ranks as processes, what they return, how they fail, and that none is left."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope import transfer
from rankscope.cluster import Cluster
from rankscope.ranks import RankError, host, launch, pool, stacks
from rankscope.ranks import launcher as launching
from rankscope.timeline import Recorder, Timeline

from ..extents import first_in_test
from ..ports import free_port
from ..processes import NOT_HANGING_S, alive, children, gone, server_folders, server_pid, soon
from . import functions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nobody_is_left(tmp_path_factory, monkeypatch):
    """After each test only the server and its folders are there; other processes' launches are their own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    yield
    assert soon(lambda: not children(server_pid()))
    assert {path.name for folder in server_folders() for path in folder.iterdir()} <= {"server.err", ".owner"}
    assert set(Path(tempfile.gettempdir()).iterdir()) <= server_folders()


def late(message: str, fn: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> tuple[str, int]:
    """What is said of ranks that never return, and of which; a busy one needs more time to come to where it stays."""
    for _ in range(5):
        with pytest.raises(RankError) as caught:
            launch(fn, 2, args, timeout_s=timeout_s)
        if re.search(message, str(caught.value)):
            return str(caught.value), caught.value.rank
        assert re.match(rf"ranks? .* not returned after {timeout_s:g} s", str(caught.value))
        timeout_s *= 4
    raise AssertionError(str(caught.value))


# ---- results


def test_the_workers_of_a_data_loader_run_in_a_rank():
    assert launch(functions.sum_from_workers, 2) == [45, 45]


def test_results_come_by_rank():
    assert launch(functions.total, 4, args=(10,)) == [46] * 4
    assert launch(functions.rank, 3) == [0, 1, 2]
    assert launch(functions.total, 1) == [0]


def test_functions_go_by_value():
    factor = 3
    assert launch(lambda x: factor * x + functions.rank(), 2, [4]) == [12, 13]


def test_functions_that_torch_defines_in_others_are_sent():
    """They have a name of torch, but none by which another process can import them."""
    import torch

    average = torch.optim.swa_utils.get_ema_avg_fn(0.5)
    (mean,) = launch(average, 1, (torch.tensor(1.0), torch.tensor(3.0), torch.tensor(1)))
    assert mean == 2


def test_a_module_whose_name_only_begins_like_torch_is_not_part_of_it():
    def one_more(x):
        return x + 1

    one_more.__module__ = "torch_helpers"
    one_more.__qualname__ = one_more.__name__
    assert launch(one_more, 1, (1,)) == [2]


def test_ranks_are_forked_from_one_process_that_has_torch_already():
    """It takes half a second for 8 ranks, as the benchmark shows, where importing torch takes some."""

    def here():
        return os.getppid(), [id(sys.modules[name]) for name in ("torch", "torch._dynamo", "numpy")]

    found = launch(here, 2) + launch(here, 8)
    assert [parent for parent, _ in found] == [server_pid()] * 10
    assert all(places == found[0][1] for _, places in found), "who imports a module has it elsewhere"


def test_ranks_are_forked_with_what_they_are_sent_of_this_library():
    """A function as an argument, a module that the function uses; each rank would import it anew."""

    def imported_here(_):
        __import__("rankscope.box.pcie")
        mine = set(map(id, gc.get_objects()))  # without what the server froze before it forked
        names = Cluster.__module__, transfer.__name__, "rankscope.box.pcie"
        return [name for name in names if id(vars(sys.modules[name])) in mine]

    assert launch(imported_here, 2, [Cluster.uniform]) == [["rankscope.box.pcie"]] * 2


def test_large_results_tensors_and_classes():
    import torch

    array, tensor = launch(lambda: [np.ones(12_500_000), torch.ones(25_000_000)][functions.rank()], 2)
    assert array.nbytes == 100_000_000
    assert array.sum() == 12_500_000
    assert torch.equal(tensor, torch.ones(25_000_000))
    assert [point.x for point in launch(lambda: functions.Point(functions.rank()), 2)] == [0, 1]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch 2.11, at each of them
def test_tensors_come_as_they_went():
    import torch

    tensors = {
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "turned": torch.arange(6).view(2, 3).T,
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "conjugate": torch.full((2,), 1j, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.ones(3).to_sparse(),
        "bool": torch.tensor([True, False]),
    }
    (returned,) = launch(lambda: tensors, 1)
    assert returned.keys() == tensors.keys()
    for form, tensor in tensors.items():
        back = returned[form]
        kinds = [(type(each), each.dtype, each.layout, each.requires_grad) for each in (tensor, back)]
        assert kinds[0] == kinds[1], form
        assert torch.equal(back.to_dense(), tensor.to_dense()), form


def test_spans_of_all_ranks_lie_on_one_axis():
    recorder = Recorder()
    before = time.perf_counter()
    launch(functions.record, 3, (recorder,))
    spans = list(recorder.timeline())
    assert sorted((span.rank, span.item) for span in spans) == [(r, i) for r in range(3) for i in range(2)]
    assert all(before < span.start_s < span.stop_s < time.perf_counter() for span in spans)
    first = [span for span in spans if span.item == 0]
    assert max(s.start_s for s in first) < min(s.stop_s for s in first), "ranks that wait for each other overlap"
    (timeline,) = launch(recorder.timeline, 1)
    assert isinstance(timeline, Timeline)
    assert list(timeline) == spans


def test_ranks_take_on_the_callers_surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("RANKSCOPE_TEST", "seen")
    monkeypatch.chdir(tmp_path)
    found = launch(functions.surroundings, 2)
    cores = len(os.sched_getaffinity(0))
    for each in found:
        assert (each["threads"], each["setting"]) == (max(1, cores // 2), "seen")
        assert (each["folder"], each["argv"]) == (str(tmp_path), sys.argv)
    assert found[0]["random"] != found[1]["random"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net")
def test_nothing_listens_but_on_loopback():
    addresses = {address for each in launch(functions.listening, 3) for address in each}
    assert addresses, "ranks do listen to each other"
    assert addresses <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def test_a_ddp_module_that_outlives_its_group_does_not_hang():
    for _ in range(3):
        assert launch(functions.train, 2) == [48.0, 48.0]


# ---- failures


def test_a_rank_that_raises_is_shown_with_its_traceback(tmp_path):
    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'lost'") as caught:
        launch(functions.raise_on, 3, (1, str(tmp_path)))
    assert caught.value.rank == 1
    assert 'raise KeyError("lost")' in str(caught.value)
    assert "rank.py" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert not any(map(alive, functions.noted(tmp_path))), "all have ended when launch has"


def test_a_killed_rank_is_named_at_once_each_time(tmp_path, monkeypatch):
    """No wait that only a deadline ends: each would take longer than this test may."""
    monkeypatch.setattr(launching, "_GONE_S", 1000.0)
    monkeypatch.setattr(pool, "_STOP_S", 1000.0)
    monkeypatch.setattr(pool, "_CHECK_S", 1000.0)
    launch(functions.rank, 3)
    for turn in range(6):  # the campaign kills many more
        start = time.monotonic()
        with pytest.raises(RankError, match=f"rank {turn % 3} .* was killed by SIGKILL before it returned") as caught:
            launch(functions.killed, 3, (turn % 3, str(tmp_path)))
        assert time.monotonic() - start < 500
        assert caught.value.rank == turn % 3
        assert not any(map(alive, functions.noted(tmp_path)))


def test_a_killed_rank_is_named_also_where_its_peers_error_is_told_first():
    """The server, which tells of deaths, is stopped for a while, as it is where others have the cores."""
    launch(functions.rank, 2)
    server = server_pid()

    def go_on():
        assert soon(lambda: host.is_stopped(server))
        time.sleep(1.0)  # in which the other rank's error comes
        os.kill(server, signal.SIGCONT)

    thread = threading.Thread(target=go_on)
    thread.start()
    with pytest.raises(RankError, match="rank 0 .* was killed by SIGKILL before it returned"):
        launch(functions.killed_unheard, 2)
    thread.join()


def test_a_stopped_rank_is_named_at_the_timeout_each_time(tmp_path):
    launch(functions.rank, 2)
    for turn in range(4):
        start = time.monotonic()
        stop = (turn % 2, str(tmp_path), signal.SIGSTOP)
        said, rank = late(f"rank {turn % 2} is stopped", functions.killed, stop, 0.25)
        assert time.monotonic() - start >= 0.25
        assert rank == turn % 2
        assert "ranks 0, 1 have not returned after" in said
        assert not any(map(alive, functions.noted(tmp_path)))


def test_a_stuck_rank_tells_where_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "_STACKS_S", NOT_HANGING_S)
    stands = r"rank {} stands at\n.*in wait_long\n    time.sleep\(600\)"
    said, _ = late(f"(?s){stands.format(0)}.*{stands.format(1)}", functions.wait_long, (str(tmp_path),), 1.0)
    assert "ranks 0, 1 have not returned after" in said


def test_a_rank_that_leaves_is_named():
    with pytest.raises(RankError, match="rank 1 .* ended with exit code 3 before it returned"):
        launch(functions.leave, 2, (3,))
    with pytest.raises(RankError, match="rank 0 failed: SystemExit: 4"):
        launch(sys.exit, 1, (4,))


def test_an_error_before_ranks_connect_is_shown_with_its_traceback():
    def enter(rank: int) -> None:
        raise ConnectionError(f"no network {rank}")

    with pytest.raises(RankError, match=r"(?s)rank ([01]) failed: ConnectionError: no network \1\n\n.*in enter"):
        launching.launch_after(enter, 2, functions.rank)


def test_what_a_rank_has_started_ends_with_it(tmp_path):
    launch(functions.start_a_process, 2, (str(tmp_path),))
    assert len(functions.noted(tmp_path)) == 2
    assert gone(functions.noted(tmp_path))


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"lock=<.*, which fn=.*<lambda> uses, cannot be sent to another .*TypeError"):
        launch(lambda: lock, 2)
    with pytest.raises(ValueError, match=r"args\[1\]=<.* cannot be sent to another process: TypeError"):
        launch(functions.total, 2, (1, lock))
    with pytest.raises(RankError, match="rank 0 failed: what fn returned cannot be sent back: TypeError"):
        launch(threading.Lock, 1)


def test_an_error_that_cannot_be_sent_comes_as_text():
    def fail():
        error = OSError("full")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(RankError, match="rank 0 failed: OSError: full") as caught:
        launch(fail, 1)
    assert caught.value.__cause__ is None


def test_a_module_that_ranks_cannot_import_is_named(monkeypatch):
    import types

    module = types.ModuleType("made_here")
    exec("def work(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "made_here", module)
    with pytest.raises(ValueError, match="cannot be loaded in the ranks: ModuleNotFoundError: .*made_here"):
        launch(module.work, 1)


BAD = [
    ({"num_ranks": 0}, "num_ranks must be a whole number from 1 to 256, got 0"),
    ({"num_ranks": 257}, "num_ranks must be a whole number from 1 to 256, got 257"),
    ({"num_ranks": None}, "num_ranks must be a whole number from 1 to 256, got None"),
    ({"num_ranks": 1.5}, "num_ranks must be a whole number from 1 to 256, got 1.5"),
    ({"fn": 3}, "fn must be a function, got 3"),
    ({"args": 3}, "args must be a tuple .*, got 3"),
    ({"args": "ab"}, "args must be a tuple .*, got 'ab'"),
    ({"backend": "tcp"}, "backend must be one of 'gloo', 'nccl', 'mpi', got 'tcp'"),
    ({"progress": 1}, "progress must be True or False, got 1"),
    *(({"timeout_s": bad}, "timeout_s must be a finite number above 0") for bad in (0, -1, float("nan"), "1", None)),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        launch(**{"fn": functions.rank, "num_ranks": 2, **arguments})


def test_backends_that_are_not_there():
    import torch.distributed as dist

    if not dist.is_mpi_available():
        with pytest.raises(ValueError, match="backend='mpi' needs a torch that was built with MPI"):
            launch(functions.rank, 2, backend="mpi")
    if not dist.is_nccl_available():
        with pytest.raises(ValueError, match="backend='nccl' needs a torch that was built with NCCL"):
            launch(functions.rank, 2, backend="nccl")


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_num_ranks_must_be_as_many_as_mpirun_started(monkeypatch, name):
    import torch.distributed as dist

    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "2")
    monkeypatch.setattr(dist, "is_mpi_available", lambda: True)
    with pytest.raises(ValueError, match=f"num_ranks must be None or {name}=2 under mpirun, got 3"):
        launch(functions.rank, 3, backend="mpi")


@pytest.mark.gpu
def test_nccl_has_a_gpu_for_each_rank():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    gpus = torch.cuda.device_count()

    def total():
        tensor = torch.ones(4, device="cuda") * functions.rank()
        torch.distributed.all_reduce(tensor)
        return tensor.device.index, tensor.sum().item()

    expected = 4.0 * sum(range(gpus))
    for _ in range(2):
        assert launch(total, gpus, backend="nccl") == [(rank, expected) for rank in range(gpus)]
    with pytest.raises(ValueError, match=f"num_ranks must be at most {gpus} with backend='nccl'.* got {gpus + 1}"):
        launch(total, gpus + 1, backend="nccl")


# ---- what ranks print


def test_printed_lines_come_by_rank_at_the_end(capfd):
    launch(functions.say, 2)
    out, err = capfd.readouterr()
    lines = [f"[rank {r}] {line}" for r in range(2) for line in (f"line of {r}", "second line", "no end")]
    assert out.splitlines() == lines
    assert err.splitlines() == [f"[rank {r}] warning of {r}" for r in range(2)]


def test_what_was_printed_before_a_failure_is_shown(capsys, tmp_path):
    with pytest.raises(RankError, match="rank 1 failed"):
        launch(functions.say_and_fail, 2)
    assert capsys.readouterr().out == "[rank 0] waiting\n[rank 1] waiting\n"


def test_progress_shows_lines_as_they_come(monkeypatch, tmp_path):
    """The ranks go on only once their first lines, and a word on how far they are, have been shown."""
    mark, seen, told = tmp_path / "seen", [], []

    def twice():
        print("early")
        while not mark.exists():
            time.sleep(0.01)
        print("late")

    def shown(place, text):
        place.append(text)
        if "".join(seen).count("early\n") == 2 and "launch: 0 of 2 ranks after" in "".join(told):
            mark.touch()

    monkeypatch.setattr(sys.stdout, "write", lambda text: shown(seen, text))
    monkeypatch.setattr(sys.stderr, "write", lambda text: shown(told, text))
    launch(twice, 2, progress=True)
    assert sorted("".join(seen).splitlines()) == [f"[rank {r}] {word}" for r in range(2) for word in ("early", "late")]
    assert re.search(r"launch: 0 of 2 ranks after \d+ s\n", "".join(told))


# ---- processes around it


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an open() that it interrupts
def test_ctrl_c_ends_all_ranks(tmp_path):
    launch(functions.rank, 2)
    gc.collect()  # what an interrupt raises in the middle of a finaliser is dropped by Python
    for delay in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3):
        for path in tmp_path.iterdir():
            path.unlink()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            launch(functions.wait_long, 2, (str(tmp_path),))
        assert gone(functions.noted(tmp_path))
    assert launch(functions.total, 2) == [1, 1]
    gc.collect()  # a pool that an interrupt kept from being entered goes with what was raised


def test_launches_from_several_threads():
    found: dict[int, list[int]] = {}

    def work(base: int) -> None:
        found[base] = launch(functions.total, 2, (base,))

    threads = [threading.Thread(target=work, args=(base,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {base: [2 * base + 1] * 2 for base in range(4)}


def test_where_the_server_is_killed_the_ranks_end_and_another_starts(tmp_path):
    launch(functions.rank, 2)
    server = server_pid()

    def kill():
        if soon(lambda: len(functions.noted(tmp_path)) == 2):
            os.kill(server, signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(RuntimeError, match=r"the server that forks the workers \(pid \d+\) was killed by SIGKILL"):
        launch(functions.wait_long, 2, (str(tmp_path),))
    assert gone(functions.noted(tmp_path))
    assert launch(functions.total, 2) == [1, 1]


@pytest.mark.oracle
def test_a_server_that_is_stopped_is_an_error_and_another_starts(monkeypatch):
    launch(functions.rank, 2)
    monkeypatch.setattr(pool, "_CHECK_S", 0.2)
    os.kill(server_pid(), signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=r"the server that forks the workers is stopped \(SIGSTOP\)"):
        launch(functions.rank, 2)
    monkeypatch.setattr(pool, "_CHECK_S", 5.0)
    assert launch(functions.total, 2) == [1, 1]


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "script.py"
    path.write_text(text)
    return [sys.executable, str(path)]


ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'lib'}", "PYTHONWARNINGS": "error"}


def test_a_script_needs_no_guard_and_where_it_is_killed_all_ends(tmp_path):
    command = script(
        tmp_path,
        """
import sys
import torch
import torch.distributed as dist
from tests.ranks import functions
from rankscope.ranks import launch
from rankscope.ranks import fork_server
BASE = 10
class Sum:
    def __init__(self, value): self.value = value
def work(extra):
    tensor = torch.tensor([BASE + extra + dist.get_rank()])
    dist.all_reduce(tensor)
    print("said")
    return Sum(tensor.item())
results = launch(work, 2, (5,))
assert all(isinstance(each, Sum) for each in results)
print([each.value for each in results], fork_server._current.pid, flush=True)
launch(functions.wait_long, 2, (sys.argv[1],))
""",
    )
    folder, place = tmp_path / "pids", tmp_path / "place"
    folder.mkdir(), place.mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(place)}
    with subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE, text=True, env=environment) as caller:
        assert caller.stdout
        lines = [caller.stdout.readline() for _ in range(3)]
        assert lines[:2] == ["[rank 0] said\n", "[rank 1] said\n"]
        assert lines[2].startswith("[31, 31] ")
        assert soon(lambda: len(functions.noted(folder)) == 2)
        caller.kill()
    assert gone([int(lines[2].split()[-1]), *functions.noted(folder)])
    assert soon(lambda: not list(place.glob("rankscope-*"))), "nothing is left in the temporary folder"


@pytest.mark.oracle
def test_a_fork_of_the_caller_has_its_own_server_and_holds_nobody(tmp_path):
    command = script(
        tmp_path,
        """
import multiprocessing, os, signal, sys, time, warnings
from tests.ranks import functions
from rankscope.ranks import launch
from rankscope.ranks import fork_server
warnings.simplefilter("ignore", DeprecationWarning)
def child(queue):
    queue.put((launch(functions.total, 2), fork_server._current.pid))
assert launch(functions.total, 2) == [1, 1]
ours = fork_server._current.pid
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=child, args=(queue,))
process.start()
found, theirs = queue.get()
process.join()
assert found == [1, 1] and theirs != ours, (found, theirs, ours)
assert launch(functions.total, 2) == [1, 1] and fork_server._current.pid == ours
pid = os.fork()  # holds our sockets, and goes on after us
if pid == 0:
    time.sleep(60)
    os._exit(0)
print(pid, ours, theirs, flush=True)
""",
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as run:
        assert run.stdout
        line = run.stdout.readline()
        assert line, run.stderr and run.stderr.read()
        held, ours, theirs = map(int, line.split())
        try:
            assert run.wait(NOT_HANGING_S) == 0
            assert gone([ours, theirs])
        finally:
            os.kill(held, signal.SIGKILL)


@pytest.mark.oracle
def test_a_cell_of_a_notebook_launches_its_own_functions(tmp_path):
    """`make test` runs the cells of the notebooks that launch ranks."""
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import torch, torch.distributed as dist\nfrom rankscope.ranks import launch",
        "offset = 7\ndef work(x):\n    print('at', dist.get_rank())\n    return offset + x * dist.get_rank()",
        "launch(work, 3, (10,))",
        "def wrong():\n    raise ValueError('in a cell')",
        "try:\n    launch(wrong, 2)\nexcept Exception as error:\n    print(error)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    patience = {"timeout": 400, "startup_timeout": 400}
    NotebookClient(notebook, **patience, resources={"metadata": {"path": str(tmp_path)}}).execute()
    stream, result = notebook.cells[2].outputs
    assert stream["text"] == "[rank 0] at 0\n[rank 1] at 1\n[rank 2] at 2\n"
    assert result["data"]["text/plain"] == "[7, 17, 27]"
    assert "raise ValueError('in a cell')" in notebook.cells[4].outputs[0]["text"]


# ---- under torchrun

JOINED = """
import os
from tests.ranks import functions
from rankscope.ranks import RankError, launch
first = launch(functions.total, None, (10,))
second = launch(functions.rank, int(os.environ["WORLD_SIZE"]))
try:
    launch(functions.rank, 3)
except ValueError as error:
    problem = str(error)
try:
    launch(functions.lose, 2)
except RankError as error:
    assert error.rank == int(os.environ["RANK"]), error
    assert ("KeyError: 'lost'" in str(error)) == (error.rank == 1), error
assert launch(functions.rank, 2) == [0, 1]
text = f"{os.environ['GROUP_RANK']} {first} {second} {problem}"
open(os.path.join(os.environ["PLACE"], os.environ["RANK"]), "w").write(text)
"""


def torchrun(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**ENVIRONMENT, "PLACE": str(tmp_path / "out"), "GLOO_SOCKET_IFNAME": "lo"}
    environment.pop("PYTHONWARNINGS")
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(tmp_path / "script.py")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("num_nodes", first_in_test(1, [1, 2]))
def test_processes_of_torchrun_are_the_ranks(tmp_path, num_nodes):
    script(tmp_path, JOINED)
    (tmp_path / "out").mkdir()
    if num_nodes == 1:
        runs = [torchrun(tmp_path, "--standalone", "--nproc-per-node", "2")]
    else:
        port = str(free_port())
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
        runs = [torchrun(tmp_path, *where, "--node-rank", str(node)) for node in range(2)]
    try:
        for run in runs:
            said = run.communicate(timeout=4 * NOT_HANGING_S)[0]
            assert run.returncode == 0, said
    finally:
        for run in runs:
            run.kill()
    for rank in range(2):
        node, _, rest = (tmp_path / "out" / str(rank)).read_text().partition(" ")
        assert int(node) == (rank if num_nodes == 2 else 0)
        assert rest == "[21, 21] [0, 1] num_ranks must be None or WORLD_SIZE=2 under torchrun, got 3"
