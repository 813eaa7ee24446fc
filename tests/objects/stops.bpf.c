// Ends the threads of all blocks but the first at entry, so that they don't come to their exit.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct {
  __uint(type, GPU_SHARED_ARRAY);
  __uint(max_entries, 2);
  __type(key, __u32);
  __type(value, __u64);
} threads SEC(".maps");

static __always_inline void count(__u32 which) {
  __u64 *n = bpf_map_lookup_elem(&threads, &which);
  if (n) __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST);
}

SEC("kprobe/work")
int cuda__stop(void *ctx) {
  __u64 x, y, z;
  count(0);
  gpu_block(&x, &y, &z);
  if (x) gpu_exit();
  return 0;
}

SEC("kretprobe/work")
int cuda__left(void *ctx) {
  count(1);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
