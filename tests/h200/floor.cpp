// CUPTI's own cost, the floor: kernel records that are read and discarded, injected like our collector.
// FLOOR_CALLBACKS=runtime, driver or both adds empty callbacks at the launch calls. FLOOR_KIND=51 has records of graphs instead.
//
//   g++ -O2 -shared -fPIC -o libfloor.so floor.cpp -I$CUPTI/include -I/usr/local/cuda/include -L$CUPTI/lib -lcupti
//   CUDA_INJECTION64_PATH=$PWD/libfloor.so ./loop
#include <cstdlib>
#include <cstring>
#include <vector>
#include <mutex>
#include <cupti.h>
static std::vector<uint8_t *> pool;
static std::mutex lock;
static unsigned long records;
static void request(uint8_t **b, size_t *size, size_t *max) { *size = 1 << 20; *max = 0; std::lock_guard<std::mutex> g(lock); if (pool.empty()) { *b = (uint8_t *)aligned_alloc(4096, *size); } else { *b = pool.back(); pool.pop_back(); } }
static void complete(CUcontext, uint32_t, uint8_t *b, size_t, size_t valid) { CUpti_Activity *r = 0; while (cuptiActivityGetNextRecord(b, valid, &r) == CUPTI_SUCCESS) records++; std::lock_guard<std::mutex> g(lock); pool.push_back(b); }
static void CUPTIAPI nothing(void *, CUpti_CallbackDomain, CUpti_CallbackId, const void *) {}
static CUpti_SubscriberHandle handle;
static void listen(const char *domains) {
  cuptiSubscribe(&handle, nothing, 0);
  if (strcmp(domains, "driver")) for (CUpti_CallbackId id : {211, 214, 430, 431}) cuptiEnableCallback(1, handle, CUPTI_CB_DOMAIN_RUNTIME_API, id);
  if (strcmp(domains, "runtime")) for (CUpti_CallbackId id : {307, 442, 652, 653}) cuptiEnableCallback(1, handle, CUPTI_CB_DOMAIN_DRIVER_API, id);
}
extern "C" int InitializeInjection(void) { cuptiActivityRegisterCallbacks(request, complete); if (const char *domains = getenv("FLOOR_CALLBACKS")) listen(domains); const char *kind = getenv("FLOOR_KIND"); return cuptiActivityEnable(kind ? (CUpti_ActivityKind)atoi(kind) : CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS; }
// The floor while a program runs. A callback is enabled before the records: with contexts that exist, CUPTI 13.0 crashes otherwise.
extern "C" int floor_begin_both(void) { listen("both"); cuptiActivityRegisterCallbacks(request, complete); return cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }
extern "C" int floor_begin(void) { cuptiSubscribe(&handle, nothing, 0); cuptiEnableCallback(1, handle, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_STREAM_CREATED); cuptiActivityRegisterCallbacks(request, complete); return cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }
extern "C" int floor_end(void) { cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); cuptiActivityFlushAll(0); cuptiUnsubscribe(handle); return cuptiFinalize(); }
