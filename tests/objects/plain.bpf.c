// A program on the GPU stores to a map of Linux without atomic instructions.
#include "gpu.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64[2]);
} values SEC(".maps");

SEC("uprobe/libcudart:cudaDeviceSynchronize")
int waits(void *ctx) {
  __u32 zero = 0;
  __u64 *n = bpf_map_lookup_elem(&values, &zero);
  if (n) n[1] = 7;
  return 0;
}

SEC("kprobe/work")
int cuda__stores(void *ctx) {
  __u32 zero = 0;
  __u64 *n = bpf_map_lookup_elem(&values, &zero);
  if (n) n[0] += 1;
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
