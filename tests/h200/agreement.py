"""Compares the stacks of launches with those that gdb sees at the same moments.

    agreement.py STOPS EVERY COMMAND...

gdb runs the command under xputrace and stops it at about STOPS launches, one of EVERY, at random: behind the collector's
marker function's first instruction, which xputrace probes itself. A launch is known by its thread and
start time, which are among the marker's arguments. Prints how many of our frames
gdb has too, by function and file, and those that only one of the two has. XPUTRACE and GDB name other programs than those on the path.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SCRIPT = """
launch(|l| l.tag = 1);
launch(|l| print(`LAUNCH ${l.start} ${l.tid}\n${l.ustack}\nEND`));
"""

# Word of the marker's first argument that has the launch's start: `LAUNCH_START` in gpu-probes/events/src/word.rs.
START = re.search(r"LAUNCH_START: usize = (\d+)", (Path(__file__).parents[2] / "gpu-probes/events/src/word.rs").read_text())

# gdb's random numbers are its own: the C library's would be the program's.
COMMANDS = """
set pagination off
set confirm off
set width 0
set backtrace limit 400
set backtrace past-main on
set backtrace past-entry on
set print frame-arguments none
set print entry-values no
set startup-with-shell off
set breakpoint pending on
handle all nostop noprint pass
set $seed = 12345
catch load xputrace
run
delete
break *((char *)&xputrace_launch_marker + 5)
commands
silent
printf "LAUNCH %lu ", ((unsigned long *)$rdi)[START]
printf "%d\\n", $_gthread
thread
bt
printf "END\\n"
set $seed = ($seed * 1103515245 + 12345) & 0x7fffffff
set $left = $left - 1
if $left > 0
eval "ignore %d %d", $bpnum, ($seed >> 8) % (2 * EVERY - 1)
else
delete
end
continue
end
set $left = STOPS
continue
"""


def stacks_of(text, add):
    """Returns the stacks between LAUNCH and END lines, by start time; each innermost first."""
    stacks, current = {}, None
    for line in text.splitlines():
        if found := re.match(r"LAUNCH (\d+)", line):
            current = stacks.setdefault(int(found[1]), [])
        elif line == "END":
            current = None
        elif current is not None:
            add(current, line)
    return stacks


# Where the files are that gdb names, by their own names.
PATHS = {}


def file_name(path):
    if not path:
        return ""
    path = os.path.realpath(path)
    return PATHS.setdefault(path.rsplit("/", 1)[-1], path).rsplit("/", 1)[-1]


def same_code(frames):
    """Returns another name for functions that are the same code: linkers fold functions that are alike, and each side
    names one of them."""
    others = {}
    for file in {file for _, file in frames if file in PATHS}:
        wanted = {function for function, of in frames if of == file}
        symbols = [subprocess.run(["nm", "-C", *table, PATHS[file]], capture_output=True, text=True, errors="replace").stdout for table in ([], ["-D"])]
        by_address = {}
        for line in "".join(symbols).splitlines():
            address, _, name = line.partition(" ")
            if address and (name := function_name(name[2:])) in wanted:
                by_address.setdefault(address, set()).add(name)
        for names in by_address.values():
            others.update({(name, file): min(names) for name in names if name != min(names)})
    return others


def function_name(text):
    """The name without parameters and template arguments: each side writes these in its own way."""
    depth, name = 0, ""
    for character in text.replace("(anonymous namespace)", "{anonymous}"):
        depth += character in "<("
        name += character if depth == 0 else ""
        depth -= character in ">)"
    name = re.sub(r"\[.*?\]|@.*|::h[0-9a-f]{16}$|\.(part|cold|constprop|isra)[.\d]*", "", name)
    name = re.sub(r" const(?=::)|( const| volatile| &&?)+ *$", "", name.strip())
    return re.sub(r"_impl$", "", name).split(" ")[-1]


def add_gdb_frame(stack, line):
    found = re.match(r"#\d+ +(0x[0-9a-f]+ in )?(.*) \([^()]*\)(?: from (\S+)| at (\S+))?$", line)
    if not found:
        return
    frame = Frame((function_name(found[2]), file_name(found[3])))
    # A frame without an address is of the function into which those before it are inlined.
    if found[1] or not stack:
        stack.append(frame)
    else:
        stack[-1] = frame


def add_own_frame(stack, line):
    found = re.match(r"(.*) \(([^()]*)\)$", line.strip())
    if found:
        stack.append(Frame((function_name(re.sub(r"\+0x[0-9a-f]+$", "", found[1])), file_name(found[2]))))
    elif line.strip():
        stack.append(Frame((line.strip(), "")))


class Frame(tuple):
    """Equal to another one of the same function and file. gdb names no file where it knows the line, and neither of them
    a function without a symbol."""

    def __eq__(self, other):
        (function, file), (own_function, own_file) = sorted((self, other), key=lambda it: it[0] != "??")
        return (function == own_function or function == "??" and own_function.startswith("0x")) and (
            "" in (file, own_file) or file == own_file
        )

    __hash__ = None


def compare(theirs, ours):
    """Returns how many of our frames gdb has too, in the same order; those that it has not; and those of gdb, outward
    from our innermost one, that we have not. These are calls that a function ended with: gdb tells them from debug
    information, but their frames are gone."""
    rows = [[0] * (len(ours) + 1) for _ in range(len(theirs) + 1)]
    for i in range(len(theirs)):
        for j in range(len(ours)):
            rows[i + 1][j + 1] = rows[i][j] + 1 if theirs[i] == ours[j] else max(rows[i][j + 1], rows[i + 1][j])
    i, j, differ, more, begun = len(theirs), len(ours), [], [], []
    while i or j:
        if i and j and theirs[i - 1] == ours[j - 1] and rows[i][j] == rows[i - 1][j - 1] + 1:
            i, j = i - 1, j - 1
            more, begun = more + begun, []
        elif j and rows[i][j] == rows[i][j - 1]:
            j -= 1
            differ.append(ours[j])
        else:
            i -= 1
            begun.append(theirs[i])
    return rows[-1][-1], differ, more


class Found:
    def __init__(self):
        self.frames = self.agreed = self.whole = 0
        self.only_ours, self.only_theirs = Counter(), Counter()


def compare_all(theirs, ours):
    found = Found()
    for start in theirs.keys() & ours.keys():
        n, differ, more = compare(theirs[start], ours[start])
        found.frames += len(ours[start])
        found.agreed += n
        found.whole += not differ
        found.only_ours.update(map(tuple, differ))
        found.only_theirs.update(map(tuple, more))
    return found


def main(stops, every, command):
    directory = Path(tempfile.mkdtemp())
    commands = COMMANDS.replace("STOPS", str(stops)).replace("EVERY", str(every)).replace("START", START[1])
    (directory / "commands").write_text(commands)
    (directory / "script.rhai").write_text(SCRIPT)
    results = directory / "results"
    xputrace, gdb = os.environ.get("XPUTRACE", "xputrace"), os.environ.get("GDB", "gdb")
    line = [xputrace, "-f", "json", "-o", str(results), "--python", "off", "--names", "full", str(directory / "script.rhai"), "--"]
    line += [gdb, "-nx", "-q", "-batch", "-x", str(directory / "commands"), "--args", *command]
    # gdb starts the file that a link names, and Python finds its packages beside the link.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(it for it in sys.path[1:] if it)}
    done = subprocess.run(line, capture_output=True, text=True, errors="replace", env=env)
    if not results.exists():
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    objects = [json.loads(it) for it in results.read_text().splitlines()]
    printed = "\n".join(it["data"] for it in objects if it["type"] == "print")
    ours, theirs = stacks_of(printed, add_own_frame), stacks_of(done.stdout, add_gdb_frame)
    if not theirs:
        sys.exit("gdb stopped at no launch:\n" + done.stdout[-3000:] + done.stderr[-3000:])
    missing = [it for it in theirs if it not in ours]
    found = compare_all(theirs, ours)
    if others := same_code({*found.only_ours, *found.only_theirs}):
        rename = lambda stacks: {at: [Frame((others.get(tuple(it), it[0]), it[1])) for it in frames] for at, frames in stacks.items()}
        theirs, ours = rename(theirs), rename(ours)
        found = compare_all(theirs, ours)
    print(f"launches {len(theirs)}, without a stack of ours {len(missing)}, whole stacks that agree {found.whole}")
    print(f"frames {found.frames}, that agree {found.agreed} ({found.agreed / max(found.frames, 1):.2%})")
    for whose, all in (("ours", found.only_ours), ("gdb's", found.only_theirs)):
        for (function, file), n in all.most_common(20):
            print(f"  {n} times only {whose}: {function} ({file})")
    if os.environ.get("KEEP"):
        print(f"kept in {directory}")
        (directory / "gdb.txt").write_text(done.stdout + done.stderr)
        (directory / "ours.txt").write_text(printed)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
