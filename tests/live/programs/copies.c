// Copies memory in every way, chosen by a seed: SEED COPIES THREADS. Says of each direction how many records the copies
// must have, and their bytes; how many calls copied nothing, made a copy of the host's memory themselves, or failed; and how
// many kernels ran. Each thread has a stream, buffers and a graph of its own. Fails if a byte arrives wrong.
// flags: -L $SOFTGPU -lcudart -lcuda -ldl -lpthread
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void *Handle;
typedef unsigned long long Address;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } Pitched;
typedef struct { Handle src_array; size_t src_pos[3]; Pitched src; Handle dst_array; size_t dst_pos[3]; Pitched dst; size_t width, height, depth; int kind; } Slices;
typedef struct { int source_order, places[4]; unsigned flags; } Attributes;
enum { HTOH, HTOD, DTOH, DTOD, DEFAULT };
int cudaMalloc(void **, size_t), cudaMallocHost(void **, size_t), cudaStreamCreate(Handle *), cudaStreamSynchronize(Handle);
int cudaMemcpy(void *, const void *, size_t, int), cudaMemcpyAsync(void *, const void *, size_t, int, Handle);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int), cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, int, Handle);
int cudaMemcpy3D(const Slices *), cudaMemcpy3DAsync(const Slices *, Handle);
int cudaMemcpyPeer(void *, int, const void *, int, size_t), cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, Handle);
int cudaMemcpyBatchAsync(void **, const void **, size_t *, size_t, Attributes *, size_t *, size_t, Handle);
int cudaStreamBeginCapture(Handle, int), cudaStreamEndCapture(Handle, Handle *), cudaGraphCreate(Handle *, unsigned);
int cudaGraphAddMemcpyNode1D(Handle *, Handle, const Handle *, size_t, void *, const void *, size_t, int);
int cudaGraphInstantiate(Handle *, Handle, unsigned long long), cudaGraphLaunch(Handle, Handle);
int cuMemcpyHtoD_v2(Address, const void *, size_t), cuMemcpyDtoH_v2(void *, Address, size_t), cuMemcpyDtoDAsync_v2(Address, Address, size_t, Handle);
int cuMemcpyAsync(Address, Address, size_t, Handle);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);

static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z4noopv() { ret; }\n";
static void noop(const SoftLaunch *launch, void **args) { (void)launch, (void)args; }

enum { SIZE = 1 << 16, KINDS = 4 };
static const char *names[KINDS] = {"HtoH", "HtoD", "DtoH", "DtoD"};
typedef struct { unsigned long long records[KINDS], bytes[KINDS], empty, host, host_bytes, failed, kernels, graphs, calls, copies; } Ledger;
typedef struct { unsigned long long seed; int n; Ledger ledger; int bad; } Thread;

static unsigned next(Thread *t) { return (t->seed = t->seed * 6364136223846793005ull + 1442695040888963407ull) >> 33; }
static void note(Thread *t, int kind, size_t bytes) {
  t->ledger.calls++;
  if (!bytes) { t->ledger.empty++; return; }
  t->ledger.records[kind]++, t->ledger.bytes[kind] += bytes, t->ledger.copies++;
}

static Handle module, kernel;
static pthread_barrier_t captured_all;

static void *work(void *argument) {
  Thread *t = argument;
  Ledger *l = &t->ledger;
  char *a, *b, *pinned, *pageable = malloc(SIZE), *back = malloc(SIZE);
  Handle stream, graph, captured, node, exec;
  int bad = cudaMalloc((void **)&a, SIZE) | cudaMalloc((void **)&b, SIZE) | cudaMallocHost((void **)&pinned, SIZE) | cudaStreamCreate(&stream);
  for (int i = 0; i < SIZE; i++) pageable[i] = next(t);
  // A graph of a copy that was captured, a kernel, and one of a copy that was added.
  bad |= cudaStreamBeginCapture(stream, 1) | cudaMemcpyAsync(a, pinned, 96, HTOD, stream);
  bad |= cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0) | cudaStreamEndCapture(stream, &captured);
  bad |= cudaGraphCreate(&graph, 0) | cudaGraphAddMemcpyNode1D(&node, graph, 0, 0, pinned, a, 160, DTOH);
  Handle execs[2];
  bad |= cudaGraphInstantiate(&execs[0], captured, 0) | cudaGraphInstantiate(&execs[1], graph, 0);
  // A copy on the default stream would end a capture of another thread.
  pthread_barrier_wait(&captured_all);
  for (int i = 0; i < t->n; i++) {
    size_t bytes = next(t) % 8 ? next(t) % (SIZE / 2) : 0, at = next(t) % (SIZE / 2);
    size_t width = next(t) % 100, rows = next(t) % 20, pitch = 128 + next(t) % 100;
    switch (next(t) % 19) {
      case 0: bad |= cudaMemcpy(a + at, pageable + at, bytes, HTOD); note(t, HTOD, bytes); break;
      case 1: bad |= cudaMemcpyAsync(a + at, pinned + at, bytes, HTOD, stream); note(t, HTOD, bytes); break;
      case 2: bad |= cudaMemcpyAsync(pinned + at, a, bytes, DTOH, stream); note(t, DTOH, bytes); break;
      case 3: bad |= cudaMemcpy(back, b + at, bytes, DTOH); note(t, DTOH, bytes); break;
      case 4: bad |= cudaMemcpyAsync(b + at, a + at, bytes, DTOD, stream); note(t, DTOD, bytes); break;
      case 5: bad |= cudaMemcpy2D(a, pitch, pageable, 100, width, rows, HTOD); note(t, HTOD, width * rows); break;
      case 6: bad |= cudaMemcpy2DAsync(pinned, pitch, a, 256, width, rows, DTOH, stream); note(t, DTOH, width * rows); break;
      case 7: {
        Slices s = {.src = {a, 128, 128, 24}, .dst = {b, pitch, pitch, 24}, .width = width, .height = rows, .depth = 1 + at % 3, .kind = at % 2 ? DTOD : DEFAULT};
        bad |= at % 5 ? cudaMemcpy3DAsync(&s, stream) : cudaMemcpy3D(&s);
        note(t, DTOD, width * rows * s.depth);
        break;
      }
      case 8: bad |= cudaMemcpyPeerAsync(b, 0, a + at, 0, bytes, stream); note(t, DTOD, bytes); break;
      case 9: bad |= cudaMemcpyPeer(b, 0, a + at, 0, bytes); note(t, DTOD, bytes); break;
      case 10: bad |= cudaMemcpy(a, pageable + at, bytes, DEFAULT); note(t, HTOD, bytes); break;
      // The host copies it during the call.
      case 11: bad |= cudaMemcpy(back, pageable + at, bytes, HTOH); note(t, HTOH, bytes); l->host += bytes != 0, l->host_bytes += bytes; break;
      case 12: bad |= cudaMemcpyAsync(pinned, pageable + at, bytes, HTOH, stream); note(t, HTOH, bytes); break;
      case 13: bad |= cuMemcpyHtoD_v2((Address)a, pageable, bytes); note(t, HTOD, bytes); break;
      case 14: bad |= cuMemcpyDtoDAsync_v2((Address)b, (Address)a + at, bytes, stream); note(t, DTOD, bytes); break;
      case 15: bad |= cuMemcpyAsync((Address)pinned, (Address)a + at, bytes, stream); note(t, DTOH, bytes); break;
      case 16: {
        // Two alike have one record; the third has one of its own.
        void *to[] = {a, a + 100, pinned};
        const void *from[] = {pinned, pinned + 500, b};
        size_t sizes[] = {64, 1 + bytes, 32}, first[] = {0};
        Attributes in_stream_order = {.source_order = 1};
        bad |= cudaMemcpyBatchAsync(to, from, sizes, 3, &in_stream_order, first, 1, stream);
        l->calls++, l->copies += 3, l->records[HTOD]++, l->records[DTOH]++, l->bytes[HTOD] += 65 + bytes, l->bytes[DTOH] += 32;
        break;
      }
      case 17: exec = execs[at % 2]; bad |= cudaGraphLaunch(exec, stream); l->graphs++, l->copies++; if (at % 2) l->records[DTOH]++, l->bytes[DTOH] += 160; else l->kernels++, l->records[HTOD]++, l->bytes[HTOD] += 96; break;
      case 18: bad |= !cudaMemcpy((void *)8, pageable, 100, HTOD); l->calls++, l->failed++; break;
    }
    if (next(t) % 3 == 0) bad |= cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0), l->kernels++;
  }
  // The bytes arrive.
  bad |= cudaStreamSynchronize(stream) | cudaMemcpy2D(a, 300, pageable, 200, 200, 100, HTOD) | cudaMemcpy2D(back, 200, a, 300, 200, 100, DTOH);
  note(t, HTOD, 20000), note(t, DTOH, 20000);
  t->bad = bad | memcmp(back, pageable, 20000);
  return 0;
}

int main(int argc, char **argv) {
  (void)argc;
  int n = atoi(argv[3]), bad = 0;
  void (*on_software)(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t) = dlsym(RTLD_DEFAULT, "softgpu_register_kernel_params");
  if (on_software) on_software("_Z4noopv", noop, 0, 0);
  void *first;
  bad |= cudaMalloc(&first, 64) | cuModuleLoadData(&module, ptx) | cuModuleGetFunction(&kernel, module, "_Z4noopv");
  pthread_barrier_init(&captured_all, 0, n);
  pthread_t threads[n];
  Thread all[n];
  Ledger sum = {0};
  for (int i = 0; i < n; i++) {
    all[i] = (Thread){.seed = strtoull(argv[1], 0, 10) * 1000 + i, .n = atoi(argv[2])};
    bad |= pthread_create(&threads[i], 0, work, &all[i]);
  }
  for (int i = 0; i < n; i++) {
    pthread_join(threads[i], 0), bad |= all[i].bad;
    for (size_t at = 0; at < sizeof sum / 8; at++) ((unsigned long long *)&sum)[at] += ((unsigned long long *)&all[i].ledger)[at];
  }
  for (int i = 0; i < KINDS; i++) printf("%s %llu %llu\n", names[i], sum.records[i], sum.bytes[i]);
  printf("calls %llu empty %llu host %llu host_bytes %llu failed %llu graphs %llu kernels %llu copies %llu threads %d bad %d\n", sum.calls, sum.empty, sum.host, sum.host_bytes, sum.failed, sum.graphs, sum.kernels, sum.copies, n, bad);
  return bad != 0;
}
