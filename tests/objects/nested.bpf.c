// Stores what values are made of in C: structs in structs, unions, bit fields, floats.
#define BPF_NO_GLOBAL_DATA
#include "gpu.h"

struct point {
  __s16 x, y;
};

struct shape {
  struct point corners[2];
  union {
    __u32 color;
    __u8 channels[4];
  };
  __u32 kind : 3;
  __s32 level : 5;
  __u32 is_on : 1;
  float weight;
  double area;
  struct {
    __u8 first, last;
  } ends;
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 8);
  __type(key, __u32);
  __type(value, struct shape);
} shapes SEC(".maps");

SEC("kprobe/work")
int cuda__shape(void *ctx) {
  __u32 key = 1;
  struct shape *given = bpf_map_lookup_elem(&shapes, &key);
  if (!given) return 0;
  struct shape it = *given;
  it.corners[1].y += 1;
  it.level -= 1;
  key = 2;
  bpf_map_update_elem(&shapes, &key, &it, 0);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
