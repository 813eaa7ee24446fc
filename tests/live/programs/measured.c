// Runs a command, passes SIGINT on to it, and says what it took in a file: `measured FILE CMD …`. The file has `peak MIB` and
// `cpu MS`, the command's alone. It exits as the command did.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static pid_t child;
static void pass_on(int number) { kill(child, number); }
int main(int argc, char **argv) {
  if (argc < 3) return 2;
  int status;
  struct rusage use;
  child = fork();
  if (!child) {
    execvp(argv[2], argv + 2);
    _exit(127);
  }
  signal(SIGINT, pass_on);
  while (wait4(child, &status, 0, &use) < 0) {}
  FILE *file = fopen(argv[1], "w");
  long ms = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000 + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1000;
  fprintf(file, "peak %ld\ncpu %ld\n", use.ru_maxrss >> 10, ms);
  fclose(file);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
