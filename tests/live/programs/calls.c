// Makes CUDA calls: SEED ROUNDS. Allocates, frees and waits at random, with some calls that fail, and keeps a ledger of what
// it did: prints a line `NAME NUMBER` for each entry.
// flags: -L $SOFTGPU -lcudart -lcuda -ldl
#include <stdio.h>
#include <stdlib.h>
#include <stddef.h>
typedef void *Handle;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaMallocManaged(void **, size_t, unsigned), cudaMallocAsync(void **, size_t, Handle), cudaFreeAsync(void *, Handle);
int cudaHostAlloc(void **, size_t, unsigned), cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaDeviceSynchronize(void), cudaStreamSynchronize(Handle), cudaEventSynchronize(Handle), cudaStreamCreate(Handle *);
int cudaEventCreate(Handle *), cudaEventRecord(Handle, Handle), cudaMemcpy(void *, const void *, size_t, int);
int cuCtxSynchronize(void), cuMemAlloc_v2(size_t *, size_t), cuMemFree_v2(size_t);

enum { SLOTS = 64 };
static struct { void *at; size_t bytes; int kind; } live[SLOTS];
static unsigned long long state;
static unsigned below(unsigned n) { state = state * 6364136223846793005ull + 1442695040888963407ull; return (unsigned)(state >> 33) % n; }

static long allocs, frees, bytes, active, peak, waits, copies, failed, runtime_mallocs, failed_mallocs;
static long of_kind[5], waits_of[5];

static void allocate(int slot, Handle stream) {
  size_t n = 256 * (1 + below(100)), pitch = 0;
  int kind = below(6), error = 1;
  void *at = 0;
  if (kind == 0) error = cudaMalloc(&at, n), runtime_mallocs++;
  if (kind == 1) error = cudaMallocManaged(&at, n, 1);
  if (kind == 2) error = cudaMallocHost(&at, n);
  if (kind == 3) error = cudaMallocAsync(&at, n, stream);
  if (kind == 4) { size_t address = 0; error = cuMemAlloc_v2(&address, n); at = (void *)address; }
  if (kind == 5) { error = cudaMallocPitch(&at, &pitch, 100, n / 256); n = pitch * (n / 256); }
  if (error) { printf("unexpected %d\n", kind); exit(1); }
  live[slot].at = at, live[slot].bytes = n, live[slot].kind = kind;
  allocs++, bytes += n, active += n;
  of_kind[kind == 4 || kind == 5 ? 0 : kind]++;
  if (active > peak) peak = active;
}

static void release(int slot, Handle stream) {
  void *at = live[slot].at;
  int error = live[slot].kind == 2 ? cudaFreeHost(at) : live[slot].kind == 3 ? cudaFreeAsync(at, stream)
            : live[slot].kind == 4 ? cuMemFree_v2((size_t)at) : cudaFree(at);
  if (error) { printf("unexpected free %d\n", live[slot].kind); exit(1); }
  frees++, active -= live[slot].bytes, live[slot].at = 0;
}

static void wait_for(int kind, Handle stream, Handle event) {
  int error = kind == 0 ? cudaDeviceSynchronize() : kind == 1 ? cuCtxSynchronize()
            : kind == 2 ? cudaStreamSynchronize(stream) : cudaEventSynchronize(event);
  if (error) { printf("unexpected wait %d\n", kind); exit(1); }
  waits++, waits_of[kind]++;
}

__attribute__((noinline)) void fail_to_allocate(void) {
  void *at;
  if (cudaMalloc(&at, 1ull << 60) != 2) { printf("unexpected success\n"); exit(1); }
  failed++, runtime_mallocs++, failed_mallocs++;
}

int main(int argc, char **argv) {
  state = argc > 1 ? atoi(argv[1]) : 1;
  int rounds = argc > 2 ? atoi(argv[2]) : 100;
  Handle stream, event;
  void *device;
  char text[64] = "text";
  // The first call is the one in which the collector starts.
  if (cudaStreamCreate(&stream) || cudaEventCreate(&event) || cudaEventRecord(event, stream)) return 1;
  if (cudaMalloc(&device, sizeof text)) return 1;
  runtime_mallocs++, allocs++, of_kind[0]++, bytes += sizeof text, active += sizeof text, peak = active;
  for (int i = 0; i < rounds; i++) {
    int what = below(10), slot = below(SLOTS);
    if (what < 5) live[slot].at ? release(slot, stream) : allocate(slot, stream);
    else if (what < 8) wait_for(below(4), stream, event);
    else if (what < 9) { if (cudaMemcpy(device, text, sizeof text, 1)) return 1; copies++, waits_of[4]++; }
    else fail_to_allocate();
  }
  printf("allocs %ld\nfrees %ld\nbytes %ld\nactive %ld\npeak %ld\n", allocs, frees, bytes, active, peak);
  printf("device %ld\nmanaged %ld\npinned %ld\npool %ld\n", of_kind[0], of_kind[1], of_kind[2], of_kind[3]);
  printf("waits %ld\ncopies %ld\nof_device %ld\nof_context %ld\nof_stream %ld\nof_event %ld\n", waits, copies, waits_of[0], waits_of[1], waits_of[2], waits_of[3]);
  printf("failed %ld\nmallocs %ld\n", failed, runtime_mallocs);
  return 0;
}
