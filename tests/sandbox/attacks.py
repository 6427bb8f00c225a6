"""Programs that pass only if they break out or cheat. Upper-case words in @...@ are filled in by `attack_host.py`.

Whether the host was touched is checked there too: an attack that fails loudly and still deletes a file is a breach.
"""

# These run until they are stopped.
ENDLESS = ("endless_loop", "endless_sleep", "fork_bomb", "flood")

ATTACKS = {
    # A pass without reaching the end.
    "sys_exit": "import sys; sys.exit(0)",
    "system_exit": "raise SystemExit",
    "os_exit": "import os; os._exit(0)",
    "closed_stdout": "import os, sys; os.close(1); os.close(2); sys.exit(0)",
    "exec_true": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "kill_itself": "import os; os.kill(os.getpid(), 9); os.abort()",
    "thread_exits": "import os, threading, time; threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(5)",
    "exception_that_leaves": """
import os
class Leave(Exception):
    def __str__(self):
        os._exit(0)
raise Leave
""",
    "claims_on_every_descriptor": """
import os
for fd in range(3, 300):
    try:
        os.write(fd, b"ready\\npassed\\n" + b"x" * 4000)
    except OSError:
        pass
os._exit(0)
""",
    "echoes_every_descriptor": """
import os
for fd in range(64):
    try:
        os.set_blocking(fd, False)
        os.write(63, os.read(fd, 4096))
    except OSError:
        pass
os._exit(0)
""",
    "replaced_builtins": """
import builtins, os, sys
builtins.exec = builtins.compile = builtins.BaseException = print
os._exit, sys.exit = (lambda code: None), (lambda code: None)
builtins.AssertionError = SystemExit
assert False
""",
    "frames_and_heap": """
import gc, os, sys
found, frame = [], sys._getframe()
while frame:
    found += [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]
    frame = frame.f_back
for thing in gc.get_objects():
    found += [x for x in gc.get_referents(thing) if isinstance(x, (bytes, bytearray))]
for thing in list(found):
    if isinstance(thing, (list, tuple, set)):
        found += thing
for thing in found:
    if isinstance(thing, (bytes, bytearray)) and len(thing) == 32:
        os.write(63, thing)
os._exit(0)
""",
    "calls_the_witness": """
import sys
frame = sys._getframe(1)
for thing in [*frame.f_locals.values(), *frame.f_globals.values()]:
    if callable(thing) and "end" in getattr(thing, "__name__", ""):
        thing(lambda *a: None, None, None, frame.f_locals["write"], 63, [b""])
sys.exit(0)
""",
    # Resources.
    "endless_loop": "while True: pass",
    "endless_sleep": "import time; time.sleep(1000)",
    "fork_bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "giant_allocation": "x = bytearray(8 * 2**30); assert len(x)",
    "growing_list": "x = []\nwhile True: x.append(bytes(2**26))",
    "deep_recursion": """
import sys
sys.setrecursionlimit(10**9)
class A:
    def __eq__(self, other):
        return self == other
A() == 1
""",
    "parser_bomb": "x = " + "(" * 100_000 + ")" * 100_000,
    "flood": "import sys\nwhile True: sys.stdout.write('x' * 10**6); sys.stderr.write('y' * 10**6)",
    "huge_file": "with open('big', 'wb') as f:\n    for _ in range(256): f.write(b'x' * 2**20)\n    f.flush()",
    "many_descriptors": "fs = [open('/dev/null') for _ in range(1000)]",
    # Files.
    "read_secret": "assert open('@CANARY@').read() == '@SECRET@'",
    "read_password_file": "assert open('/etc/passwd').read()",
    "read_repository": "assert open('@PACKAGE@/runner.py').read()",
    "overwrite": "open('@CANARY@', 'w').write('gone')",
    "truncate": "import os; os.truncate('@CANARY@', 0)",
    "delete": "import os; os.unlink('@CANARY@')",
    "delete_tree": "import shutil; shutil.rmtree('@OUTSIDE@')",
    "delete_repository": "import os; os.unlink('@PACKAGE@/runner.py')",
    "create": "open('@OUTSIDE@/new', 'w').write('x')",
    "create_in_tmp": "open('/tmp/../@OUTSIDE@/new', 'w').write('x')",
    "rename": "import os; open('mine', 'w').close(); os.rename('mine', '@CANARY@')",
    "symlink": "import os; os.symlink('@CANARY@', 'link'); open('link', 'w').write('gone')",
    "symlink_read": "import os; os.symlink('@CANARY@', 'link'); assert open('link').read() == '@SECRET@'",
    "hard_link": "import os; os.link('@CANARY@', 'link'); open('link', 'w').write('gone')",
    "change_mode": "import os; os.chmod('@CANARY@', 0o777)",
    "change_times": "import os; os.utime('@CANARY@', (0, 0))",
    "change_interpreter": "import os, sys; open(os.__file__, 'a').write('#'); open(sys.executable, 'a')",
    "chroot_out": "import os; os.chroot('.'); os.chdir('../../..'); assert open('@CANARY@').read() == '@SECRET@'",
    "raw_disk": "import os; os.mknod('disk', 0o60600, os.makedev(254, 0)); open('disk', 'rb').read(1)",
    # Processes.
    "kill_victim": "import os; os.kill(@VICTIM@, 9)",
    "kill_parent": "import os; assert os.getppid() > 0; os.kill(os.getppid(), 9)",
    "kill_everybody": """
import os
assert not os.path.exists("/proc/1")  # this test must not be the one that kills the machine
if os.fork() == 0:
    os.kill(-1, 9)
assert False
""",
    "kill_by_pipe": """
import fcntl, os, time
r, w = os.pipe()
fcntl.fcntl(r, 10, 9)
fcntl.fcntl(r, fcntl.F_SETOWN, @VICTIM@)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b"x")
""",
    "limit_victim": "import resource; resource.prlimit(@VICTIM@, resource.RLIMIT_CPU, (0, 0))",
    "ptrace_victim": "import ctypes; assert ctypes.CDLL(None).ptrace(16, @VICTIM@, 0, 0) == 0",
    "read_environment": "assert b'@SECRET@' in open('/proc/@HOST@/environ', 'rb').read()",
    "read_memory": "open('/proc/@HOST@/mem', 'rb')",
    "new_user_namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "clone_user_namespace": "import ctypes; assert ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0) >= 0",
    "daemon": """
import os, time
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
time.sleep(600)
""",
    "become_root": "import os; os.setuid(0)",
    # Network, and what was inherited.
    "connect": "import socket; socket.create_connection(('127.0.0.1', @TCP@), timeout=1)",
    "datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP@))",
    "unix_socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0@SECRET@')",
    "environment": "import os; assert dict(os.environ) and '@SECRET@' in str(dict(os.environ))",
    "descriptor": """
import os
for fd in range(3, 300):
    try:
        assert b"@SECRET@" not in os.pread(fd, 4096, 0)
    except OSError:
        pass
    except AssertionError:
        break
else:
    assert False
""",
    "standard_input": "assert input()",
}

ORDINARY = {
    "asserts": "def f(n):\n    return n * f(n - 1) if n else 1\nassert f(5) == 120",
    "imports": """
import math, re, collections, itertools, functools, heapq, typing, string, datetime, sys, os, json, random, decimal
import fractions, statistics, hashlib, zlib, bz2, ctypes, dataclasses, enum, bisect, copy, operator, asyncio
assert datetime.datetime.now().year > 2000 and hashlib.sha256(b"").hexdigest() and math.isqrt(9) == 3
""",
    "main_guard": "if __name__ == '__main__':\n    ok = True\nassert ok",
    "pickles_its_class": "import pickle\nclass A: x = 1\nassert pickle.loads(pickle.dumps(A())).x == 1",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nassert P(1) == P(1)",
    "scratch": "import tempfile\nopen('a', 'w').write('b')\nassert open('a').read() == 'b'\n"
    "with tempfile.NamedTemporaryFile() as f: f.write(b'x')",
    "prints": "for i in range(100000): print(i, '\\u00e9')",
    "threads": """
import threading
threads = [threading.Thread(target=print) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
    "event_loop": "import asyncio\nasync def f(): return 1\nassert asyncio.run(f()) == 1",
    "unicode": "assert len('\u00e9\U0001f600') == 2",
    "thread_left_running": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
    "empty": "",
}

# Namespaces only: where there are none, new processes are refused.
WITH_PROCESSES = {
    "child": """
import os
pid = os.fork()
if pid == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""",
    "subprocess": """
import subprocess, sys
done = subprocess.run([sys.executable, "-I", "-S", "-c", "print(3)"], capture_output=True)
assert done.stdout == b"3\\n", done
""",
    "pool": """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1]) == [1]
""",
    "many_children": """
import os, time
pids = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        pids.append(pid)
except OSError:
    pass
assert 20 < len(pids) < 40, len(pids)
""",
}
