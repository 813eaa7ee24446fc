// Counts runs of a kernel's threads by process, and adds up their time from entry to exit. The first thread says so.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

#define HASH(name)                   \
  struct {                           \
    __uint(type, BPF_MAP_TYPE_HASH); \
    __uint(max_entries, 1024);       \
    __type(key, __u32);              \
    __type(value, __u64);            \
  } name SEC(".maps")

HASH(calls);
HASH(started);
HASH(total_ns);

static __always_inline void add(void *map, __u32 pid, __u64 n) {
  __u64 *sum = bpf_map_lookup_elem(map, &pid);
  if (sum)
    __atomic_add_fetch(sum, n, __ATOMIC_SEQ_CST);
  else
    bpf_map_update_elem(map, &pid, &n, BPF_NOEXIST);
}

// The program comes before that at entry in the object, and runs after it.
SEC("kretprobe/_Z6reducePf")
int cuda__end(void *ctx) {
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  __u64 *from = bpf_map_lookup_elem(&started, &pid);
  if (!from) return 0;
  __u64 took = gpu_time() - *from;
  __u64 *total = bpf_map_lookup_elem(&total_ns, &pid);
  // Both become one call, whose value is in the map on one path and on the stack on the other.
  if (total) {
    *total += took;
    bpf_map_update_elem(&total_ns, &pid, total, BPF_EXIST);
  } else {
    bpf_map_update_elem(&total_ns, &pid, &took, BPF_NOEXIST);
  }
  return 0;
}

SEC("kprobe/_Z6reducePf")
int cuda__begin(void *ctx) {
  __u64 x, y, z, now = gpu_time();
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  gpu_block(&x, &y, &z);
  add(&calls, pid, 1);
  if (bpf_map_delete_elem(&started, &pid)) bpf_printk("first of %d in block %lu", 7, x);
  bpf_map_update_elem(&started, &pid, &now, BPF_ANY);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
