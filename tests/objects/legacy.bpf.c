// Maps that are defined by numbers, as they were before BTF.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct numbers {
  __u32 type, key_bytes, value_bytes, max_entries, flags;
};

struct numbers SEC("maps") first = {BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0};
struct numbers SEC("maps") threads = {GPU_HASH, 4, 8, 64, 0};

SEC("kprobe/work")
int cuda__count(void *ctx) {
  __u64 x, y, z, one = 1, *n;
  gpu_thread(&x, &y, &z);
  __u32 key = x % 2;
  n = bpf_map_lookup_elem(&threads, &key);
  if (n)
    __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST);
  else
    bpf_map_update_elem(&threads, &key, &one, BPF_ANY);
  key = 0;
  bpf_map_update_elem(&first, &key, &one, BPF_ANY);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
