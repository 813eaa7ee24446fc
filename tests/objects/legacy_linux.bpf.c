// A program for Linux with a map that libbpf doesn't know any more.
#include "linux.h"

struct {
  __u32 type, key_bytes, value_bytes, max_entries, flags;
} numbers SEC("maps") = {BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0};

SEC("uprobe/libc:malloc")
int count(void *ctx) {
  __u32 key = 0;
  __u64 *n = bpf_map_lookup_elem(&numbers, &key);
  if (n) *n += 1;
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
