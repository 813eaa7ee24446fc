// Counts the runs of each thread in a value that is so large that a GPU has no room for many threads.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct wide {
  __u64 n;
  char rest[4088];
};

struct {
  __uint(type, PER_THREAD_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct wide);
} runs SEC(".maps");

SEC("kretprobe/work")
int cuda__ran(void *ctx) {
  __u32 zero = 0;
  struct wide *it = bpf_map_lookup_elem(&runs, &zero);
  if (it) it->n += 1;
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
