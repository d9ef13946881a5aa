"""Runs hostile cases in a process with limits on memory and time, and prints what became of them."""

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

CPU, WALL, ADDRESSES = 10, 120, 4 << 30  # seconds of a processor, seconds, and bytes beyond those of the imports


def peak():
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mapped():
    """Addresses of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def attempt(case, folder):
    """What a case ends in: a sentence, a traceback, or nothing at all."""
    from eblvm_lit.errors import EblvmError

    try:
        case.write(folder)
    except BaseException:
        return "not written", traceback.format_exc()
    try:
        case.read(folder)
    except EblvmError as error:
        return "sentence", str(error)
    except BaseException:
        return "traceback", traceback.format_exc()
    return "accepted", ""


def run(cases, pipe):
    """Run cases one by one, and tell of each; one that takes too long ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + ADDRESSES,) * 2)
    base = peak()
    for case in cases:
        folder = Path(tempfile.mkdtemp(dir=os.getcwd()))
        signal.alarm(WALL)
        signal.setitimer(signal.ITIMER_PROF, CPU)
        before = sum(os.times()[:2])
        outcome, text = attempt(case, folder)
        result = {"outcome": outcome, "text": text[-2000:], "right": case.right, "memory": peak() - base}
        result |= {"seconds": sum(os.times()[:2]) - before, "executed": (folder / "executed").exists()}
        pipe.write(json.dumps(result) + "\n")
        pipe.flush()
        shutil.rmtree(folder)


def run_all(cases):
    """The results of all cases by name; after one that has ended its process, the others run in a new one."""
    found = {}
    while len(found) < len(cases):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            with open(writer, "w") as pipe:
                run(cases[len(found) :], pipe)
            os._exit(0)
        os.close(writer)
        with open(reader) as pipe:
            for line in pipe:
                found[cases[len(found)].name] = json.loads(line)
        _, status = os.waitpid(pid, 0)
        if status:
            case = cases[len(found)]
            found[case.name] = {"outcome": "crashed", "text": f"signal {os.WTERMSIG(status)}", "right": case.right}
    return found


def main(honest):
    """Run all cases, in the current folder."""
    warnings.simplefilter("ignore")
    from hostile_checkpoints import checkpoint_cases

    cases = list(checkpoint_cases(Path(honest)))
    assert len({case.name for case in cases}) == len(cases)
    print(json.dumps(run_all(cases)))


if __name__ == "__main__":
    main(sys.argv[1])
