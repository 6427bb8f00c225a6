"""The preferred jail: namespaces and a root directory with the interpreter, the libraries and a scratch directory.

bubblewrap 0.8 could replace this file only, where it is installed: it has no Landlock, sets no limits, and takes a
ready-made seccomp filter. A program started by root would still be root for the host's files.
"""

import ctypes
import os
import stat

from . import kernel


_NEW_USER, _NEW_PID, _NEW_MOUNT = 0x10000000, 0x20000000, 0x00020000
_NEW_NETWORK, _NEW_IPC, _NEW_UTS = 0x40000000, 0x08000000, 0x04000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

SCRATCH = "/scratch"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def enter(mount_point: str, readable: list[str], privileged: bool) -> str:
    """Move this process into new namespaces; its next child is the first process of the new pid namespace.

    Args:
        mount_point: an empty directory of the host, covered by the new root until the namespace ends.
        readable: absolute paths of the host, which appear read-only under the same names.
        privileged: the caller is root and needs no user namespace here; its program gets one later.

    Returns:
        The path of the scratch directory inside.

    Raises:
        OSError: if the kernel or container does not allow it. The process must then end.
    """
    user, group = os.geteuid(), os.getegid()
    spaces = _NEW_PID | _NEW_MOUNT | _NEW_NETWORK | _NEW_IPC | _NEW_UTS
    kernel.libc("unshare", spaces if privileged else spaces | _NEW_USER)
    if not privileged:
        # The same ids inside as outside: no process in the jail is, or can become, uid 0.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    os.umask(0o022)
    kernel.libc("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _mount_tmpfs(mount_point, "size=1m,nr_inodes=1k,mode=755")
    for path in [*readable, *DEVICES]:
        _bind(path, mount_point)
    os.mkdir(mount_point + SCRATCH)
    if not os.path.exists(mount_point + "/tmp"):  # an interpreter may be there
        os.symlink(SCRATCH, mount_point + "/tmp")
    # sem_open, which multiprocessing uses, requires this name.
    os.symlink(SCRATCH, f"{mount_point}/dev/shm")
    _seal(mount_point, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    _mount_tmpfs(mount_point + SCRATCH, "size=64m,nr_inodes=4k,mode=777")
    os.chdir(mount_point)
    kernel.call("pivot_root", b".", b".")
    kernel.libc("umount2", b".", _MNT_DETACH)
    os.chdir(SCRATCH)
    return SCRATCH


def _mount_tmpfs(target: str, options: str) -> None:
    kernel.libc("mount", b"tmpfs", target.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode())


def _bind(path: str, root: str) -> None:
    """Bind the host's `path` under `root`, read-only."""
    target = root + path
    if os.path.exists(target) and not path.startswith("/dev/"):
        return  # inside a directory that is already bound
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path) and os.path.dirname(path) == "/":
        os.symlink(os.readlink(path), target)  # /lib -> usr/lib
        return
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    # Recursive, because a user namespace must not reveal what a mount inside the directory covers.
    kernel.libc("mount", path.encode(), target.encode(), None, _MS_BIND | _MS_REC, None)
    device = _ATTR_NOEXEC if stat.S_ISCHR(mode) else _ATTR_NODEV
    _seal(target, _ATTR_RDONLY | _ATTR_NOSUID | device, _AT_RECURSIVE)


def _seal(target: str, attributes: int, flags: int = 0) -> None:
    change = (ctypes.c_uint64 * 4)(attributes)  # struct mount_attr: set, clear, propagation, user namespace
    kernel.call("mount_setattr", _AT_FDCWD, target.encode(), flags, change, ctypes.sizeof(change))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
