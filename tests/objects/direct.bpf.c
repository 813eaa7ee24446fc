// Adds two vectors in a kernel of its own: there is no program to trace.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

#define VECTOR(name)             \
  struct {                       \
    __uint(type, GPU_ARRAY);     \
    __uint(max_entries, 64);     \
    __type(key, __u32);          \
    __type(value, __u64);        \
  } name SEC(".maps")

VECTOR(a);
VECTOR(b);
VECTOR(sum);
VECTOR(runs);

SEC("kprobe/__directly_run")
int cuda__add(void *ctx) {
  __u64 block, width, thread, y, z;
  gpu_block(&block, &y, &z);
  gpu_block_dim(&width, &y, &z);
  gpu_thread(&thread, &y, &z);
  __u32 at = block * width + thread;
  __u64 *left = bpf_map_lookup_elem(&a, &at), *right = bpf_map_lookup_elem(&b, &at);
  if (!left || !right) return 0;
  __u64 both = *left + *right;
  bpf_map_update_elem(&sum, &at, &both, BPF_ANY);
  return 0;
}

SEC("kprobe/__directly_run")
int cuda__count(void *ctx) {
  __u32 zero = 0;
  __u64 *n = bpf_map_lookup_elem(&runs, &zero);
  if (n) __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
