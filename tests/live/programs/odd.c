// Does something odd to itself, then launches 400 kernels, half of them from a second thread, and prints how many launches failed:
//   closes     closes every descriptor from 3 on, between launches too
//   no-files   leaves itself no descriptors (RLIMIT_NOFILE is 3)
//   little     may not have more memory than now and 256 MiB (RLIMIT_AS): glibc reserves up to 128 for a thread that allocates
//   blocked    blocks all signals
//   handler    launches from a signal handler on a stack of its own
//   user       becomes nobody
//   chroot     changes its root to an empty directory
//   strict     forbids opening files, sockets and processes by seccomp: they fail with EPERM
// With a second argument `late`, it does so after its first launch.
// flags: -L $SOFTGPU -lcudart -ldl -pthread
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_step(const SoftLaunch *c, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad, in_handler, closes;
static void close_all(void) { for (int fd = 3; fd < 4096; fd++) close(fd); }
static void launch(void) {
  dim3 one = {1, 1, 1};
  bad += cudaLaunchKernel((void *)step, one, one, 0, 0, 0) != 0;
  if (closes) close_all();
}
static void on_signal(int n) { launch(); }
static void *work(void *unused) {
  if (in_handler) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, 0);
  }
  for (int i = 0; i < 200; i++) if (in_handler) raise(SIGUSR1); else launch();
  return 0;
}
static void limit(int which, rlim_t n) {
  struct rlimit it = {n, n};
  if (setrlimit(which, &it)) perror("setrlimit"), exit(4);
}
static long virtual_bytes(void) {
  long pages;
  FILE *f = fopen("/proc/self/statm", "r");
  if (fscanf(f, "%ld", &pages) != 1) exit(4);
  fclose(f);
  return pages * 4096;
}
static void forbid(void) {
#define DENY(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
  struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), DENY(SYS_openat), DENY(SYS_open), DENY(SYS_socket), DENY(SYS_connect),
                               DENY(SYS_fork), DENY(SYS_vfork), DENY(SYS_ptrace), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) perror("seccomp"), exit(4);
}
static void be_odd(char *how) {
  if (!strcmp(how, "closes")) closes = 1, close_all();
  if (!strcmp(how, "no-files")) limit(RLIMIT_NOFILE, 3);
  if (!strcmp(how, "little")) limit(RLIMIT_AS, virtual_bytes() + (256 << 20));
  if (!strcmp(how, "blocked")) { sigset_t all; sigfillset(&all); sigprocmask(SIG_SETMASK, &all, 0); }
  if (!strcmp(how, "handler")) { struct sigaction it = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK}; in_handler = 1; sigaction(SIGUSR1, &it, 0); }
  if (!strcmp(how, "user") && (setgid(65534) || setuid(65534))) exit(4);
  if (!strcmp(how, "chroot")) { mkdir("empty", 0755); if (chroot("empty") || chdir("/")) exit(4); }
  if (!strcmp(how, "strict")) forbid();
}
int main(int argc, char **argv) {
  __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
  int late = argc > 2;
  if (late) launch();
  be_odd(argv[1]);
  if (!late) launch();
  pthread_t other;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 256 << 10);
  if (pthread_create(&other, &small, work, 0)) return puts("no thread"), 4;
  work(0);
  pthread_join(other, 0);
  bad += cudaDeviceSynchronize() != 0;
  printf("%s%s: 401 launches, bad %d\n", argv[1], late ? " late" : "", bad);
  return bad != 0;
}
