// Does what its arguments say, one after the other:
//   launch N         launches N kernels and waits for them
//   until FILE TEXT  launches kernels, one at a time, until the file contains the text
//   cuda START|STOP  calls cudaProfilerStart or cudaProfilerStop
//   driver START|STOP calls cuProfilerStart or cuProfilerStop
//   cycle N A B      N times: cudaProfilerStart, A launches, cudaProfilerStop, B launches
//   pause            launches kernels until none of them calls a callback
//   push KIND NAME   opens an NVTX range of this thread: KIND is `ascii`, `wide`, `domain` (a registered name in a domain), or
//                    `detailed` (with category 7, colour 0xff00ff00 and payload -5), `fraction` or `ratio` (with payload 0.1, of 8 or
//                    4 bytes), or `sized` (in a domain, with a payload
//                    whose schema says that its second member is a size: 4096)
//   pop KIND         closes the last one of the kind's domain
//   tool             from now on, prints what NVTX answers to `push` and `pop`: a tool follows the ranges
//   mark NAME        marks this moment
//   start NAME       opens an NVTX range that is not a thread's; `end` closes the last
//   leave NAME       a thread opens a range and ends without closing it
//   tell NAME        prints `NAME launches L callbacks C`, counted since the last `tell`
// NVTX is what its headers would put into a program: slots for its functions, filled by the library that
// NVTX_INJECTION64_PATH names at the first call.
// flags: -L $SOFTGPU -lcudart -ldl -pthread
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaProfilerStart(void), cudaProfilerStop(void), cuProfilerStart(void), cuProfilerStop(void);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
unsigned long long softgpu_callbacks_entered(void);
static void run_step(const SoftLaunch *c, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad;
static unsigned long long launches, told_callbacks;

__attribute__((noinline)) void launch(int n) {
  dim3 one = {1, 1, 1};
  for (int i = 0; i < n; i++) bad |= cudaLaunchKernel((void *)step, one, one, 0, 0, 0), launches++;
  bad |= cudaDeviceSynchronize();
}
static int contains(const char *file, const char *text) {
  static char contents[1 << 16];
  FILE *f = fopen(file, "r");
  if (!f) return 0;
  contents[fread(contents, 1, sizeof contents - 1, f)] = 0;
  fclose(f);
  return strstr(contents, text) != 0;
}
static void until(const char *file, const char *text) {
  struct timespec pause = {0, 2000000};
  while (!contains(file, text)) launch(1), nanosleep(&pause, 0);
}
static void cycle(int n, int inside, int outside) {
  while (n--) {
    bad |= cudaProfilerStart();
    launch(inside);
    bad |= cudaProfilerStop();
    launch(outside);
  }
}
static void wait_for_rest(void) {
  struct timespec pause = {0, 2000000};
  for (unsigned long long before = 0; before != softgpu_callbacks_entered(); nanosleep(&pause, 0)) {
    before = softgpu_callbacks_entered();
    launch(1);
  }
}
static void tell(const char *name) {
  unsigned long long callbacks = softgpu_callbacks_entered();
  printf("%s launches %llu callbacks %llu\n", name, launches, callbacks - told_callbacks);
  fflush(stdout);
  launches = 0;
  told_callbacks = callbacks;
}
typedef void (*Function)(void);
typedef struct { unsigned short version, size; unsigned others[7]; int message_type; const void *message; } Attributes;
static Function core[17], core2[17];
static Function *core_slots[17], *core2_slots[17];
static int module_table(int module, Function ***table, unsigned *last) {
  *table = module == 1 ? core_slots : core2_slots;
  *last = 15;
  return module == 1 || module == 5;
}
static struct { size_t size; int (*module_table)(int, Function ***, unsigned *); } callbacks = {sizeof callbacks, module_table};
static const void *export_table(unsigned id) { return id == 1 ? &callbacks : 0; }
// What the headers put into a slot at first: it initializes NVTX and calls what the slot then holds, so a tool must not.
static void not_initialized(void) { abort(); }
static void fill(Function from, Function to) {
  for (int i = 1; i < 16; i++) {
    if (core[i] == from) core[i] = to;
    if (core2[i] == from) core2[i] = to;
  }
}
static void load_nvtx(void) {
  static int loaded;
  const char *path = getenv("NVTX_INJECTION64_PATH");
  if (loaded++ || !path) return;
  for (int i = 1; i < 16; i++) core_slots[i] = &core[i], core2_slots[i] = &core2[i];
  fill(0, not_initialized);
  void *library = dlopen(path, RTLD_LAZY);
  int (*initialize)(const void *(*)(unsigned)) = library ? dlsym(library, "InitializeInjectionNvtx2") : 0;
  if (!initialize || !initialize(export_table)) memset(core, 0, sizeof core), memset(core2, 0, sizeof core2);
  fill(not_initialized, 0);
}
static int push_ascii(const char *name) {
  load_nvtx();
  return core[9] ? ((int (*)(const char *))core[9])(name) : -2;
}
static int push_wide(const char *name) {
  wchar_t wide[100];
  load_nvtx();
  mbstowcs(wide, name, 100);
  return core[10] ? ((int (*)(const wchar_t *))core[10])(wide) : -2;
}
static void *domain(void) {
  static void *domain;
  if (!domain && core2[12]) domain = ((void *(*)(const char *))core2[12])("work");
  return domain;
}
static int push_domain(const char *name) {
  load_nvtx();
  void *registered = core2[10] ? ((void *(*)(void *, const char *))core2[10])(domain(), name) : 0;
  Attributes attributes = {3, sizeof attributes, {0}, 3, registered};
  return core2[4] ? ((int (*)(void *, const Attributes *))core2[4])(domain(), &attributes) : -2;
}
static int push_with(const char *name, const unsigned others[7]) {
  load_nvtx();
  Attributes attributes = {3, sizeof attributes, {0}, 1, name};
  memcpy(attributes.others, others, sizeof attributes.others);
  return core[8] ? ((int (*)(const Attributes *))core[8])(&attributes) : -2;
}
static int push_detailed(const char *name) { return push_with(name, (unsigned[]){7, 1, 0xff00ff00, 2, 0, -5, -1}); }
static int push_fraction(const char *name) {
  union { double value; unsigned words[2]; } it = {0.1};
  return push_with(name, (unsigned[]){0, 0, 0, 3, 0, it.words[0], it.words[1]});
}
static int push_ratio(const char *name) {
  union { float value; unsigned word; } it = {0.1f};
  return push_with(name, (unsigned[]){0, 0, 0, 6, 0, it.word, -1});
}
// NVTX's payload extension: slots of its own, filled at its first call.
static unsigned long long register_schema(const void *schema) {
  static void *slots[63];
  struct { size_t id, count; void **slots; } segment = {0, 63, slots};
  struct { unsigned short version, size, id, compatibility; size_t count; void *segments, *others[2]; } module = {3, 48, 2, 0x103, 1, &segment};
  void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
  int (*initialize)(void *) = library ? dlsym(library, "InitializeInjectionNvtxExtension") : 0;
  if (!initialize || !initialize(&module) || !slots[0]) return -1;
  return ((unsigned long long (*)(void *, const void *))slots[0])(domain(), schema);
}
static int push_sized(const char *name) {
  enum { UINT64 = 18, SIZE = 22, STATIC = 1, ID = 1 << 24, FIELDS = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 };
  typedef struct { unsigned long long flags, type; const char *name, *text; unsigned long long detail, offset; void *others[2]; } Entry;
  static const Entry entries[] = {{0, UINT64, "communicator"}, {0, SIZE, "bytes", 0, 0, 8}, {0, UINT64, "operation", 0, 0, 16}};
  static const struct { unsigned long long fields; char *name; unsigned long long type, flags; const Entry *entries; size_t count, size, align, id; void *more; }
      schema = {FIELDS, 0, STATIC, 0, entries, 3, 24, 0, ID + 5};
  load_nvtx();
  unsigned long long values[] = {77, 4096, 0}, id = register_schema(&schema);
  struct { unsigned long long schema; size_t size; void *data; } payload = {id, sizeof values, values};
  struct { unsigned short version, size; unsigned category; int color_type; unsigned color; int payload_type, count; void *payload; int message_type; const void *message; }
      attributes = {3, sizeof attributes, 0, 0, 0, 0xdfbd0009, 1, &payload, 1, name};
  return core2[4] ? ((int (*)(void *, const void *))core2[4])(domain(), &attributes) : -2;
}
static void mark(const char *name) {
  load_nvtx();
  if (core[2]) ((void (*)(const char *))core[2])(name);
}
static int push(const char *kind, const char *name) {
  if (!strcmp(kind, "detailed")) return push_detailed(name);
  if (!strcmp(kind, "sized")) return push_sized(name);
  if (!strcmp(kind, "fraction")) return push_fraction(name);
  if (!strcmp(kind, "ratio")) return push_ratio(name);
  return *kind == 'a' ? push_ascii(name) : *kind == 'w' ? push_wide(name) : push_domain(name);
}
static int pop(const char *kind) {
  load_nvtx();
  if (*kind == 'd' || *kind == 's') return core2[5] ? ((int (*)(void *))core2[5])(domain()) : -2;
  return core[11] ? ((int (*)(void))core[11])() : -2;
}
static int has_tool;
static void answered(int level) {
  if (has_tool) printf("%d\n", level), fflush(stdout);
  else bad |= level != -2;
}
static unsigned long long started;
static void start(const char *name) {
  load_nvtx();
  started = core[5] ? ((unsigned long long (*)(const char *))core[5])(name) : 0;
}
static void end(void) {
  if (core[7]) ((void (*)(unsigned long long))core[7])(started);
}
static void *leave_open(void *name) { push_ascii(name); return 0; }
static void leave(char *name) {
  pthread_t thread;
  bad |= pthread_create(&thread, 0, leave_open, name) || pthread_join(thread, 0);
}
int main(int argc, char **argv) {
  __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
  for (char **at = argv + 1; *at; at++) {
    if (!strcmp(*at, "launch")) launch(atoi(*++at));
    else if (!strcmp(*at, "until")) until(at[1], at[2]), at += 2;
    else if (!strcmp(*at, "cuda")) bad |= strcmp(*++at, "START") ? cudaProfilerStop() : cudaProfilerStart();
    else if (!strcmp(*at, "driver")) bad |= strcmp(*++at, "START") ? cuProfilerStop() : cuProfilerStart();
    else if (!strcmp(*at, "cycle")) cycle(atoi(at[1]), atoi(at[2]), atoi(at[3])), at += 3;
    else if (!strcmp(*at, "pause")) wait_for_rest();
    else if (!strcmp(*at, "tool")) has_tool = 1;
    else if (!strcmp(*at, "push")) answered(push(at[1], at[2])), at += 2;
    else if (!strcmp(*at, "pop")) answered(pop(*++at));
    else if (!strcmp(*at, "start")) start(*++at);
    else if (!strcmp(*at, "mark")) mark(*++at);
    else if (!strcmp(*at, "end")) end();
    else if (!strcmp(*at, "leave")) leave(*++at);
    else if (!strcmp(*at, "tell")) tell(*++at);
    else return fprintf(stderr, "unknown: %s\n", *at), 2;
  }
  if (bad) printf("bad %d\n", bad);
  return bad != 0;
}
