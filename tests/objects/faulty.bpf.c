// Does what programs on the GPU may not: reads a context, which they don't have, and changes a constant.
#include "gpu.h"

const volatile __u64 constant = 1;

SEC("kprobe/work")
int cuda__context(__u64 *ctx) {
  return *ctx;
}

SEC("kretprobe/work")
int cuda__constant(void *ctx) {
  *(volatile __u64 *)&constant = 2;
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
