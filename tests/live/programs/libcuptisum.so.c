// Stands between a tool and libcupti ($CUPTI_REAL): passes every call on, and sums the records of the buffers that pass.
// Preloaded, it is the libcupti that the tool finds. At the end it writes to $CUPTI_SUMS: a line `KIND COUNT NANOS BYTES` for
// kernels, copies, copies between devices, sets and CUPTI's overhead, and the number of other records. In place of bytes, kernels have the time since
// they were queued, if their records tell it.
// The offsets are those of CUPTI's records since version 11.1, which later versions only extend.
// flags: -shared -fPIC -Wl,-soname,libcupti.so.13 -ldl -lpthread
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void *Handle;
typedef void Request(uint8_t **, size_t *, size_t *);
typedef void Complete(Handle, uint32_t, uint8_t *, size_t, size_t);

#define ALL(X) \
  X(cuptiGetVersion, (uint32_t *a), (a)) \
  X(cuptiGetResultString, (int a, const char **b), (a, b)) \
  X(cuptiSubscribe, (Handle *a, void *b, void *c), (a, b, c)) \
  X(cuptiUnsubscribe, (Handle a), (a)) \
  X(cuptiEnableCallback, (uint32_t a, Handle b, uint32_t c, uint32_t d), (a, b, c, d)) \
  X(cuptiActivityEnable, (uint32_t a), (a)) \
  X(cuptiActivityDisable, (uint32_t a), (a)) \
  X(cuptiActivityFlushAll, (uint32_t a), (a)) \
  X(cuptiActivityGetNextRecord, (uint8_t *a, size_t b, uint8_t **c), (a, b, c)) \
  X(cuptiActivityGetNumDroppedRecords, (Handle a, uint32_t b, size_t *c), (a, b, c)) \
  X(cuptiActivityGetAttribute, (uint32_t a, size_t *b, void *c), (a, b, c)) \
  X(cuptiActivitySetAttribute, (uint32_t a, size_t *b, void *c), (a, b, c)) \
  X(cuptiGetDeviceId, (Handle a, uint32_t *b), (a, b)) \
  X(cuptiGetStreamIdEx, (Handle a, Handle b, uint8_t c, uint32_t *d), (a, b, c, d)) \
  X(cuptiGetGraphNodeId, (Handle a, uint64_t *b), (a, b)) \
  X(cuptiActivityEnableLatencyTimestamps, (uint8_t a), (a)) \
  X(cuptiFinalize, (void), ()) \
  X(cuptiGetGraphExecId, (Handle a, uint32_t *b), (a, b))

#define POINTER(name, parameters, arguments) static int (*real_##name) parameters;
ALL(POINTER)
static int (*real_cuptiActivityRegisterCallbacks)(Request *, Complete *);
#define PASS_ON(name, parameters, arguments) int name parameters { return real_##name arguments; }
ALL(PASS_ON)

enum { KERNELS, COPIES, PEER_COPIES, SETS, OVERHEADS, OTHERS, KINDS };
static const char *const names[KINDS] = {"kernel", "memcpy", "peer", "memset", "overhead", "other"};
static struct { uint64_t count, nanos, bytes; } sums[KINDS];

static uint64_t wide(const uint8_t *record, size_t at) { uint64_t value; memcpy(&value, record + at, 8); return value; }
static uint32_t narrow(const uint8_t *record, size_t at) { uint32_t value; memcpy(&value, record + at, 4); return value; }
static void add(int kind, uint64_t start, uint64_t end, uint64_t bytes) {
  __atomic_fetch_add(&sums[kind].count, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&sums[kind].nanos, end - start, __ATOMIC_RELAXED);
  __atomic_fetch_add(&sums[kind].bytes, bytes, __ATOMIC_RELAXED);
}
static void sum(const uint8_t *record) {
  switch (narrow(record, 0)) {
    case 3: case 10: add(KERNELS, wide(record, 16), wide(record, 24), wide(record, 120) ? wide(record, 16) - wide(record, 120) : 0); break;
    case 1: add(COPIES, wide(record, 16), wide(record, 24), wide(record, 8)); break;
    case 22: add(PEER_COPIES, wide(record, 16), wide(record, 24), wide(record, 8)); break;
    case 2: add(SETS, wide(record, 16), wide(record, 24), wide(record, 8)); break;
    case 17: add(OVERHEADS, wide(record, 24), wide(record, 32), 0); break;
    default: add(OTHERS, 0, 0, 0);
  }
}

static Complete *their_complete;
static void complete(Handle context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  uint8_t *record = NULL;
  while (valid && !real_cuptiActivityGetNextRecord(buffer, valid, &record)) sum(record);
  their_complete(context, stream, buffer, size, valid);
}
int cuptiActivityRegisterCallbacks(Request *request, Complete *theirs) {
  their_complete = theirs;
  return real_cuptiActivityRegisterCallbacks(request, complete);
}

__attribute__((constructor)) static void open_real(void) {
  const char *path = getenv("CUPTI_REAL");
  void *real = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!real) return;
#define FIND(name, parameters, arguments) real_##name = dlsym(real, #name);
  ALL(FIND)
  real_cuptiActivityRegisterCallbacks = dlsym(real, "cuptiActivityRegisterCallbacks");
}

__attribute__((destructor)) static void tell(void) {
  const char *path = getenv("CUPTI_SUMS");
  uint64_t seen = 0;
  for (int i = 0; i < KINDS; i++) seen += sums[i].count;
  // A process that recorded nothing has nothing to say, such as the shell that started the program.
  FILE *out = path && seen ? fopen(path, "w") : NULL;
  if (!out) return;
  for (int i = 0; i < KINDS; i++) fprintf(out, "%s %llu %llu %llu\n", names[i], (unsigned long long)sums[i].count, (unsigned long long)sums[i].nanos, (unsigned long long)sums[i].bytes);
  fclose(out);
}
