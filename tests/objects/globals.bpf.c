// Global variables, a function that is called, and formats in the object's constants.
#include "gpu.h"

const volatile __u32 most = 3;
__u64 n_blocks, n_threads;
__s32 countdown = 5;

static __noinline __u64 place(void) {
  __u64 x, y, z, width, height, depth;
  gpu_thread(&x, &y, &z);
  gpu_block_dim(&width, &height, &depth);
  return x + width * (y + height * z);
}

SEC("kprobe/cuda_work")
int cuda__work(void *ctx) {
  __u64 it = place(), width, height, depth;
  n_threads++;
  if (it) return 0;
  gpu_grid_dim(&width, &height, &depth);
  gpu_membar();
  n_blocks++;
  countdown--;
  if (n_blocks <= most) bpf_printk("block %llu of %llu", n_blocks, width * height * depth);
  gpu_puts("a block");
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
