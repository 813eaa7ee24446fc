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

# Waits until a file has a line that matches; fails when the job ends before.
await() {
  until grep -qs -e "$2" "$1"; do
    if [ -n "${job:-}" ] && ! kill -0 "$job" 2>/dev/null && ! grep -qs -e "$2" "$1"; then
      echo "await: the job ended, and $1 has no line like $2" >&2
      return 1
    fi
    sleep 0.01
  done
}

# Interrupts the job as Ctrl-C does, and waits for its end.
interrupt() {
  kill -INT "$job"
  wait "$job"
}

