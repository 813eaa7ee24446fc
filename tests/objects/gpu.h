// What C programs for GPUs use besides libbpf's headers: types of maps and helpers, by bpftime's numbers.
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define GPU_HASH 1501
#define PER_THREAD_ARRAY 1502
#define GPU_ARRAY 1503
#define GPU_SHARED_ARRAY 1504
#define GPU_RING 1527

static void (*gpu_puts)(const char *) = (void *)501;
static __u64 (*gpu_time)(void) = (void *)502;
static void (*gpu_block)(__u64 *x, __u64 *y, __u64 *z) = (void *)503;
static void (*gpu_block_dim)(__u64 *x, __u64 *y, __u64 *z) = (void *)504;
static void (*gpu_thread)(__u64 *x, __u64 *y, __u64 *z) = (void *)505;
static void (*gpu_membar)(void) = (void *)506;
static void (*gpu_exit)(void) = (void *)507;
static void (*gpu_grid_dim)(__u64 *x, __u64 *y, __u64 *z) = (void *)508;
static __u64 (*gpu_sm)(void) = (void *)509;
static __u64 (*gpu_warp)(void) = (void *)510;
static __u64 (*gpu_lane)(void) = (void *)511;
