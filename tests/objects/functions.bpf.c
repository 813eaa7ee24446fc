// Counts calls of a function at its entry, its return and inside, in maps of several types.
#include "linux.h"

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 2);
  __type(key, __u32);
  __type(value, __u64);
} calls SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 16);
  __type(key, __u64);
  __type(value, struct sums { __u32 n; __u64 returned; });
} by_argument SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 1024);
  __type(key, __u32);
  __type(value, __u64);
} argument SEC(".maps");

const volatile __u64 most = 3;
__u64 n_entries, n_others;

static __noinline void count(__u32 index) {
  __u64 *n = bpf_map_lookup_elem(&calls, &index);
  if (n) *n += 1;
}

SEC("uprobe/./cpu:work")
int BPF_KPROBE(entry, long i) {
  __u32 thread = bpf_get_current_pid_tgid();
  __u64 value = i;
  __atomic_add_fetch(&n_entries, 1, __ATOMIC_SEQ_CST);
  count(0);
  bpf_map_update_elem(&argument, &thread, &value, BPF_ANY);
  return 0;
}

SEC("uretprobe/./cpu:work")
int BPF_KRETPROBE(leave, long result) {
  __u32 thread = bpf_get_current_pid_tgid();
  __u64 *i = bpf_map_lookup_elem(&argument, &thread);
  struct sums fresh = {1, result}, *known;
  count(1);
  if (!i || *i > most) return 0;
  known = bpf_map_lookup_elem(&by_argument, i);
  if (!known) return bpf_map_update_elem(&by_argument, i, &fresh, BPF_ANY);
  __atomic_add_fetch(&known->n, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&known->returned, result, __ATOMIC_SEQ_CST);
  return 0;
}

// The user says where.
SEC("uprobe")
int BPF_KPROBE(anywhere) {
  __atomic_add_fetch(&n_others, 1, __ATOMIC_SEQ_CST);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
