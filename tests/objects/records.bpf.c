// Writes a record for each thread whose number in its block is a multiple of 16.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct place {
  __u64 block;
  __u32 thread[3];
  __u16 warp;
  __s8 lane;
  _Bool is_first;
  char what[8];
};

struct {
  __uint(type, GPU_RING);
  __uint(max_entries, 4);
  __type(key, __u32);
  __type(value, struct place);
} places SEC(".maps");

SEC("kprobe/work")
int cuda__place(void *ctx) {
  __u64 x, y, z;
  struct place it = {};
  gpu_thread(&x, &y, &z);
  if (x % 16) return 0;
  it.is_first = x + y + z == 0;
  it.thread[0] = x, it.thread[1] = y, it.thread[2] = z;
  gpu_block(&x, &y, &z);
  it.block = x;
  it.warp = gpu_warp();
  it.lane = -(__s64)gpu_lane();
  __builtin_memcpy(it.what, "work", 5);
  bpf_perf_event_output(ctx, &places, 0, &it, sizeof it);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
