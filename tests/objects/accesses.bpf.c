// Counts accesses to memory, of all kernels, by the warp's lane.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct {
  __uint(type, GPU_ARRAY);
  __uint(max_entries, 32);
  __type(key, __u32);
  __type(value, __u64);
} accesses SEC(".maps");

SEC("kprobe/__memcapture")
int cuda__access(void *ctx) {
  __u32 lane = gpu_lane();
  __u64 *n = bpf_map_lookup_elem(&accesses, &lane);
  if (n) __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
