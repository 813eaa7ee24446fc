# The cases of the uprobe benches, for `source`. Expects `bin`, the path for the compiled uprobe.c.
#
# SCOPE=process|tree  the scope of xputrace's probes: `tree` tests the process in eBPF, as it is by default under
#                     `-- CMD`; bpftrace's are always limited to the process
#
# | case | measures |
# |---|---|
# | empty, count, tid, hist, ustack | a probe at the entry, by handler |
# | ret, trampoline | a return probe: at the function's `ret`; by Linux's trampoline |
# | latency, latency_ret | entry and return with the time between them; by trampoline, and at `ret` |

bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

require_root() { [ "$(id -u)" -eq 0 ] || { echo "uprobes need root" >&2; exit 1; }; }

build_target() { cc -O2 -fno-omit-frame-pointer -o "$bin" "$bench/uprobe.c"; }

xputrace_script() { # case
    local at; at="\"$bin:probed_function\", #{scope: \"${SCOPE:-process}\"}"
    local trampoline; trampoline="${at%\}}, return: \"trampoline\"}"
    case $1 in
        empty) echo "uprobe($at, |e| ())" ;;
        count) echo "uprobe($at, |e| @calls.count())" ;;
        tid) echo "uprobe($at, |e| @calls[e.tid].count())" ;;
        hist) echo "uprobe($at, |e| @values.hist(e.arg0))" ;;
        ustack) echo "uprobe($at, |e| @stacks[e.ustack].count())" ;;
        ret) echo "uretprobe($at, |e| @calls.count())" ;;
        latency_ret) echo "uretprobe($at, |e| @ns.hist(e.duration))" ;;
        trampoline) echo "uretprobe($trampoline, |e| @calls.count())" ;;
        latency) echo "uretprobe($trampoline, |e| @ns.hist(e.duration))" ;;
        *) echo "no such case: $1" >&2; exit 2 ;;
    esac
}

bpftrace_script() { # case
    local at; at="$bin:probed_function"
    case $1 in
        empty) echo "uprobe:$at { }" ;;
        count) echo "uprobe:$at { @ = count() }" ;;
        tid) echo "uprobe:$at { @[tid] = count() }" ;;
        hist) echo "uprobe:$at { @ = hist(arg0) }" ;;
        ustack) echo "uprobe:$at { @[ustack] = count() }" ;;
        ret | trampoline) echo "uretprobe:$at { @ = count() }" ;;
        latency | latency_ret)
            echo "uprobe:$at { @s[tid] = nsecs } uretprobe:$at /@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]) }" ;;
    esac
}

reversed() { echo "$1" | awk '{ for (i = NF; i > 0; i--) printf "%s%s", $i, (i > 1 ? " " : "\n") }'; }

machine_line() { # rounds calls
    local cpu; cpu=$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)
    echo "$(uname -r), $(nproc) CPUs, $cpu, $1 rounds of $2 hits, load $(cut -d' ' -f1 /proc/loadavg)"
}
