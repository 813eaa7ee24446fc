// Counts the threads that leave a kernel, by their place in the block.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct {
  __uint(type, GPU_ARRAY);
  __uint(max_entries, 16);
  __type(key, __u32);
  __type(value, __u64);
} left SEC(".maps");

SEC("kretprobe/_Z9vectorAddPKfS0_Pfi")
int cuda__left(void *ctx) {
  __u64 x, y, z;
  gpu_thread(&x, &y, &z);
  __u32 place = x;
  __u64 *n = bpf_map_lookup_elem(&left, &place);
  if (n) __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
