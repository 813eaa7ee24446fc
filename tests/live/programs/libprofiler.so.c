// A profiler inside a program, as others are built. `profile_start(way)` and `profile_stop()`; the ways:
//   subscriber  subscribes and keeps that, replaces CUPTI's clock, then records activities (torch.profiler before 2026)
//   activity    records activities only, and replaces CUPTI's clock (torch.profiler since)
//   dlsym       finds CUPTI by dlsym; subscribes to whole domains, records activities, unsubscribes (Proton)
//   second      as dlsym, by cuptiSubscribe_v2 (JAX)
//   finalize    as subscriber, and unloads CUPTI at the end
//   shared      a subscriber that allows others, by the functions of a subscriber alone (CUPTI 13.5)
//   clocked     as shared, with a clock of its own
//   unshared    as shared, and allows no others
//   whole       as shared, and has graphs recorded as a whole
// Tells what it got: records by kind, callbacks, answers that were errors, buffers that are not its own, times outside
// its own clock's, attributes of CUPTI.
// flags: -shared -fPIC -L $SOFTGPU -lcupti -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef void Callback(void *, unsigned, unsigned, const void *);
typedef void Request(uint8_t **, size_t *, size_t *);
typedef void Complete(void *, unsigned, uint8_t *, size_t, size_t);
int cuptiSubscribe(void **, Callback *, void *), cuptiUnsubscribe(void *), cuptiEnableDomain(unsigned, void *, unsigned);
int cuptiEnableCallback(unsigned, void *, unsigned, unsigned), cuptiGetCallbackState(unsigned *, void *, unsigned, unsigned);
int cuptiActivityRegisterCallbacks(Request *, Complete *), cuptiActivityRegisterTimestampCallback(uint64_t (*)(void));
int cuptiActivityEnable(unsigned), cuptiActivityDisable(unsigned), cuptiActivityFlushAll(unsigned), cuptiFinalize(void);
int cuptiActivityGetNextRecord(uint8_t *, size_t, uint8_t **), cuptiActivityGetAttribute(unsigned, size_t *, void *);
int cuptiActivitySetAttribute(unsigned, size_t *, void *), cuptiSubscribe_v2(void **, Callback *, void *, void *);
typedef struct { size_t size; const char *name; char *old; size_t old_size; uint8_t allow, pad[7]; } Parameters;
typedef void RequestOf(uint8_t **, size_t *, size_t *, void *);
typedef void CompleteOf(uint8_t *, size_t, size_t, void *);
int cuptiActivityRegisterCallbacks_v2(void *, RequestOf *, CompleteOf *), cuptiActivityEnable_v2(void *, unsigned, void *);
int cuptiActivityDisable_v2(void *, unsigned, void *), cuptiActivityGetNextRecord_v2(void *, uint8_t *, size_t, uint8_t **);
int cuptiActivitySetAttribute_v2(void *, unsigned, size_t *, void *), cuptiActivityGetAttribute_v2(void *, unsigned, size_t *, void *);
int cuptiActivityGetNumDroppedRecords_v2(void *, void *, unsigned, size_t *);

static struct {
  int (*subscribe)(void **, Callback *, void *), (*unsubscribe)(void *), (*enable_domain)(unsigned, void *, unsigned);
  int (*enable_callback)(unsigned, void *, unsigned, unsigned);
  int (*register_callbacks)(Request *, Complete *), (*enable)(unsigned), (*disable)(unsigned), (*flush)(unsigned);
} cupti;
static const char *way;
static void *subscriber;
static unsigned long long kinds[64], callbacks, launch_callbacks, foreign, odd, errors, requested;
static uint64_t began;
static uint8_t *lent[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int try_to(const char *what, int answer) {
  if (answer) errors++, printf("%s: %s answered %d\n", way, what, answer);
  return answer;
}
/* Another unit, another origin. */
static uint64_t ticks(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (t.tv_sec * 1000000000ull + t.tv_nsec) * 3 + 12345;
}
static void on_call(void *user, unsigned domain, unsigned id, const void *data) {
  __sync_fetch_and_add(&callbacks, user == &kinds);
  /* cuLaunchKernel in the driver's domain, cudaLaunchKernel in the runtime's */
  __sync_fetch_and_add(&launch_callbacks, (domain == 1 && id == 307) || (domain == 2 && id == 211));
}
static void request(uint8_t **buffer, size_t *size, size_t *records) {
  *size = 1 << 16;
  *buffer = aligned_alloc(8, *size);
  memset(*buffer, 0xa5, *size);
  *records = 0;
  pthread_mutex_lock(&lock);
  lent[requested++] = *buffer;
  pthread_mutex_unlock(&lock);
}
static int give_back(uint8_t *buffer) {
  int own = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < requested; i++) if (lent[i] == buffer) lent[i] = 0, own = 1;
  pthread_mutex_unlock(&lock);
  return own;
}
static int is_of_subscriber;
static int next(uint8_t *buffer, size_t valid, uint8_t **record) {
  if (is_of_subscriber) return cuptiActivityGetNextRecord_v2(subscriber, buffer, valid, record);
  return cuptiActivityGetNextRecord(buffer, valid, record);
}
static void complete(void *context, unsigned stream, uint8_t *buffer, size_t size, size_t valid) {
  uint8_t *record = 0;
  if (!give_back(buffer)) { foreign++; return; }
  while (valid && !next(buffer, valid, &record)) {
    unsigned kind;
    uint64_t times[2];
    memcpy(&kind, record, 4);
    memcpy(times, record + 16, 16);
    kinds[kind % 64]++;
    if (kind == 10 && began && !(began <= times[0] && times[0] < times[1] && times[1] <= ticks())) odd++;
  }
  free(buffer);
}
static void find(int by_name) {
  void *library = by_name ? dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD) : 0;
#define FUNCTION(field, name) cupti.field = by_name ? dlsym(library, #name) : (void *)name
  FUNCTION(subscribe, cuptiSubscribe); FUNCTION(unsubscribe, cuptiUnsubscribe); FUNCTION(enable_domain, cuptiEnableDomain);
  FUNCTION(enable_callback, cuptiEnableCallback); FUNCTION(register_callbacks, cuptiActivityRegisterCallbacks);
  FUNCTION(enable, cuptiActivityEnable); FUNCTION(disable, cuptiActivityDisable); FUNCTION(flush, cuptiActivityFlushAll);
}
static void request_of(uint8_t **buffer, size_t *size, size_t *records, void *info) { request(buffer, size, records); }
static void complete_of(uint8_t *buffer, size_t size, size_t valid, void *info) { complete(0, 0, buffer, size, valid); }
static int subscribe_of(void **subscriber, Callback *callback, void *user) {
  Parameters parameters = {sizeof parameters, "libprofiler", 0, 0, strcmp(way, "unshared") != 0};
  return cuptiSubscribe_v2(subscriber, callback, user, &parameters);
}
static int register_of(Request *request, Complete *complete) {
  return cuptiActivityRegisterCallbacks_v2(subscriber, request_of, complete_of);
}
static int enable_of(unsigned kind) { return cuptiActivityEnable_v2(subscriber, kind, 0); }
static int disable_of(unsigned kind) { return cuptiActivityDisable_v2(subscriber, kind, 0); }
static void find_of_subscriber(void) {
  cupti.subscribe = subscribe_of, cupti.register_callbacks = register_of, cupti.enable = enable_of, cupti.disable = disable_of;
}
static int subscribe_v2(void **subscriber, Callback *callback, void *user) {
  return cuptiSubscribe_v2(subscriber, callback, user, 0);
}
static int is(const char *name) { return !strcmp(way, name); }
static unsigned attribute(unsigned number) {
  uint8_t value = 99;
  size_t size = 1;
  if (is_of_subscriber) cuptiActivityGetAttribute_v2(subscriber, number, &size, &value);
  else cuptiActivityGetAttribute(number, &size, &value);
  return value;
}
static void each_kind(int (*call)(unsigned), const char *what) {
  unsigned recorded[] = {10, 2, 5};
  for (int i = 0; i < 3; i++) try_to(what, call(recorded[i]));
}
void profile_start(const char *name) {
  way = name;
  int is_second = is("second");
  if (is_second) way = "dlsym";
  find(!is_second && is("dlsym"));
  if (is_second) cupti.subscribe = subscribe_v2;
  is_of_subscriber = is("shared") || is("clocked") || is("unshared") || is("whole");
  if (is_of_subscriber) find_of_subscriber();
  memset(kinds, 0, sizeof kinds), callbacks = launch_callbacks = foreign = odd = errors = 0;
  if (!is("activity") && !subscriber && try_to("cuptiSubscribe", cupti.subscribe(&subscriber, on_call, &kinds))) subscriber = 0;
  if (subscriber && (is("dlsym") || is_of_subscriber)) try_to("cuptiEnableDomain", cupti.enable_domain(1, subscriber, 2)), try_to("cuptiEnableDomain", cupti.enable_domain(1, subscriber, 1));
  else if (subscriber) try_to("cuptiEnableCallback", cupti.enable_callback(1, subscriber, 3, 1));
  uint8_t whole = 1;
  size_t one = 1;
  if (is("whole")) try_to("cuptiActivitySetAttribute_v2", cuptiActivitySetAttribute_v2(subscriber, 20, &one, &whole));
  began = 0;
  if (is("clocked")) {
    uint64_t (*clock)(void) = ticks;
    size_t size = sizeof clock;
    try_to("cuptiActivitySetAttribute_v2", cuptiActivitySetAttribute_v2(subscriber, 22, &size, &clock)), began = ticks();
  } else if (!is("dlsym") && !is_of_subscriber) try_to("cuptiActivityRegisterTimestampCallback", cuptiActivityRegisterTimestampCallback(ticks)), began = ticks();
  try_to("cuptiActivityRegisterCallbacks", cupti.register_callbacks(request, complete));
  each_kind(cupti.enable, "cuptiActivityEnable");
}
void profile_stop(void) {
  unsigned zeroed = attribute(5), per_thread = attribute(9), state = 9;
  each_kind(cupti.disable, "cuptiActivityDisable");
  /* torch.profiler does other work here, and takes no records if none of its buffers is with CUPTI by then. */
  struct timespec work = {0, 20000000};
  nanosleep(&work, 0);
  int is_lent = 0;
  for (int i = 0; i < requested; i++) is_lent |= lent[i] != 0;
  if (!is_lent && requested > 0) memset(kinds, 0, sizeof kinds);
  try_to("cuptiActivityFlushAll", cupti.flush(is("dlsym") || is_of_subscriber ? 0 : 1));
  size_t dropped = 0;
  if (is_of_subscriber) try_to("cuptiActivityGetNumDroppedRecords_v2", cuptiActivityGetNumDroppedRecords_v2(subscriber, 0, 0, &dropped));
  if (subscriber) cuptiGetCallbackState(&state, subscriber, 1, 307);
  if (subscriber && (is("dlsym") || is_of_subscriber)) try_to("cuptiEnableDomain", cupti.enable_domain(0, subscriber, 1));
  if (subscriber && (is("dlsym") || is_of_subscriber || is("finalize"))) try_to("cuptiUnsubscribe", cupti.unsubscribe(subscriber)), subscriber = 0;
  if (is("finalize")) try_to("cuptiFinalize", cuptiFinalize());
  printf("%s: kernels %llu memsets %llu runtime %llu callbacks %d of launches %llu (state %u) errors %llu foreign %llu odd %llu zeroed %u per thread %u\n",
         way, kinds[10], kinds[2], kinds[5], callbacks > 0, launch_callbacks, state, errors, foreign, odd, zeroed, per_thread);
  fflush(stdout);
}
