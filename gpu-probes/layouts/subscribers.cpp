// Prints what the collector relies on where CUPTI has several subscribers (13.3 and later): structures, attributes,
// and where the records of this version have the fields that are read.
//
//   g++ -w -o subscribers subscribers.cpp -I$CUPTI/include -I$CUDA/include && ./subscribers > cupti-13.5/layouts.txt
//
// Needs the headers alone. One fact per line, as dump.cu prints them.
#include <cstddef>
#include <cstdio>
#include <cuda.h>
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>
#include <initializer_list>

#define STRUCT(T) printf("struct %s %zu\n", #T, sizeof(T))
#define FIELD(T, f) printf("field %s.%s %zu %zu\n", #T, #f, offsetof(T, f), sizeof(((T *)0)->f))
#define VALUE(x) printf("value %s %lld\n", #x, (long long)(x))

// Where a kind of record has its times.
#define TIME(T, f) printf(" %zu", offsetof(T, f))
#define SPAN(kind, T) printf("times %s %d", #kind, (int)kind); TIME(T, start); TIME(T, end); printf("\n")
#define MOMENT(kind, T) printf("times %s %d", #kind, (int)kind); TIME(T, timestamp); printf("\n")

static void times() {
  for (int kind : {CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL}) {
    printf("times kernel %d", kind);
    typedef CUpti_ActivityKernel13 Kernel;
    TIME(Kernel, start); TIME(Kernel, end); TIME(Kernel, completed); TIME(Kernel, queued); TIME(Kernel, submitted);
    printf("\n");
  }
  SPAN(CUPTI_ACTIVITY_KIND_MEMCPY, CUpti_ActivityMemcpy7);
  SPAN(CUPTI_ACTIVITY_KIND_MEMCPY2, CUpti_ActivityMemcpyPtoP4);
  SPAN(CUPTI_ACTIVITY_KIND_MEMSET, CUpti_ActivityMemset5);
  SPAN(CUPTI_ACTIVITY_KIND_DRIVER, CUpti_ActivityAPI);
  SPAN(CUPTI_ACTIVITY_KIND_RUNTIME, CUpti_ActivityAPI);
  SPAN(CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API, CUpti_ActivityAPI);
  SPAN(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUpti_ActivitySynchronization2);
  SPAN(CUPTI_ACTIVITY_KIND_OVERHEAD, CUpti_ActivityOverhead3);
  SPAN(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER, CUpti_ActivityUnifiedMemoryCounter3);
  SPAN(CUPTI_ACTIVITY_KIND_MEMORY, CUpti_ActivityMemory);
  SPAN(CUPTI_ACTIVITY_KIND_GRAPH_TRACE, CUpti_ActivityGraphTrace2);
  SPAN(CUPTI_ACTIVITY_KIND_DEVICE_GRAPH_TRACE, CUpti_ActivityDeviceGraphTrace);
  SPAN(CUPTI_ACTIVITY_KIND_JIT, CUpti_ActivityJit2);
  MOMENT(CUPTI_ACTIVITY_KIND_MARKER, CUpti_ActivityMarker2);
  MOMENT(CUPTI_ACTIVITY_KIND_MEMORY2, CUpti_ActivityMemory4);
  MOMENT(CUPTI_ACTIVITY_KIND_MEMORY_POOL, CUpti_ActivityMemoryPool3);
  MOMENT(CUPTI_ACTIVITY_KIND_ENVIRONMENT, CUpti_ActivityEnvironment);
  MOMENT(CUPTI_ACTIVITY_KIND_COMPUTE_ENGINE_CTX_SWITCH, CUpti_ActivityComputeEngineCtxSwitch);
}

int main() {
  printf("cupti %d\n", CUPTI_API_VERSION);
  typedef CUpti_SubscriberParams SubscriberParams;
  STRUCT(SubscriberParams);
  FIELD(SubscriberParams, structSize); FIELD(SubscriberParams, subscriberName); FIELD(SubscriberParams, oldSubscriberName);
  FIELD(SubscriberParams, oldSubscriberSize); FIELD(SubscriberParams, allowMultipleSubscribers);
  VALUE(CUPTI_ERROR_NOT_COMPATIBLE); VALUE(CUPTI_ERROR_NOT_SUPPORTED);
  VALUE(CUpti_SubscriberParams_STRUCT_SIZE); VALUE(CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN);
  typedef CUpti_BufferCallbackCompleteInfo CompleteInfo;
  STRUCT(CUpti_BufferCallbackRequestInfo); STRUCT(CompleteInfo);
  FIELD(CompleteInfo, structSize); FIELD(CompleteInfo, threadId); FIELD(CompleteInfo, ppRecordLayouts);
  FIELD(CompleteInfo, numRecordLayouts);

  VALUE(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER); VALUE(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER);
  VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_ALLOCATION_SOURCE_TRACKING); VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LATENCY_TIMESTAMPS);
  VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_ALL_SYNC_RECORDS); VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_CUDA_EVENT_DEVICE_TIMESTAMPS);
  VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LAUNCH_ATTRIBUTES); VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_DEVICE_GRAPH_TRACE);
  VALUE(CUPTI_ACTIVITY_ATTR_ENABLE_MULTI_SUBSCRIBER_GRAPH_TRACE); VALUE(CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE);
  VALUE(CUPTI_ACTIVITY_ATTR_TIMESTAMP_CALLBACK);

  typedef CUpti_ActivityKernel13 Kernel;
  STRUCT(Kernel);
  FIELD(Kernel, kind); FIELD(Kernel, registersPerThread); FIELD(Kernel, start); FIELD(Kernel, end); FIELD(Kernel, deviceId);
  FIELD(Kernel, contextId); FIELD(Kernel, streamId); FIELD(Kernel, gridX); FIELD(Kernel, blockX);
  FIELD(Kernel, staticSharedMemory); FIELD(Kernel, dynamicSharedMemory); FIELD(Kernel, localMemoryPerThread);
  FIELD(Kernel, correlationId); FIELD(Kernel, name); FIELD(Kernel, graphNodeId); FIELD(Kernel, graphId);
  typedef CUpti_ActivityMemset5 Memset;
  STRUCT(Memset);
  typedef CUpti_ActivityMemcpy7 Memcpy;
  STRUCT(Memcpy);
  typedef CUpti_ActivityGraphTrace2 GraphTrace;
  STRUCT(GraphTrace);
  typedef CUpti_ActivityComputeEngineCtxSwitch ContextSwitch;
  STRUCT(ContextSwitch);
  FIELD(ContextSwitch, kind); FIELD(ContextSwitch, contextId); FIELD(ContextSwitch, timestamp); FIELD(ContextSwitch, operationType);
  VALUE(CUPTI_ACTIVITY_KIND_COMPUTE_ENGINE_CTX_SWITCH);
  VALUE(CUPTI_COMPUTE_ENGINE_CTX_SWITCH_OPERATION_START); VALUE(CUPTI_COMPUTE_ENGINE_CTX_SWITCH_OPERATION_END);
  times();
}
