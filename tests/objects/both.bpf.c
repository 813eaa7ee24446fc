// Programs on both sides of a launch share maps: what the CPU has written, the GPU reads and counts.
#include "gpu.h"
#define __TARGET_ARCH_x86
#include <linux/ptrace.h>
#include <bpf/bpf_tracing.h>

#define ARRAY(name, number, n)   \
  struct {                       \
    __uint(type, number);        \
    __uint(max_entries, n);      \
    __type(key, __u32);          \
    __type(value, __u64);        \
  } name SEC(".maps")

// Written by the CPU, read by the GPU.
ARRAY(launches, BPF_MAP_TYPE_ARRAY, 1);
// Written by both.
ARRAY(sum, GPU_SHARED_ARRAY, 2);
struct {
  __uint(type, GPU_HASH);
  __uint(max_entries, 64);
  __type(key, __u32);
  __type(value, __u64);
} sides SEC(".maps");
// Of one side each.
ARRAY(on_gpu, GPU_ARRAY, 1);
ARRAY(on_cpu, BPF_MAP_TYPE_ARRAY, 1);

// Global variables of both, and a constant.
const volatile __u64 step = 1;
__u64 steps;

static __always_inline void add(void *map, __u32 key, __u64 n) {
  __u64 *sum = bpf_map_lookup_elem(map, &key);
  if (sum)
    __atomic_add_fetch(sum, n, __ATOMIC_SEQ_CST);
  else
    bpf_map_update_elem(map, &key, &n, BPF_NOEXIST);
}

SEC("uprobe/libcudart:cudaLaunchKernel")
int BPF_KPROBE(launch) {
  __atomic_add_fetch(&steps, step, __ATOMIC_SEQ_CST);
  add(&launches, 0, 1);
  add(&sum, 0, 1000);
  add(&sides, 1, 1);
  add(&on_cpu, 0, 1);
  return 0;
}

SEC("kretprobe/work")
int cuda__thread(void *ctx) {
  __u32 zero = 0;
  __u64 *n = bpf_map_lookup_elem(&launches, &zero);
  __atomic_add_fetch(&steps, step, __ATOMIC_SEQ_CST);
  add(&sum, 0, 1);
  if (n && *n > 0) add(&sum, 1, 1);
  add(&sides, 2, 1);
  add(&on_gpu, 0, 1);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
