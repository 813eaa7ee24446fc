// Writes records of a function's calls to both kinds of ring that Linux has; a program that another one calls writes the second.
#include "linux.h"

struct record {
  __u64 number;
  char text[8];
};
const struct record *unused __attribute__((unused));

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, 1 << 16);
} ring SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
  __uint(key_size, 4);
  __uint(value_size, 4);
} events SEC(".maps");

int second(struct pt_regs *ctx);

struct {
  __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
  __uint(max_entries, 1);
  __uint(key_size, 4);
  __array(values, int(void *));
} programs SEC(".maps") = {.values = {[0] = (void *)&second}};

struct {
  __uint(type, BPF_MAP_TYPE_STACK_TRACE);
  __uint(max_entries, 64);
  __uint(key_size, 4);
  __uint(value_size, 8 * 4);
} stacks SEC(".maps");

__u64 n_stacks;

SEC("uprobe/./cpu:say")
int BPF_KPROBE(first, const char *text) {
  struct record *it = bpf_ringbuf_reserve(&ring, sizeof *it, 0);
  if (it) {
    it->number = 1;
    __builtin_memset(it->text, 0, sizeof it->text);
    bpf_probe_read_user_str(it->text, sizeof it->text, text);
    bpf_ringbuf_submit(it, 0);
  }
  if (bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK) >= 0) __atomic_add_fetch(&n_stacks, 1, __ATOMIC_SEQ_CST);
  bpf_tail_call(ctx, &programs, 0);
  return 0;
}

SEC("uprobe")
int second(struct pt_regs *ctx) {
  struct record it = {.number = 2, .text = "second"};
  bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &it, sizeof it);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
