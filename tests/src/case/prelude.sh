# Functions for the lines of a case. tests/live/README.md tells what they are for.

# Starts a command in the background, with interrupts as a terminal's user has them and a standard
# input of its own. Sets $job to its number and $keyboard to the descriptor that is its input.
background() {
  rm -f .keyboard
  mkfifo .keyboard
  env --default-signal=INT,QUIT "$@" <.keyboard &
  job=$!
  exec {keyboard}>.keyboard
}

# Types a line into the command that was started last.
enter() {
  echo "$*" >&"$keyboard"
}

# Waits until a file has a line that matches, or as many as a third word says; fails when the job
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

# Interrupts the job as Ctrl-C does, and waits for its end.
interrupt() {
  kill -INT "$job"
  wait "$job"
}


# Lets every user use the directory, with copies of xputrace and, in softgpu/, of the software GPU.
publish() {
  chmod 755 .
  cp "$(command -v xputrace)" xputrace
  [ -n "${SOFTGPU:-}" ] || return 0
  mkdir -p softgpu
  cp -L "$SOFTGPU/libcuda.so" softgpu/libxputrace_softgpu.so
  # Links, or each name would be a GPU of its own.
  for name in libcuda.so.1 libcuda.so libcupti.so.13 libcupti.so; do
    ln -sf libxputrace_softgpu.so softgpu/$name
  done
}

