// Counts a program's own probe (USDT). Its arguments are left alone: their layout is that of libbpf's header, which is the
// compiling machine's.
#include "linux.h"
#include <stdbool.h>
#include <bpf/usdt.bpf.h>

__u64 n;

SEC("usdt/./probed:own:step")
int step(struct pt_regs *ctx) {
  if (bpf_usdt_cookie(ctx) == 0) __atomic_add_fetch(&n, 1, __ATOMIC_SEQ_CST);
  return 0;
}

char LICENSE[] SEC("license") = "GPL";
