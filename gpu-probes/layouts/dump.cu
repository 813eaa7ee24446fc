// Prints what the collector and the software GPU rely on: sizes and offsets of the CUPTI and
// call-parameter structures, callback ids by name, and a few raw activity buffers with the
// same records as the headers decode them.
//
//   nvcc -w -O1 -arch=native -o dump dump.cu -I$CUPTI/include -L$CUPTI/lib -lcupti -lcuda
//   ./dump OUTDIR      writes OUTDIR/layouts.txt, OUTDIR/activity-N.bin and OUTDIR/activity-N.txt
//
// The layouts alone need neither a GPU nor nvcc, only libcupti and the headers of cudart, crt and CUPTI. They are all of
// layouts.txt except for the lines `call`, which say what the libraries called on a GPU:
//
//   g++ -w -x c++ -DLAYOUTS_ONLY -o dump dump.cu -I$CUDA/include -L$CUDA/lib -l:libcupti.so.13 -Wl,-rpath,$CUDA/lib
//   ./dump OUTDIR      writes OUTDIR/layouts.txt
//
// One fact per line, so that a diff between two CUPTI versions is readable.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <cuda.h>
#ifdef LAYOUTS_ONLY
#include <cuda_runtime_api.h>
#else
#include <cuda_runtime.h>
#endif
#include <cupti.h>

static FILE *out;
static std::string dir;

#define STRUCT(T) fprintf(out, "struct %s %zu\n", #T, sizeof(T))
#define FIELD(T, f) fprintf(out, "field %s.%s %zu %zu\n", #T, #f, offsetof(T, f), sizeof(((T *)0)->f))
#define VALUE(x) fprintf(out, "value %s %lld\n", #x, (long long)(x))

static void layouts() {
  uint32_t version = 0;
  cuptiGetVersion(&version);
  fprintf(out, "cupti %u\n", version);
#ifdef LAYOUTS_ONLY
  int driver = CUDA_VERSION, runtime = CUDART_VERSION;
#else
  int driver = 0, runtime = 0;
  cuDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
#endif
  fprintf(out, "driver_api %d\nruntime_api %d\n", driver, runtime);

  STRUCT(CUpti_CallbackData);
  FIELD(CUpti_CallbackData, callbackSite); FIELD(CUpti_CallbackData, functionName); FIELD(CUpti_CallbackData, functionParams);
  FIELD(CUpti_CallbackData, functionReturnValue); FIELD(CUpti_CallbackData, symbolName); FIELD(CUpti_CallbackData, context);
  FIELD(CUpti_CallbackData, contextUid); FIELD(CUpti_CallbackData, correlationData); FIELD(CUpti_CallbackData, correlationId);
  STRUCT(CUpti_ResourceData);
  FIELD(CUpti_ResourceData, context); FIELD(CUpti_ResourceData, resourceHandle); FIELD(CUpti_ResourceData, resourceDescriptor);

  STRUCT(CUpti_Activity); FIELD(CUpti_Activity, kind);
  typedef CUpti_ActivityKernel10 Kernel;
  STRUCT(Kernel);
  FIELD(Kernel, kind); FIELD(Kernel, registersPerThread); FIELD(Kernel, start); FIELD(Kernel, end); FIELD(Kernel, completed);
  FIELD(Kernel, deviceId); FIELD(Kernel, contextId); FIELD(Kernel, streamId); FIELD(Kernel, gridX); FIELD(Kernel, gridY); FIELD(Kernel, gridZ);
  FIELD(Kernel, blockX); FIELD(Kernel, blockY); FIELD(Kernel, blockZ); FIELD(Kernel, staticSharedMemory); FIELD(Kernel, dynamicSharedMemory);
  FIELD(Kernel, localMemoryPerThread); FIELD(Kernel, localMemoryTotal); FIELD(Kernel, correlationId); FIELD(Kernel, gridId); FIELD(Kernel, name);
  FIELD(Kernel, queued); FIELD(Kernel, submitted); FIELD(Kernel, launchType); FIELD(Kernel, graphNodeId); FIELD(Kernel, graphId); FIELD(Kernel, channelID);

  typedef CUpti_ActivityMemset4 Memset;
  STRUCT(Memset);
  FIELD(Memset, kind); FIELD(Memset, value); FIELD(Memset, bytes); FIELD(Memset, start); FIELD(Memset, end); FIELD(Memset, deviceId);
  FIELD(Memset, contextId); FIELD(Memset, streamId); FIELD(Memset, correlationId); FIELD(Memset, flags); FIELD(Memset, memoryKind);
  FIELD(Memset, graphNodeId); FIELD(Memset, graphId); FIELD(Memset, channelID); FIELD(Memset, channelType);
  typedef CUpti_ActivityMemcpy6 Memcpy;
  STRUCT(Memcpy);
  FIELD(Memcpy, kind); FIELD(Memcpy, copyKind); FIELD(Memcpy, srcKind); FIELD(Memcpy, dstKind); FIELD(Memcpy, flags); FIELD(Memcpy, bytes);
  FIELD(Memcpy, start); FIELD(Memcpy, end); FIELD(Memcpy, deviceId); FIELD(Memcpy, contextId); FIELD(Memcpy, streamId); FIELD(Memcpy, correlationId);
  FIELD(Memcpy, runtimeCorrelationId); FIELD(Memcpy, graphNodeId); FIELD(Memcpy, graphId); FIELD(Memcpy, channelID); FIELD(Memcpy, channelType); FIELD(Memcpy, copyCount);

  typedef CUpti_ActivityMemcpyPtoP4 MemcpyPtoP;
  STRUCT(MemcpyPtoP);
  FIELD(MemcpyPtoP, kind); FIELD(MemcpyPtoP, copyKind); FIELD(MemcpyPtoP, srcKind); FIELD(MemcpyPtoP, dstKind); FIELD(MemcpyPtoP, flags); FIELD(MemcpyPtoP, bytes);
  FIELD(MemcpyPtoP, start); FIELD(MemcpyPtoP, end); FIELD(MemcpyPtoP, deviceId); FIELD(MemcpyPtoP, contextId); FIELD(MemcpyPtoP, streamId);
  FIELD(MemcpyPtoP, srcDeviceId); FIELD(MemcpyPtoP, srcContextId); FIELD(MemcpyPtoP, dstDeviceId); FIELD(MemcpyPtoP, dstContextId);
  FIELD(MemcpyPtoP, correlationId); FIELD(MemcpyPtoP, graphNodeId); FIELD(MemcpyPtoP, graphId); FIELD(MemcpyPtoP, channelID); FIELD(MemcpyPtoP, channelType);

  typedef CUpti_ActivityGraphTrace2 GraphTrace;
  STRUCT(GraphTrace);
  FIELD(GraphTrace, kind); FIELD(GraphTrace, correlationId); FIELD(GraphTrace, start); FIELD(GraphTrace, end); FIELD(GraphTrace, deviceId);
  FIELD(GraphTrace, graphId); FIELD(GraphTrace, contextId); FIELD(GraphTrace, streamId); FIELD(GraphTrace, endDeviceId); FIELD(GraphTrace, endContextId);

  typedef CUpti_ActivityOverhead3 Overhead;
  STRUCT(Overhead);
  FIELD(Overhead, kind); FIELD(Overhead, overheadKind); FIELD(Overhead, objectKind); FIELD(Overhead, objectId.pt.processId); FIELD(Overhead, objectId.pt.threadId);
  FIELD(Overhead, objectId.dcs.deviceId); FIELD(Overhead, objectId.dcs.contextId); FIELD(Overhead, objectId.dcs.streamId);
  FIELD(Overhead, start); FIELD(Overhead, end); FIELD(Overhead, correlationId); FIELD(Overhead, overheadData);
  VALUE(CUPTI_ACTIVITY_KIND_OVERHEAD);
  VALUE(CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER); VALUE(CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH); VALUE(CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION);
  VALUE(CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE); VALUE(CUPTI_ACTIVITY_OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING); VALUE(CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING);
  VALUE(CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL); VALUE(CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST); VALUE(CUPTI_ACTIVITY_OVERHEAD_UVM_ACTIVITY_INIT);
  VALUE(CUPTI_ACTIVITY_OBJECT_PROCESS); VALUE(CUPTI_ACTIVITY_OBJECT_THREAD); VALUE(CUPTI_ACTIVITY_OBJECT_DEVICE); VALUE(CUPTI_ACTIVITY_OBJECT_CONTEXT); VALUE(CUPTI_ACTIVITY_OBJECT_STREAM);

  STRUCT(CUpti_ModuleResourceData);
  FIELD(CUpti_ModuleResourceData, moduleId); FIELD(CUpti_ModuleResourceData, cubinSize); FIELD(CUpti_ModuleResourceData, pCubin);
  VALUE(CUPTI_CBID_RESOURCE_MODULE_LOADED); VALUE(CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
  VALUE(CU_EVENT_RECORD_EXTERNAL); VALUE(CUPTI_TIMESTAMP_UNKNOWN);
  VALUE(CUPTI_CBID_RESOURCE_CONTEXT_CREATED); VALUE(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);

  typedef CUpti_ActivityUnifiedMemoryCounter3 UnifiedMemory;
  STRUCT(UnifiedMemory);
  FIELD(UnifiedMemory, kind); FIELD(UnifiedMemory, counterKind); FIELD(UnifiedMemory, value); FIELD(UnifiedMemory, start); FIELD(UnifiedMemory, end);
  FIELD(UnifiedMemory, address); FIELD(UnifiedMemory, srcId); FIELD(UnifiedMemory, dstId); FIELD(UnifiedMemory, streamId); FIELD(UnifiedMemory, processId);
  FIELD(UnifiedMemory, flags); FIELD(UnifiedMemory, pad); FIELD(UnifiedMemory, processors);
  STRUCT(CUpti_ActivityUnifiedMemoryCounter2); STRUCT(CUpti_ActivityUnifiedMemoryCounterConfig);
  FIELD(CUpti_ActivityUnifiedMemoryCounterConfig, scope); FIELD(CUpti_ActivityUnifiedMemoryCounterConfig, kind);
  FIELD(CUpti_ActivityUnifiedMemoryCounterConfig, deviceId); FIELD(CUpti_ActivityUnifiedMemoryCounterConfig, enable);
  VALUE(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER); VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES);
#define COUNTER(name) VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_##name)
  COUNTER(BYTES_TRANSFER_HTOD); COUNTER(BYTES_TRANSFER_DTOH); COUNTER(CPU_PAGE_FAULT_COUNT); COUNTER(GPU_PAGE_FAULT); COUNTER(THRASHING);
  COUNTER(THROTTLING); COUNTER(REMOTE_MAP); COUNTER(BYTES_TRANSFER_DTOD); COUNTER(COUNT);
#define ACCESS(name) VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_##name)
  ACCESS(READ); ACCESS(WRITE); ACCESS(ATOMIC); ACCESS(PREFETCH);
#define MIGRATION(name) VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_##name)
  MIGRATION(USER); MIGRATION(COHERENCE); MIGRATION(PREFETCH); MIGRATION(EVICTION); MIGRATION(ACCESS_COUNTERS);
#define REMOTE(name) VALUE(CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_##name)
  REMOTE(COHERENCE); REMOTE(THRASHING); REMOTE(POLICY); REMOTE(OUT_OF_MEMORY); REMOTE(EVICTION);
  VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED); VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE);
  VALUE(CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES);

  typedef CUpti_ActivityExternalCorrelation External;
  STRUCT(External);
  FIELD(External, kind); FIELD(External, externalKind); FIELD(External, externalId); FIELD(External, correlationId);
  VALUE(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION); VALUE(CUPTI_ACTIVITY_KIND_DRIVER); VALUE(CUPTI_ACTIVITY_KIND_RUNTIME);
  VALUE(CUPTI_EXTERNAL_CORRELATION_KIND_UNKNOWN); VALUE(CUPTI_EXTERNAL_CORRELATION_KIND_OPENACC); VALUE(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
  VALUE(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1); VALUE(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2); VALUE(CUPTI_EXTERNAL_CORRELATION_KIND_SIZE);
  VALUE(CUPTI_ERROR_QUEUE_EMPTY);

  // Driver calls that copy memory: what they copy, and the stream if they take one.
#define SIZE(name) STRUCT(name##_params); FIELD(name##_params, ByteCount)
#define ROWS(name) STRUCT(name##_params); FIELD(name##_params, pCopy)
#define STREAM(name) FIELD(name##_params, hStream)
  SIZE(cuMemcpy); SIZE(cuMemcpyHtoD_v2); SIZE(cuMemcpyDtoH_v2); SIZE(cuMemcpyDtoD_v2); SIZE(cuMemcpyDtoA_v2); SIZE(cuMemcpyAtoD_v2);
  SIZE(cuMemcpyHtoA_v2); SIZE(cuMemcpyAtoH_v2); SIZE(cuMemcpyAtoA_v2); SIZE(cuMemcpyPeer);
  SIZE(cuMemcpyAsync); STREAM(cuMemcpyAsync); SIZE(cuMemcpyHtoDAsync_v2); STREAM(cuMemcpyHtoDAsync_v2); SIZE(cuMemcpyDtoHAsync_v2); STREAM(cuMemcpyDtoHAsync_v2);
  SIZE(cuMemcpyDtoDAsync_v2); STREAM(cuMemcpyDtoDAsync_v2); SIZE(cuMemcpyHtoAAsync_v2); STREAM(cuMemcpyHtoAAsync_v2);
  SIZE(cuMemcpyAtoHAsync_v2); STREAM(cuMemcpyAtoHAsync_v2); SIZE(cuMemcpyPeerAsync); STREAM(cuMemcpyPeerAsync);
  ROWS(cuMemcpy2D_v2); ROWS(cuMemcpy2DUnaligned_v2); ROWS(cuMemcpy3D_v2); ROWS(cuMemcpy3DPeer);
  ROWS(cuMemcpy2DAsync_v2); STREAM(cuMemcpy2DAsync_v2); ROWS(cuMemcpy3DAsync_v2); STREAM(cuMemcpy3DAsync_v2); ROWS(cuMemcpy3DPeerAsync); STREAM(cuMemcpy3DPeerAsync);
#define BATCH(name) STRUCT(name##_params); FIELD(name##_params, hStream)
  BATCH(cuMemcpyBatchAsync); BATCH(cuMemcpyBatchAsync_v2); BATCH(cuMemcpy3DBatchAsync); BATCH(cuMemcpy3DBatchAsync_v2);
#define PLACES(T) STRUCT(T); FIELD(T, srcMemoryType); FIELD(T, dstMemoryType); FIELD(T, WidthInBytes); FIELD(T, Height)
  PLACES(CUDA_MEMCPY2D_v2); PLACES(CUDA_MEMCPY3D_v2); FIELD(CUDA_MEMCPY3D_v2, Depth); PLACES(CUDA_MEMCPY3D_PEER_v1); FIELD(CUDA_MEMCPY3D_PEER_v1, Depth);

  // Driver calls that set memory, at their entry; the async ones' last parameter is the stream.
#define SET(name) STRUCT(name##_params); FIELD(name##_params, dstDevice)
  SET(cuMemsetD8_v2); FIELD(cuMemsetD8_v2_params, uc); FIELD(cuMemsetD8_v2_params, N);
  SET(cuMemsetD8Async); FIELD(cuMemsetD8Async_params, uc); FIELD(cuMemsetD8Async_params, N); FIELD(cuMemsetD8Async_params, hStream);
  SET(cuMemsetD16Async); FIELD(cuMemsetD16Async_params, us); FIELD(cuMemsetD16Async_params, N); FIELD(cuMemsetD16Async_params, hStream);
  SET(cuMemsetD32Async); FIELD(cuMemsetD32Async_params, ui); FIELD(cuMemsetD32Async_params, N); FIELD(cuMemsetD32Async_params, hStream);
  SET(cuMemsetD2D8Async); FIELD(cuMemsetD2D8Async_params, dstPitch); FIELD(cuMemsetD2D8Async_params, uc); FIELD(cuMemsetD2D8Async_params, Width);
  FIELD(cuMemsetD2D8Async_params, Height); FIELD(cuMemsetD2D8Async_params, hStream);
  SET(cuMemsetD2D32Async); FIELD(cuMemsetD2D32Async_params, Width); FIELD(cuMemsetD2D32Async_params, Height); FIELD(cuMemsetD2D32Async_params, hStream);
  STRUCT(cudaMemset_v3020_params); FIELD(cudaMemset_v3020_params, devPtr); FIELD(cudaMemset_v3020_params, value); FIELD(cudaMemset_v3020_params, count);
  STRUCT(cudaMemsetAsync_v3020_params); FIELD(cudaMemsetAsync_v3020_params, devPtr); FIELD(cudaMemsetAsync_v3020_params, value);
  FIELD(cudaMemsetAsync_v3020_params, count); FIELD(cudaMemsetAsync_v3020_params, stream);

  STRUCT(cuLaunchKernel_params);
  FIELD(cuLaunchKernel_params, f); FIELD(cuLaunchKernel_params, gridDimX); FIELD(cuLaunchKernel_params, gridDimY); FIELD(cuLaunchKernel_params, gridDimZ);
  FIELD(cuLaunchKernel_params, blockDimX); FIELD(cuLaunchKernel_params, blockDimY); FIELD(cuLaunchKernel_params, blockDimZ);
  FIELD(cuLaunchKernel_params, sharedMemBytes); FIELD(cuLaunchKernel_params, hStream); FIELD(cuLaunchKernel_params, kernelParams); FIELD(cuLaunchKernel_params, extra);
  STRUCT(cuLaunchKernelEx_params);
  FIELD(cuLaunchKernelEx_params, config); FIELD(cuLaunchKernelEx_params, f); FIELD(cuLaunchKernelEx_params, kernelParams); FIELD(cuLaunchKernelEx_params, extra);
  STRUCT(CUlaunchConfig);
  FIELD(CUlaunchConfig, gridDimX); FIELD(CUlaunchConfig, blockDimX); FIELD(CUlaunchConfig, sharedMemBytes); FIELD(CUlaunchConfig, hStream);
  FIELD(CUlaunchConfig, attrs); FIELD(CUlaunchConfig, numAttrs);
  STRUCT(CUlaunchAttribute);
  FIELD(CUlaunchAttribute, id); FIELD(CUlaunchAttribute, value);
  VALUE(CU_LAUNCH_ATTRIBUTE_COOPERATIVE); VALUE(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  STRUCT(CUDA_KERNEL_NODE_PARAMS_v1);
  FIELD(CUDA_KERNEL_NODE_PARAMS_v1, func); FIELD(CUDA_KERNEL_NODE_PARAMS_v1, gridDimX); FIELD(CUDA_KERNEL_NODE_PARAMS_v1, blockDimX); FIELD(CUDA_KERNEL_NODE_PARAMS_v1, sharedMemBytes);
  STRUCT(CUDA_KERNEL_NODE_PARAMS_v2);
  FIELD(CUDA_KERNEL_NODE_PARAMS_v2, func); FIELD(CUDA_KERNEL_NODE_PARAMS_v2, gridDimX); FIELD(CUDA_KERNEL_NODE_PARAMS_v2, blockDimX); FIELD(CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
  FIELD(CUDA_KERNEL_NODE_PARAMS_v2, kern); FIELD(CUDA_KERNEL_NODE_PARAMS_v2, ctx);
  STRUCT(CUgraphNodeParams);
  FIELD(CUgraphNodeParams, type); FIELD(CUgraphNodeParams, kernel.func); FIELD(CUgraphNodeParams, kernel.gridDimX); FIELD(CUgraphNodeParams, kernel.blockDimX);
  FIELD(CUgraphNodeParams, kernel.sharedMemBytes); FIELD(CUgraphNodeParams, kernel.kern); FIELD(CUgraphNodeParams, kernel.ctx);
  VALUE(CU_GRAPH_NODE_TYPE_KERNEL);
  VALUE(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES); VALUE(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES); VALUE(CU_FUNC_ATTRIBUTE_NUM_REGS);
  VALUE(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK); VALUE(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  VALUE(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT); VALUE(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  VALUE(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT); VALUE(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  VALUE(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED); VALUE(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  VALUE(CU_STREAM_CAPTURE_MODE_RELAXED); VALUE(CU_STREAM_NON_BLOCKING);
  STRUCT(cuLaunchCooperativeKernel_params);
  FIELD(cuLaunchCooperativeKernel_params, f); FIELD(cuLaunchCooperativeKernel_params, gridDimX); FIELD(cuLaunchCooperativeKernel_params, blockDimX);
  FIELD(cuLaunchCooperativeKernel_params, sharedMemBytes); FIELD(cuLaunchCooperativeKernel_params, hStream); FIELD(cuLaunchCooperativeKernel_params, kernelParams);
  STRUCT(cuLaunchCooperativeKernelMultiDevice_params);
  FIELD(cuLaunchCooperativeKernelMultiDevice_params, launchParamsList); FIELD(cuLaunchCooperativeKernelMultiDevice_params, numDevices);
  STRUCT(cuGraphLaunch_params); FIELD(cuGraphLaunch_params, hGraph); FIELD(cuGraphLaunch_params, hStream);
  STRUCT(cudaLaunchKernel_v7000_params);
  FIELD(cudaLaunchKernel_v7000_params, func); FIELD(cudaLaunchKernel_v7000_params, gridDim); FIELD(cudaLaunchKernel_v7000_params, blockDim);
  FIELD(cudaLaunchKernel_v7000_params, args); FIELD(cudaLaunchKernel_v7000_params, sharedMem); FIELD(cudaLaunchKernel_v7000_params, stream);
  STRUCT(cudaGraphLaunch_v10000_params); FIELD(cudaGraphLaunch_v10000_params, graphExec); FIELD(cudaGraphLaunch_v10000_params, stream);

  // What nodes are made of.
  STRUCT(CUDA_KERNEL_NODE_PARAMS); FIELD(CUDA_KERNEL_NODE_PARAMS, func); FIELD(CUDA_KERNEL_NODE_PARAMS, gridDimX); FIELD(CUDA_KERNEL_NODE_PARAMS, blockDimX);
  FIELD(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes); FIELD(CUDA_KERNEL_NODE_PARAMS, kernelParams); FIELD(CUDA_KERNEL_NODE_PARAMS, extra);
  FIELD(CUDA_KERNEL_NODE_PARAMS, kern); FIELD(CUDA_KERNEL_NODE_PARAMS, ctx);
  STRUCT(cudaKernelNodeParams); FIELD(cudaKernelNodeParams, func); FIELD(cudaKernelNodeParams, gridDim); FIELD(cudaKernelNodeParams, blockDim);
  FIELD(cudaKernelNodeParams, sharedMemBytes); FIELD(cudaKernelNodeParams, kernelParams); FIELD(cudaKernelNodeParams, extra);
  STRUCT(CUDA_MEMSET_NODE_PARAMS); FIELD(CUDA_MEMSET_NODE_PARAMS, dst); FIELD(CUDA_MEMSET_NODE_PARAMS, pitch); FIELD(CUDA_MEMSET_NODE_PARAMS, value);
  FIELD(CUDA_MEMSET_NODE_PARAMS, elementSize); FIELD(CUDA_MEMSET_NODE_PARAMS, width); FIELD(CUDA_MEMSET_NODE_PARAMS, height);
  STRUCT(CUgraphExecUpdateResultInfo); FIELD(CUgraphExecUpdateResultInfo, result); FIELD(CUgraphExecUpdateResultInfo, errorNode);
  FIELD(CUgraphExecUpdateResultInfo, errorFromNode);
  VALUE(CU_GRAPH_EXEC_UPDATE_ERROR); VALUE(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED); VALUE(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  VALUE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE); VALUE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED); VALUE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  VALUE(CU_GRAPH_NODE_TYPE_GRAPH); VALUE(CU_GRAPH_NODE_TYPE_EMPTY);
  STRUCT(CUpti_GraphData);
  FIELD(CUpti_GraphData, graph); FIELD(CUpti_GraphData, originalGraph); FIELD(CUpti_GraphData, node); FIELD(CUpti_GraphData, originalNode);
  FIELD(CUpti_GraphData, nodeType); FIELD(CUpti_GraphData, dependency); FIELD(CUpti_GraphData, graphExec);
  VALUE(CUPTI_CBID_RESOURCE_STREAM_CREATED); VALUE(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED); VALUE(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
  VALUE(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED); VALUE(CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED); VALUE(CUPTI_CBID_RESOURCE_GRAPH_NODE_SET_PARAMS);
  VALUE(CU_STREAM_LEGACY); VALUE(CU_STREAM_PER_THREAD);
  VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); VALUE(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR); VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  VALUE(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR); VALUE(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  VALUE(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR); VALUE(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);

  VALUE(CUPTI_CB_DOMAIN_DRIVER_API); VALUE(CUPTI_CB_DOMAIN_RUNTIME_API); VALUE(CUPTI_CB_DOMAIN_RESOURCE); VALUE(CUPTI_CB_DOMAIN_STATE);
  VALUE(CUPTI_API_ENTER); VALUE(CUPTI_API_EXIT);
  VALUE(CUPTI_ACTIVITY_KIND_KERNEL); VALUE(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); VALUE(CUPTI_ACTIVITY_KIND_OVERHEAD);
  VALUE(CUPTI_ACTIVITY_KIND_MEMCPY); VALUE(CUPTI_ACTIVITY_KIND_MEMSET); VALUE(CUPTI_ACTIVITY_KIND_MEMCPY2); VALUE(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  VALUE(CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC);
  VALUE(CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_UNKNOWN); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_DTOH);
  VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_HTOA); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_ATOH); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_ATOA); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_ATOD);
  VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_DTOA); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_DTOD); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_HTOH); VALUE(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP);
  VALUE(CU_MEMORYTYPE_HOST); VALUE(CU_MEMORYTYPE_DEVICE); VALUE(CU_MEMORYTYPE_ARRAY); VALUE(CU_MEMORYTYPE_UNIFIED);
  VALUE(CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN); VALUE(CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE); VALUE(CUPTI_ACTIVITY_MEMORY_KIND_PINNED);
  VALUE(CUPTI_ACTIVITY_MEMORY_KIND_DEVICE); VALUE(CUPTI_ACTIVITY_MEMORY_KIND_ARRAY); VALUE(CUPTI_ACTIVITY_MEMORY_KIND_MANAGED);
  VALUE(CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC); VALUE(CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC);
  VALUE(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE); VALUE(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER); VALUE(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER);
  VALUE(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); VALUE(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  VALUE(CUPTI_ERROR_MAX_LIMIT_REACHED); VALUE(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); VALUE(CUPTI_ERROR_NOT_INITIALIZED);
  VALUE(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES); VALUE(CUPTI_ERROR_INVALID_PARAMETER); VALUE(CUPTI_ERROR_HARDWARE_BUSY);
  for (int r = 0; r < 60; r++) { const char *s = 0; if (cuptiGetResultString((CUptiResult)r, &s) == CUPTI_SUCCESS && s) fprintf(out, "result %d %s\n", r, s); }
  for (int d = 1; d <= 2; d++)
    for (uint32_t id = 1; id < 1200; id++) {
      const char *name = 0;
      if (cuptiGetCallbackName((CUpti_CallbackDomain)d, id, &name) == CUPTI_SUCCESS && name && *name && strncmp(name, "INVALID", 7))
        fprintf(out, "cbid %s %u %s\n", d == 1 ? "driver" : "runtime", id, name);
    }
}

#ifdef LAYOUTS_ONLY
int main(int argc, char **argv) {
  dir = argc > 1 ? argv[1] : ".";
  out = fopen((dir + "/layouts.txt").c_str(), "w");
  layouts();
  fclose(out);
  return 0;
}
#else
static int n_buffers = 0;
static void request(uint8_t **b, size_t *size, size_t *max) { *size = 64 << 10; *b = (uint8_t *)aligned_alloc(4096, *size); memset(*b, 0, *size); *max = 0; }
static void complete(CUcontext, uint32_t, uint8_t *b, size_t, size_t valid) {
  if (!valid) { free(b); return; }
  int n = n_buffers++;
  FILE *bin = fopen((dir + "/activity-" + std::to_string(n) + ".bin").c_str(), "wb");
  fwrite(b, 1, valid, bin);
  fclose(bin);
  FILE *txt = fopen((dir + "/activity-" + std::to_string(n) + ".txt").c_str(), "w");
  CUpti_Activity *r = 0;
  while (cuptiActivityGetNextRecord(b, valid, &r) == CUPTI_SUCCESS) {
    fprintf(txt, "at %td kind %d", (uint8_t *)r - b, (int)r->kind);
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      auto k = (CUpti_ActivityKernel10 *)r;
      fprintf(txt, " start %llu end %llu device %u context %u stream %u grid %d %d %d block %d %d %d registers %u static %d dynamic %d local %u correlation %u graph %u node %llu name %s",
              (unsigned long long)k->start, (unsigned long long)k->end, k->deviceId, k->contextId, k->streamId, k->gridX, k->gridY, k->gridZ, k->blockX, k->blockY, k->blockZ,
              k->registersPerThread, k->staticSharedMemory, k->dynamicSharedMemory, k->localMemoryPerThread, k->correlationId, k->graphId, (unsigned long long)k->graphNodeId, k->name);
    }
    if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      auto m = (CUpti_ActivityMemset4 *)r;
      fprintf(txt, " start %llu end %llu device %u context %u stream %u bytes %llu value %u memory %u flags %u correlation %u graph %u node %llu",
              (unsigned long long)m->start, (unsigned long long)m->end, m->deviceId, m->contextId, m->streamId, (unsigned long long)m->bytes, m->value, m->memoryKind, m->flags,
              m->correlationId, m->graphId, (unsigned long long)m->graphNodeId);
    }
    fprintf(txt, "\n");
  }
  fclose(txt);
  free(b);
}

template <typename T> __global__ void scale(T *p, T by) { __shared__ T s[64]; s[threadIdx.x & 63] = by; __syncthreads(); p[blockIdx.x * blockDim.x + threadIdx.x] *= s[threadIdx.x & 63]; }
__global__ void nop() {}

static CUpti_SubscriberHandle subscriber;
static void seen(void *, CUpti_CallbackDomain d, CUpti_CallbackId id, const CUpti_CallbackData *i) {
  if (i->callbackSite == CUPTI_API_ENTER) fprintf(out, "call %s %u %s correlation %u symbol %s\n", d == CUPTI_CB_DOMAIN_DRIVER_API ? "driver" : "runtime", id, i->functionName, i->correlationId, i->symbolName ? i->symbolName : "-");
}

// All ways to set memory in the runtime and the driver, with kernels in between, and a graph.
static void sets(float *p, cudaStream_t s) {
  cudaMemset(p, 7, 4096);
  nop<<<1, 1>>>();
  cudaMemsetAsync(p, 1, 8192, s);
  cudaMemset2D(p, 512, 3, 128, 4);
  cudaMemset2DAsync(p, 512, 3, 128, 4, s);
  cudaMemset3D(make_cudaPitchedPtr(p, 256, 256, 4), 5, make_cudaExtent(64, 4, 2));
  cuMemsetD8((CUdeviceptr)p, 9, 1000);
  cuMemsetD16Async((CUdeviceptr)p, 0x1234, 500, s);
  cuMemsetD32Async((CUdeviceptr)p, 0x12345678, 250, s);
  cuMemsetD2D32((CUdeviceptr)p, 1024, 0xabcdef01, 16, 4);
  float *managed; cudaMallocManaged(&managed, 4096);
  cudaMemset(managed, 0, 4096);
  void *pinned; cudaMallocHost(&pinned, 4096);
  cudaMemset(pinned, 2, 4096);
  nop<<<1, 1, 0, s>>>();
  cudaGraph_t g; cudaGraphExec_t ge;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
  cudaMemsetAsync(p, 4, 2048, s); nop<<<1, 1, 0, s>>>(); cudaMemsetAsync(p, 6, 1024, s);
  cudaStreamEndCapture(s, &g); cudaGraphInstantiate(&ge, g, 0);
  cudaGraphLaunch(ge, s); cudaGraphLaunch(ge, s);
  cudaDeviceSynchronize();
}

int main(int argc, char **argv) {
  dir = argc > 1 ? argv[1] : ".";
  out = fopen((dir + "/layouts.txt").c_str(), "w");
  cuptiActivityRegisterCallbacks(request, complete);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cudaFree(0);
  layouts();
  float *p; cudaMalloc(&p, 1 << 20);
  nop<<<1, 1>>>(); cudaDeviceSynchronize();
  cuptiSubscribe(&subscriber, (CUpti_CallbackFunc)seen, 0);
  cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
  cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API);
  nop<<<1, 1>>>();
  scale<float><<<dim3(4, 2, 1), dim3(64, 1, 1), 128>>>(p, 2.f);
  scale<int><<<3, 32>>>((int *)p, 2);
  cudaLaunchConfig_t c = {}; c.gridDim = dim3(2); c.blockDim = dim3(32);
  cudaLaunchKernelEx(&c, nop);
  void *args[] = {};
  cudaLaunchCooperativeKernel((void *)nop, dim3(1), dim3(32), args, 0, 0);
  cudaStream_t s; cudaStreamCreate(&s);
  cudaGraph_t g; cudaGraphExec_t ge;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
  nop<<<1, 32, 0, s>>>(); scale<float><<<2, 64, 0, s>>>(p, 1.f); nop<<<1, 64, 0, s>>>();
  cudaStreamEndCapture(s, &g); cudaGraphInstantiate(&ge, g, 0);
  cudaGraphLaunch(ge, s); cudaGraphLaunch(ge, s);
  cudaDeviceSynchronize();
  cuptiActivityFlushAll(0);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
  sets(p, s);
  cuptiEnableDomain(0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
  cuptiEnableDomain(0, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API);
  cuptiActivityFlushAll(0);
  fclose(out);
  printf("%d buffers\n", n_buffers);
  return 0;
}
#endif
