# Functions for the lines of a case, documented in tests/live/README.md.

# Starts a command in the background, with its own standard input, and with interrupts as at a terminal.
# Sets $job to its pid and $keyboard to the descriptor of its input.
background() {
  rm -f .keyboard
  mkfifo .keyboard
  env --default-signal=INT,QUIT "$@" <.keyboard &
  job=$!
  exec {keyboard}>.keyboard
}

# Types a line into the job.
enter() {
  echo "$*" >&"$keyboard"
}

# Waits until a file has a matching line, or as many as the third argument says. Fails if the job
# ends before.
await() {
  until has_lines "$@"; do
    if [ -n "${job:-}" ] && ! kill -0 "$job" 2>/dev/null && ! has_lines "$@"; then
      echo "await: the job ended, and $1 has too few lines like $2" >&2
      return 1
    fi
    sleep 0.01
  done
}

has_lines() {
  [ -e "$1" ] && [ "$(grep -c -e "$2" "$1")" -ge "${3:-1}" ]
}

# Waits until CUDA runs in a process.
await_cuda() {
  until cat "/proc/$1"/task/*/comm 2>/dev/null | grep -q '^cuda-EvtHandlr$'; do
    if ! [ -e "/proc/$1" ]; then
      echo "await_cuda: process $1 ended before" >&2
      return 1
    fi
    sleep 0.01
  done
}

# Waits until a process is attached to: both threads of the collector run in it.
await_traced() {
  until [ "$(cat "/proc/$1"/task/*/comm 2>/dev/null | grep -c '^xputrace$')" = 2 ]; do
    if ! [ -e "/proc/$1" ]; then
      echo "await_traced: process $1 ended before" >&2
      return 1
    fi
    sleep 0.01
  done
}

# Waits until a process that was traced, or has the collector, waits for the next tracer (`__SO_ACCEPTCON`).
await_dormant() {
  until grep -q " 00010000 .*@xputrace-dormant-.*-$1\$" /proc/net/unix && ! grep -q '^xputrace$' "/proc/$1"/task/*/comm; do
    if ! [ -e "/proc/$1" ]; then
      echo "await_dormant: process $1 ended before" >&2
      return 1
    fi
    sleep 0.01
  done
}

# Waits until a command succeeds. Fails if the job ends before.
await_that() {
  until "$@" >/dev/null 2>&1; do
    if [ -n "${job:-}" ] && ! kill -0 "$job" 2>/dev/null && ! "$@" >/dev/null 2>&1; then
      echo "await_that: the job ended before this: $*" >&2
      return 1
    fi
    sleep 0.01
  done
}

# Sends SIGINT to the job, and waits for its end.
interrupt() {
  kill -INT "$job"
  wait "$job"
}

# Sets $stranger to the beginning of a command that another user runs: one who has a number and no account. What xputrace
# has put down for this user, and for others whose numbers follow, is removed in the end.
stranger() {
  stranger="setpriv --reuid=$1 --regid=$1 --clear-groups env HOME=/nonexistent LD_LIBRARY_PATH=$PWD/softgpu"
  strangers="$*"
  trap forget_strangers EXIT
}

forget_strangers() {
  for uid in $strangers; do
    rm -rf /var/tmp/xputrace-$uid /var/tmp/xputrace-$uid-* /tmp/xputrace-$uid /var/cache/xputrace/twins/$uid
  done
}

# Opens the directory to all users, with copies of xputrace and, in softgpu/, of the software GPU.
publish() {
  chmod 755 .
  cp "$(command -v xputrace)" xputrace
  [ -n "${SOFTGPU:-}" ] || return 0
  mkdir -p softgpu
  cp -L "$SOFTGPU/libcuda.so" softgpu/libxputrace_softgpu.so
  # Links: separate copies would be separate GPUs.
  for name in libcuda.so.1 libcuda.so libcupti.so.13 libcupti.so; do
    ln -sf libxputrace_softgpu.so softgpu/$name
  done
}
