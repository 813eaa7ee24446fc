// Programs at tracepoints and timers. Fields of Linux's own structs are where this Linux has them (CO-RE).
#include "linux.h"
#include <bpf/bpf_core_read.h>

struct task_struct {
  int pid;
  int tgid;
} __attribute__((preserve_access_index));

// The process that is counted.
const volatile __u32 wanted;
__u64 n_exits, n_raw_exits, n_samples, n_others;

static int is_wanted(void) {
  struct task_struct *task = (void *)bpf_get_current_task();
  int tgid = BPF_CORE_READ(task, tgid);
  if (tgid != bpf_get_current_pid_tgid() >> 32) __atomic_add_fetch(&n_others, 1, __ATOMIC_SEQ_CST);
  return wanted == 0 || tgid == wanted;
}

SEC("tracepoint/sched/sched_process_exit")
int exits(void *ctx) {
  if (is_wanted()) __atomic_add_fetch(&n_exits, 1, __ATOMIC_SEQ_CST);
  return 0;
}

SEC("raw_tp/sched_process_exit")
int raw_exits(void *ctx) {
  if (is_wanted()) __atomic_add_fetch(&n_raw_exits, 1, __ATOMIC_SEQ_CST);
  return 0;
}

SEC("perf_event")
int samples(void *ctx) {
  __atomic_add_fetch(&n_samples, 1, __ATOMIC_SEQ_CST);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
