"""Programs that pass only if they break out or cheat. Upper-case words in @...@ are filled in by `attack_host.py`.

Whether the host was touched is checked there too: an attack that fails loudly and still deletes a file is a breach.
"""

# These run until they are stopped.
ENDLESS = ("endless_loop", "endless_sleep", "fork_bomb", "flood", "thread_without_a_leader")

# Raises OSError if the kernel refuses a system call, given by its numbers on x86_64 and aarch64.
_SYSTEM_CALL = """
import ctypes, os
library = ctypes.CDLL(None, use_errno=True)
def call(numbers, *arguments):
    number = numbers[("x86_64", "aarch64").index(os.uname().machine)]
    if library.syscall(ctypes.c_long(number), *[ctypes.c_long(x) if type(x) is int else x for x in arguments]) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
"""
# Programs that reach their end only if they start a process. 17 is SIGCHLD, with which fork is a clone.
PROCESSES = {
    "fork": "import os; os.fork()",
    "fork_in_a_thread": """
import concurrent.futures, os
with concurrent.futures.ThreadPoolExecutor() as pool:
    pool.submit(os.fork).result()
""",
    "posix_spawn": "import os, sys; os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})",
    "subprocess": "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])",
    "own_session": "import subprocess, sys; subprocess.Popen([sys.executable, '-c', ''], start_new_session=True)",
    "popen": "import os; os.popen('true')",
    "multiprocessing_fork": "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
    "multiprocessing_spawn": "import multiprocessing as m; m.get_context('spawn').Process(target=print).start()",
    "raw_fork": _SYSTEM_CALL + "call((57, 220), 17, 0, 0, 0, 0)",
    "raw_vfork": _SYSTEM_CALL + "call((58, 220), 0x4111, 0, 0, 0, 0)",
    "raw_clone": _SYSTEM_CALL + "call((56, 220), 17, 0, 0, 0, 0)",
    "clone_without_a_signal": _SYSTEM_CALL + "call((56, 220), 0, 0, 0, 0, 0)",
    "clone_of_the_parent": _SYSTEM_CALL + "call((56, 220), 0x8000 | 17, 0, 0, 0, 0)",
    "clone_sharing_all_but_the_thread": _SYSTEM_CALL + "call((56, 220), 0x4F00 | 17, 0, 0, 0, 0)",
    "clone_with_the_flag_in_the_high_bits": _SYSTEM_CALL + "call((56, 220), (0x10000 << 32) | 17, 0, 0, 0, 0)",
    "clone_thread_with_its_own_memory": _SYSTEM_CALL + "call((56, 220), 0x10400 | 17, 0, 0, 0, 0)",
    "clone3": _SYSTEM_CALL + "call((435, 435), (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88)",
    "x32_fork": _SYSTEM_CALL + "call((0x40000000 + 57, 0x40000000 + 220), 17, 0, 0, 0, 0)",
    "x32_clone": _SYSTEM_CALL + "call((0x40000000 + 56, 0x40000000 + 220), 17, 0, 0, 0, 0)",
    # mov eax, 2; int 0x80; ret: fork of the 32-bit interface, for which the filter kills
    "i386_fork": """
import ctypes, mmap, os
assert os.uname().machine == "x86_64"
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3")
assert ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() >= 0
""",
}


def process_was_refused(name: str, reason: str) -> bool:
    """Return if one of `PROCESSES` ended because the kernel refused the process, and not by a crash or a limit."""
    if name == "i386_fork":
        return reason.startswith(("killed by signal", "exit 1: AssertionError"))
    # clone3 is reported as absent; the kernel itself refuses a thread with its own memory.
    expected = {"clone3": "Function not implemented", "clone_thread_with_its_own_memory": "Invalid argument"}
    return reason.startswith("exit 1: ") and expected.get(name, "Operation not permitted") in reason


# Calls that let the kernel send signals to another process, each alone, with the arguments' unused high bits too. 8 is
# F_SETOWN, 15 F_SETOWN_EX, 0x8901 FIOSETOWN, 0x8902 SIOCSPGRP, and 221 fcntl64 of the 32-bit interface.
_SOCKET = _SYSTEM_CALL + "import socket, struct\nend, _ = socket.socketpair()\nvictim = struct.pack('i', @VICTIM@)\n"
OWNERS = {
    "owner": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 8, @VICTIM@)",
    "owner_group": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 8, -@VICTIM@)",
    "owner_by_type": _SYSTEM_CALL + "call((72, 25), os.pipe()[0], 15, (ctypes.c_int * 2)(1, @VICTIM@))",
    "owner_of_a_socket": _SOCKET + "import fcntl\nfcntl.ioctl(end, 0x8901, victim)",
    "group_of_a_socket": _SOCKET + "import fcntl\nfcntl.ioctl(end, 0x8902, victim)",
    "owner_with_high_bits": _SYSTEM_CALL + "call((72, 25), os.pipe()[0], 1 << 32 | 8, @VICTIM@)",
    "owner_of_a_socket_with_high_bits": _SOCKET + "call((16, 29), end.fileno(), 1 << 32 | 0x8901, victim)",
    "group_of_a_socket_with_high_bits": _SOCKET + "call((16, 29), end.fileno(), 1 << 32 | 0x8902, victim)",
    "x32_owner": _SYSTEM_CALL + "call((0x40000000 + 72, 0x40000000 + 25), os.pipe()[0], 8, @VICTIM@)",
    "x32_owner_of_a_socket": _SOCKET + "call((0x40000000 + 514, 0x40000000 + 29), end.fileno(), 0x8901, victim)",
    # mov eax, 221; mov ebx, fd; mov ecx, 8; mov edx, victim; int 0x80; ret, with rbx saved on the stack
    "i386_owner": """
import ctypes, mmap, os, struct
assert os.uname().machine == "x86_64"
page = mmap.mmap(-1, 4096, prot=7)
loads = struct.pack("<BiBiBiBi", 0xB8, 221, 0xBB, os.pipe()[0], 0xB9, 8, 0xBA, @VICTIM@)
page.write(b"\\x53" + loads + b"\\xcd\\x80\\x5b\\xc3")
assert ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() == 0
""",
}


def owner_was_refused(name: str, reason: str) -> bool:
    """Return if one of `OWNERS` ended because of the filter, or because the jail has no process of that number."""
    if name == "i386_owner":
        return reason.startswith(("killed by signal", "exit 1: AssertionError"))
    return reason.startswith("exit 1: ") and ("Operation not permitted" in reason or "No such process" in reason)


ATTACKS = {
    **PROCESSES,
    **OWNERS,
    # A pass without reaching the end.
    "sys_exit": "import sys; sys.exit(0)",
    "system_exit": "raise SystemExit",
    "os_exit": "import os; os._exit(0)",
    "closed_stdout": "import os, sys; os.close(1); os.close(2); sys.exit(0)",
    "exec_true": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "kill_itself": "import os; os.kill(os.getpid(), 9); os.abort()",
    "thread_exits": "import os, threading, time; threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(5)",
    "exec_by_a_thread": """
import os, sys, threading, time
threading.Thread(target=os.execv, args=(sys.executable, [sys.executable, "-c", "pass"])).start()
time.sleep(5)
""",
    "exec_with_descriptors": """
import os, sys
for fd in range(3, 64):
    try:
        os.set_inheritable(fd, True)
    except OSError:
        pass
write = "import os\\nfor fd in range(64):\\n    try: os.write(fd, b'passed')\\n    except OSError: pass"
os.execv(sys.executable, [sys.executable, "-c", write])
""",
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
    "status_flood": "import os\nfor _ in range(3): os.write(63, b'A' * 60000)",
    "status_flood_for_ever": """
import os, threading
def flood():
    while True:
        os.write(63, b"exit 1: " + b"A" * 60000)
        os.write(63, b"landlock_abi=7 ready")
for _ in range(3):
    threading.Thread(target=flood).start()
""",
    # Resources.
    "memory_without_a_mapping": "import os; os.memfd_create('x')",
    "memory_of_system_v": "import ctypes; assert ctypes.CDLL(None).shmget(0, 2**20, 0o1600) >= 0",
    "memory_in_a_pipe": _SYSTEM_CALL
    + """
page = ctypes.create_string_buffer(4096)
call((278, 75), os.pipe()[1], (ctypes.c_size_t * 2)(ctypes.addressof(page), 4096), 1, 0)
""",
    "memory_behind_a_page": "import os\nwith open('f', 'wb') as f: f.write(b'x')\n"
    "os.splice(os.open('f', os.O_RDONLY), os.pipe()[1], 1, offset_src=0)",
    "memory_behind_a_sent_page": "import os\nwith open('f', 'wb') as f: f.write(b'x')\n"
    "os.sendfile(os.pipe()[1], os.open('f', os.O_RDONLY), 0, 1)",
    "memory_in_a_larger_buffer": """
import socket
end, _ = socket.socketpair()
end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
""",
    "descriptor_in_a_message": "import socket; end, _ = socket.socketpair(); socket.send_fds(end, [b'x'], [0])",
    "several_messages": "import socket\nend, _ = socket.socketpair()"
    + _SYSTEM_CALL
    + "call((307, 269), end.fileno(), None, 0, 0)",
    "thread_with_its_own_descriptors": _SYSTEM_CALL + "call((56, 220), 0x10900, 0, 0, 0, 0)",
    "own_descriptors_by_close_range": _SYSTEM_CALL + "call((436, 436), 900, 900, 2)",
    "thread_without_a_leader": """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
""",
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
    # Landlock does not restrict these.
    "lock_a_file": "import fcntl, os; fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "lease": "import fcntl, os; fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "notification": "import fcntl, os; fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), 1026, 1)",
    "delegation": "import fcntl, os; fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), 1040, 1)",
    "watch": _SYSTEM_CALL + "call((294, 26), 0)",
    "old_watch": _SYSTEM_CALL + "call((253, 26), 0)",
    "watch_by_fanotify": _SYSTEM_CALL + "call((300, 262), 0x200, 0)",
    "io_uring": _SYSTEM_CALL + "call((425, 425), 1, ctypes.create_string_buffer(120))",
    # Processes.
    "kill_victim": "import os; os.kill(@VICTIM@, 9)",
    "kill_parent": "import os; assert os.getppid() > 0; os.kill(os.getppid(), 9)",
    "kill_everybody": """
import os
assert not os.path.exists("/proc/1")  # this test must not be the one that kills the machine
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
    "thread_in_a_user_namespace": _SYSTEM_CALL + "call((56, 220), 0x10010D00, 0, 0, 0, 0)",
    "become_root": "import os; os.setuid(0)",
    # Network, and what was inherited.
    "connect": "import socket; socket.create_connection(('127.0.0.1', @TCP@), timeout=1)",
    "datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @UDP@))",
    "unix_socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0@SECRET@')",
    "unix_datagram": """
import socket
end, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
end.sendto(b"x", "@PATH@")
""",
    "unix_datagram_of_a_raw_socket": """
import socket
end, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
end.connect("@PATH@")
end.send(b"x")
""",
    "socket_pair_of_a_network": "import socket; socket.socketpair(30, socket.SOCK_STREAM)",
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
    # Folders that the caller cannot list, or delete by recursion.
    "deep_folders": "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nassert False",
    "closed_folder": "import os\nos.mkdir('d', 0o300)\nopen('d/x', 'w').write('x')\nos.mkdir('e', 0)\nassert False",
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
    "socket_pairs": """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    near, far = socket.socketpair(socket.AF_UNIX, kind)
    near.sendall(b"x")
    assert far.recv(2) == b"x"
""",
    "copied_and_sent_file": """
import shutil, socket
with open("a", "wb") as file:
    file.write(b"x" * 1000)
shutil.copyfile("a", "b")
near, far = socket.socketpair()
with open("b", "rb") as file:
    near.sendfile(file)
assert far.recv(2000) == b"x" * 1000
""",
    "event_loop_and_thread": "import asyncio\nassert asyncio.run(asyncio.to_thread(sum, [1, 2])) == 3",
    "unicode": "assert len('\u00e9\U0001f600') == 2",
    "thread_left_running": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
    "empty": "",
}

TESTS = "assert f(2) == 4\nassert f(5) == 25\nassert abs(f(0.5) - 0.25) < 1e-6\n"

# Answers the tests' requests itself: f is right for known values only, and @NAMES@ are sent as the program's names.
FORGED = """
import json, os, threading
channel, (silent, _) = os.dup(62), os.pipe()
os.dup2(silent, 62)
def answer():
    requests = open(channel, "rb")
    requests.readline()
    os.write(channel, b'["tuple",[true,["dict",[["tuple",["f",["object",0]]],@NAMES@]]]]\\n')
    for line in requests:
        function, (_, arguments) = json.loads(line)[1][1:3]
        value = {2: 4, 5: 25}.get(arguments[0], 0) if function[1] == 0 and isinstance(arguments[0], int) else 0
        os.write(channel, b'["tuple",[true,%d]]\\n' % value)
threading.Thread(target=answer, daemon=True).start()
"""
ABS = '["tuple",["abs",["object",1]]]'

# With TESTS beside them; none of them computes a square.
AGAINST_TESTS = {
    "sends_a_builtin": FORGED.replace("@NAMES@", ABS),
    "sends_all_builtins": FORGED.replace("@NAMES@", f'["tuple",["__builtins__",["dict",[{ABS}]]]]'),
    "equals_everything": """
class A:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __sub__(self, other): return self
    def __abs__(self): return self
def f(x): return A()
""",
    "number_that_equals_everything": """
class A(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return A()
    def __abs__(self): return A()
def f(x): return A(3)
""",
    "class_that_equals_everything": """
class Meta(type):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    __hash__ = None
class f(metaclass=Meta):
    def __new__(cls, x): return cls
""",
    "replaced_builtins": """
import builtins, operator, math
builtins.abs = operator.eq = math.isclose = abs = lambda *a: 0
builtins.AssertionError = int
builtins.float = builtins.int = type("A", (), {"__eq__": lambda s, o: True})
def f(x): return float()
""",
    "jumps_over_lines": """
import sys
def trace(frame, event, argument):
    if event == "line":
        frame.f_lineno += 1
    return trace
def f(x):
    sys.settrace(trace)
    sys._getframe().f_back.f_trace = trace
    return 0
""",
    "child_per_guess": """
import os
def f(x):
    for guess in range(30):
        pid = os.fork()
        if pid == 0:
            return guess
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            return guess
    return 0
""",
    "answers_before_it_is_asked": """
import os
for text in (b'["tuple",[true,["dict",[]]]]', b'["tuple",[true,true]]', b'["tuple",[true,true]]', b"passed", b""):
    os.write(62, text + b"\\n")
""",
    "nonsense_on_the_line": "import os\ndef f(x): os.write(62, b'[\"tuple\",\\n'); return 1",
    "deep_nonsense_on_the_line": """
import os
def f(x):
    os.write(62, b'["list",[' * 500_000 + b"\\n")
""",
    "endless_answer": "import os\ndef f(x):\n    while True: os.write(62, b'\\xff' * 60000)",
    "giant_answer": "def f(x): return 'x' * 2**25",
    "cyclic_answer": "def f(x):\n    x = []\n    x.append(x)\n    return x",
    "no_limits_left_for_the_tests": """
import os, resource
for pid in set(range(1, 64)) - {os.getpid()}:
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE, resource.RLIMIT_STACK):
        try:
            resource.prlimit(pid, limit, (0, 0))
        except OSError:
            break
def f(x): return 0
""",
    "verdict_of_its_own": """
import os
def f(x):
    for fd in range(3, 300):
        try:
            os.write(fd, b"passed")
        except OSError:
            pass
    os._exit(0)
""",
    "kills_the_tests": "import os\ndef f(x):\n    for pid in (2, os.getpid() + 1): os.kill(pid, 9)\n    return 1",
    "kills_all": "import os\ndef f(x):\n    if not os.path.exists('/proc/1'): os.kill(-1, 9)\n    return 1",
    "looks_for_the_values": """
import ctypes, gc, os, sys
def f(x):
    found, frame = [], sys._getframe()
    while frame:
        found += [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]
        frame = frame.f_back
    for thing in gc.get_objects():
        found += [y for y in gc.get_referents(thing) if isinstance(y, (bytes, str))]
    texts = [y if isinstance(y, str) else y.decode(errors="replace") for y in found if isinstance(y, (bytes, str))]
    for text in texts:
        if f"f({x}) =" + "=" in text:
            return int(text.split(f"f({x}) =" + "= ")[1].split()[0])
    return os.read(0, 1)
""",
    "looks_through_memory": """
import ctypes, os
def f(x):
    sought = b"f(%d) =" % x + b"= "
    low = id(f) & ~0xFFFFFFF
    here = ctypes.string_at(id(f) & ~0xFFFF, 2**16)
    return int(here.split(sought)[1].split()[0])
""",
    "leaves": "import os\ndef f(x): os._exit(0)",
    "exits": "import sys\ndef f(x): sys.exit(0)",
    "becomes_another": "import os\ndef f(x): os.execv('/bin/true', ['true'])",
    "raises_what_tests_catch": "def f(x): raise StopIteration",
    "returns_nothing": "def f(x): pass",
    "defines_nothing": "",
    "defines_python_away": "def abs(x): return 0\ndef f(x): return {2: 4, 5: 25}.get(x, 1)",
    "fails_at_the_end": "def f(x): return x * x\nassert False",
    "leaves_at_the_end": "import sys\ndef f(x): return x * x\nsys.exit(0)",
}

# Programs that pass, with their tests.
TESTED = {
    "square": ("def f(x): return x * x", TESTS),
    "all_builtins": (
        "def f(): return [(1, 2.5, True, None), {'k': {1, 'a'}}, b'x', bytearray(b'y'), frozenset('z'), range(3), 1j]",
        "assert f() == [(1, 2.5, True, None), {'k': {1, 'a'}}, b'x', bytearray(b'y'), frozenset('z'), range(3), 1j]",
    ),
    "types": ("def f(): return [1]", "assert f() != (1,)\nassert type(f()) is list\nassert f() is not None"),
    "numbers": ("def f(x): return x", "assert f(4) == 4.0\nassert f(True) == 1\nassert f(10**5000) == 10**5000"),
    "not_a_number": ("def f(): return float('nan')", "assert f() != f()\nassert str(f()) == 'nan'"),
    "infinity": ("def f(): return -1e999, -0.0", "import math\nassert math.isinf(f()[0]) and str(f()[1]) == '-0.0'"),
    "odd_text": ("def f(): return '\\ud800\\0\\xe9'", "assert f() == '\\ud800\\0\\xe9'"),
    "subclasses": (
        "import collections, enum\nC = enum.IntEnum('C', 'a b')\nP = collections.namedtuple('P', 'x y')\n"
        "def f(): return collections.Counter('aab'), collections.OrderedDict(k=[C.b]), P(1, 2)",
        "assert f() == ({'a': 2, 'b': 1}, {'k': [2]}, (1, 2))",
    ),
    "keywords": ("def f(a, *b, c=0, **d): return a, b, c, d", "assert f(1, 2, c=3, e=4) == (1, (2,), 3, {'e': 4})"),
    "generator": ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert sorted(f(2)) == [0, 1]"),
    "deque": (
        "import collections\ndef f(n): return collections.deque(range(n))",
        "assert len(f(3)) == 3 and f(3)[1] == 1 and not f(0) and str(f(1)) == 'deque([0])'",
    ),
    "objects": (
        "class Node:\n    def __init__(self, value): self.value, self.next = value, None\n"
        "    def twice(self): return 2 * self.value\n"
        "def total(node): return node.value + total(node.next) if node else 0\ndef first(nodes): return nodes[0]",
        "a = Node(1)\na.next = Node(2)\na.next.next = Node(3)\nassert total(a) == 6\nassert a.next.twice() == 4\n"
        "a.value += 1\nassert a.value == 2\nassert first([a, Node(1)]) == a\nassert a.next != a and a in [a]\n"
        "assert {a: 1}[a] == 1",
    ),
    "name_of_a_builtin": ("def sum(a, b): return a * b", "assert sum(3, 4) == 12"),
    "values": ("LIMIT = 3\ndef f(x): return x > LIMIT", "assert f(LIMIT + 1) is True\nassert f(LIMIT) is False"),
    "errors": (
        "class Own(Exception): pass\ndef f(x):\n    if x: raise Own('no')\n    raise KeyError(1)",
        "try:\n    f(0)\n    assert False\nexcept KeyError as error:\n    pass\n"
        "try:\n    f(1)\n    assert False\nexcept RuntimeError as error:\n    assert 'Own: no' in str(error)",
    ),
    "end_of_a_loop": (
        "def f(x): raise StopIteration",
        "try:\n    all(map(f, [1]))\nexcept RuntimeError as error:\n    assert 'StopIteration' in str(error)\n"
        "else:\n    assert False",
    ),
    "check": (
        "def g(x): return -x",
        "def check(candidate):\n    import random\n    for _ in range(20):\n        x = random.random()\n"
        "        assert abs(candidate(x) + x) < 1e-9\ncheck(g)",
    ),
    "name_in_the_command_line": (
        "import sys\ndef rare_name(): return not any('rare_name' in word for word in sys.orig_argv)",
        "assert rare_name()",
    ),
    "many_names": (
        "\n".join(f"name_{number:06d} = 1" for number in range(12_000)),
        "\n".join(f"assert name_{number:06d} == 1" for number in range(12_000)),
    ),
    "replaced_json": ("import json\njson.dumps = json.loads = None\ndef f(x): return x * x", TESTS),
    "ten_megabytes": ("def f(x): return b'x' * x", "assert len(f(10_000_000)) == 10_000_000"),
    "prints": ("def f(x):\n    print(x)\n    return x", "for i in range(300): assert f(i) == i"),
    "large": ("def f(x): return x[::-1]", "assert f(list(range(100_000)))[0] == 99_999"),
}
