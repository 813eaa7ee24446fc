// CUPTI's own floor: kernel records alone, stepped through and thrown away, injected like our collector.
//
//   g++ -O2 -shared -fPIC -o libfloor.so floor.cpp -I$CUPTI/include -I/usr/local/cuda/include -L$CUPTI/lib -lcupti
//   CUDA_INJECTION64_PATH=$PWD/libfloor.so ./loop
#include <cstdlib>
#include <vector>
#include <mutex>
#include <cupti.h>
static std::vector<uint8_t *> pool;
static std::mutex lock;
static unsigned long records;
static void request(uint8_t **b, size_t *size, size_t *max) { *size = 1 << 20; *max = 0; std::lock_guard<std::mutex> g(lock); if (pool.empty()) { *b = (uint8_t *)aligned_alloc(4096, *size); } else { *b = pool.back(); pool.pop_back(); } }
static void complete(CUcontext, uint32_t, uint8_t *b, size_t, size_t valid) { CUpti_Activity *r = 0; while (cuptiActivityGetNextRecord(b, valid, &r) == CUPTI_SUCCESS) records++; std::lock_guard<std::mutex> g(lock); pool.push_back(b); }
extern "C" int InitializeInjection(void) { cuptiActivityRegisterCallbacks(request, complete); return cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS; }
