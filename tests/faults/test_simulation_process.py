"""A simulation's process that dies, babbles, or leaves others behind: what whoever started it sees and does."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time  # real processes take real time

import pytest

from coordinator import simulation_process
from coordinator.simulation import Broken
from coordinator.simulation_process import SimulationProcess, processes_of
from federation.edge.clock import SystemClock
from federation.errors import OutOfOrder
from tests.support.plans import a_plan
from tests.support.virtual_engine import a_small_contract, an_order

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

BROKEN = r"""print('{"say":"broken","code":"CFD-J11","message":"m","hint":"h"}', flush=True)"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a process that runs other code in place of the simulation."""
    modules = tmp_path / "modules"
    modules.mkdir()
    built = simulation_process.environment
    monkeypatch.setattr(simulation_process, "MODULE", "stand_in")
    monkeypatch.setattr(
        simulation_process,
        "environment",
        lambda variables, **more: {
            **built(variables, **more),
            "PYTHONPATH": os.pathsep.join([str(modules), built(variables, **more)["PYTHONPATH"]]),
        },
    )

    def started(code):
        (modules / "stand_in.py").write_text(textwrap.dedent(code))
        order = an_order(a_plan(), a_small_contract(), tmp_path / "run")
        return SimulationProcess(order, variables=os.environ, log=tmp_path / "log", clock=SystemClock())

    return started


def wait_for(path):
    until = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return path.read_text()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import sys; sys.exit(700 % 256)", "without a result .status 188"),
        ("import os; os._exit(0)", "without a result .status 0"),
        ("import os; os.kill(os.getpid(), 9)", "without a result .status -9"),
        ("print('Ray says hello', flush=True)", "isn't understood"),
        ("import sys; sys.stdout.buffer.write(b'\\xff' * (9 << 20)); sys.stdout.flush()", "isn't understood"),
        ("raise RuntimeError('patient 4711')", "without a result .status 1"),
    ],
)
def test_a_simulation_that_dies_or_babbles_is_an_error_of_its_own_code(start, code, what):
    with pytest.raises(OutOfOrder, match=what) as found, start(code) as process:
        list(process.lines())
    assert found.value.code == "CFD-J12"
    assert "4711" not in str(found.value)


def test_what_libraries_print_is_in_the_log_and_no_line(start, tmp_path):
    code = """
        from coordinator.simulation_process import Voice
        from federation.edge.clock import SystemClock
        voice = Voice(SystemClock())
        assert voice.order().startswith(b'{"job"')
        print("Ray says hello", flush=True)
        import os
        os.write(1, b"and C++ too")
        from coordinator.simulation import Broken
        voice.say(Broken(code="CFD-J11", message="m", hint="h"))
    """
    with start(code) as process:
        assert list(process.lines()) == [Broken(code="CFD-J11", message="m", hint="h")]
    assert (tmp_path / "log").read_text() == "Ray says hello\nand C++ too"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_every_process_that_is_left_behind_is_ended_by_its_id(start, tmp_path):
    # One stays in the session and ignores a request to end; one leaves the session; one overwrites its environment.
    code = f"""
        import os, signal, subprocess, sys
        ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
        first = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE)
        first.stdout.readline()
        second = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        third = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={{"PATH": "/bin"}})
        with open({str(tmp_path / "ids")!r}, "w") as sink:
            sink.write(f"{{first.pid}} {{second.pid}} {{third.pid}}")
        {BROKEN}
        os._exit(0)
    """
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        process = start(code)
        list(process.lines())
        left = {int(number) for number in wait_for(tmp_path / "ids").split()}
        assert left <= set(process.processes())
        process.end(patience_s=0.2)
        assert process.processes() == []
        assert processes_of(process.pid, process.mark) == []
        assert mine.poll() is None  # nobody else's process was touched
    finally:
        mine.kill()
        mine.wait()


def test_a_simulation_ends_when_whoever_started_it_is_gone_and_nothing_of_it_stays(start, tmp_path):
    code = f"""
        import os, subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        from coordinator.simulation_process import Voice
        from federation.edge.clock import SystemClock
        voice = Voice(SystemClock())
        voice.order()
        voice.end_with_parent(())
        with open({str(tmp_path / "ids")!r}, "w") as sink:
            sink.write(str(os.getpid()))
        time.sleep(600)
    """
    process = start(code)
    wait_for(tmp_path / "ids")
    process._process.stdin.close()  # as the kernel does when that process dies
    process.end(patience_s=10)  # waits, without a signal of its own
    assert process._process.returncode == 0
    assert processes_of(process.pid, process.mark) == []


def test_the_folders_of_a_simulation_whose_starter_is_dead_are_removed(start, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    code = f"""
        import os, sys, time
        from coordinator.simulation_process import Voice
        from federation.edge.clock import SystemClock
        read, write = os.pipe()
        if os.fork():  # this process dies, and its child is left with a pipe that closes
            os._exit(0)
        os.dup2(read, 0)
        voice = Voice(SystemClock())
        voice._parent = -1  # whoever started it
        voice.end_with_parent(({str(folder)!r},))
        os.close(read)
        os.close(write)
        time.sleep(600)
    """
    process = start(code)
    until = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    process.end(patience_s=10)


def test_a_process_that_ends_by_itself_is_left_to_it(start, tmp_path):
    code = f"""
        import os, time
        from coordinator.simulation_process import Voice
        from federation.edge.clock import SystemClock
        voice = Voice(SystemClock())
        voice.order()
        voice.end_with_parent(())
        from coordinator.simulation import Broken
        voice.say(Broken(code="CFD-J11", message="m", hint="h"))
        time.sleep(1)
        open({str(tmp_path / "ended")!r}, "w").write("in order")
    """
    with start(code) as process:
        list(process.lines())
    assert (tmp_path / "ended").read_text() == "in order"
    assert process._process.returncode == 0


def test_a_network_of_its_own_has_loopback_and_nothing_else(start, tmp_path):
    possible = subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True).returncode == 0
    code = f"""
        import json, socket
        from coordinator.simulation_process import go_alone
        alone = go_alone()
        names = [name for _, name in socket.if_nameindex()]
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        open({str(tmp_path / "network")!r}, "w").write(json.dumps([alone, names]))
        {BROKEN}
    """
    with start(code) as process:
        list(process.lines())
    alone, names = json.loads((tmp_path / "network").read_text())
    assert alone == possible
    assert not alone or names == ["lo"]


def test_a_kernel_that_refuses_leaves_the_process_where_it_was(start, tmp_path):
    code = f"""
        import socket
        from coordinator import simulation_process
        def refuses():
            raise OSError(1, "unshare")
        simulation_process._enter_own_network = refuses
        before = socket.if_nameindex()
        alone = simulation_process.go_alone()
        open({str(tmp_path / "network")!r}, "w").write(str((alone, socket.if_nameindex() == before)))
        {BROKEN}
    """
    with start(code) as process:
        list(process.lines())
    assert (tmp_path / "network").read_text() == "(False, True)"


def test_an_interrupt_ends_everything_without_patience(start, tmp_path):
    code = f"""
        import time
        open({str(tmp_path / "ids")!r}, "w").write("there")
        time.sleep(600)
    """
    begun = time.monotonic()
    process = start(code)

    def interrupted():
        with process:
            wait_for(tmp_path / "ids")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert process.processes() == []
    assert process._process.returncode == -signal.SIGTERM
    assert time.monotonic() - begun < 100  # it sleeps 600 s
