// Kernels in clusters: their size compiled in, given at the launch, and of a graph's node; more than is portable; and as many as fit
// at once, that wait for each other. Every access is one that the source names. Prints as JSON how often which kernel ran.
//
//    clusters [LAUNCHES]
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
namespace cg = cooperative_groups;
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
constexpr int THREADS = 128, BLOCKS = 32;

__device__ uint32_t in_block(uint32_t address, int block) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(block));
    return mapped;
}

// A thread stores to shared memory (and once more in the background), loads from it twice, loads and adds once by a generic
// address, and stores to global memory.
__device__ __forceinline__ void pass_on(int *out) {
    __shared__ volatile int mine[THREADS], sent[THREADS];
    __shared__ uint64_t full;
    cg::cluster_group cluster = cg::this_cluster();
    const int t = threadIdx.x, b = blockIdx.x, next = (cluster.block_rank() + 1) % cluster.num_blocks();
    const uint32_t bar = (uint32_t)__cvta_generic_to_shared(&full), own = (uint32_t)__cvta_generic_to_shared((int *)&mine[t]),
                   to = (uint32_t)__cvta_generic_to_shared((int *)&sent[t]);
    mine[t] = 1000 * b + t;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(bar));
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(bar), "n"(4 * THREADS) : "memory");
    }
    cluster.sync();
    int by_window;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(by_window) : "r"(in_block(own, next)) : "memory");
    volatile int *others = cluster.map_shared_rank((int *)mine, next);
    const int by_pointer = others[t];
    cluster.sync();
    atomicAdd((int *)&others[t], 1);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(in_block(to, next)), "r"(7 * b + t), "r"(in_block(bar, next)) : "memory");
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }" ::"r"(bar) : "memory");
    cluster.sync();
    int arrived;
    asm volatile("ld.volatile.shared::cta.u32 %0, [%1];" : "=r"(arrived) : "r"(to) : "memory");
    out[THREADS * b + t] = by_window + by_pointer + arrived + others[t];
    // A block that ends takes its shared memory along.
    cluster.sync();
}
constexpr int SHARED_STORES = 2, SHARED_LOADS = 2, GENERIC_LOADS = 2, GENERIC_ATOMICS = 1;
static int value_of(int b, int t, int size) {
    const int first = b - b % size, next = first + (b % size + 1) % size, before = first + (b % size + size - 1) % size;
    return 2 * (1000 * next + t) + 7 * before + t + 1000 * next + t + 1;
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) compiled_in(int *out) { pass_on(out); }
extern "C" __global__ void __launch_bounds__(THREADS, 1, 16) at_launch(int *out) { pass_on(out); }
// Its clusters may be larger than is portable only when it has run before.
extern "C" __global__ void grows(int *out) { pass_on(out); }
extern "C" __global__ void of_node(int *out) { pass_on(out); }
// All blocks wait for all.
extern "C" __global__ void waits(unsigned *arrived, unsigned blocks, int *out) {
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile unsigned *)arrived < blocks) {}
    }
    __syncthreads();
    out[blockDim.x * blockIdx.x + threadIdx.x] = blockIdx.x;
}

struct Launch : cudaLaunchConfig_t {
    cudaLaunchAttribute cluster;
    Launch(int blocks, int size, size_t shared, cudaStream_t in) {
        gridDim = blocks, blockDim = THREADS, dynamicSmemBytes = shared, stream = in, attrs = &cluster, numAttrs = 1;
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {(unsigned)size, 1, 1};
    }
};

static int *out, wrong;
static cudaStream_t stream;
static std::vector<int> host(1 << 20);
// Compares what a kernel of this cluster size has left, and clears it.
static void check(int size) {
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(host.data(), out, 4 * THREADS * BLOCKS, cudaMemcpyDeviceToHost));
    for (int b = 0; b < BLOCKS; b++) for (int t = 0; t < THREADS; t++) wrong += host[THREADS * b + t] != value_of(b, t, size);
    CHECK(cudaMemset(out, 0, 4 * THREADS * BLOCKS));
}
static void launch(void (*kernel)(int *), int size) {
    Launch how(BLOCKS, size, 0, stream);
    CHECK(cudaLaunchKernelEx(&how, kernel, out));
}

int main(int argc, char **argv) {
    const int launches = argc > 1 ? atoi(argv[1]) : 5;
    CHECK(cudaMalloc(&out, 4 * host.size()));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaFuncSetAttribute(at_launch, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    int n_compiled_in = 0, n_at_launch = 0, n_grows = 0, n_of_node = 0;
    for (int k = 0; k < launches; k++) {
        compiled_in<<<BLOCKS, THREADS, 0, stream>>>(out);
        check(4), n_compiled_in++;
        for (int size : {1, 2, 8, 16}) launch(at_launch, size), check(size), n_at_launch++;
        launch(grows, 8), check(8), n_grows++;
    }
    CHECK(cudaFuncSetAttribute(grows, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (int k = 0; k < launches; k++) launch(grows, 16), check(16), n_grows++;

    // A graph of launches that are captured, and of a node that gets its cluster later.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node, last;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    compiled_in<<<BLOCKS, THREADS, 0, stream>>>(out);
    launch(at_launch, 16);
    CHECK(cudaStreamEndCapture(stream, &graph));
    size_t n_nodes = 2;
    cudaGraphNode_t nodes[2];
    CHECK(cudaGraphGetNodes(graph, nodes, &n_nodes));
    for (cudaGraphNode_t it : nodes) {
        size_t n_after = 0;
#if CUDART_VERSION >= 13000
        CHECK(cudaGraphNodeGetDependentNodes(it, nullptr, nullptr, &n_after));
#else
        CHECK(cudaGraphNodeGetDependentNodes(it, nullptr, &n_after));
#endif
        if (n_after == 0) last = it;
    }
    void *arguments[] = {&out};
    cudaKernelNodeParams params{};
    params.func = (void *)of_node, params.gridDim = BLOCKS, params.blockDim = THREADS, params.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&node, graph, &last, 1, &params));
    cudaKernelNodeAttrValue value{};
    value.clusterDim = {8, 1, 1};
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaKernelNodeAttributeClusterDimension, &value));
    CHECK(cudaGraphKernelNodeSetParams(node, &params));
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaKernelNodeAttributeClusterDimension, &value));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 0; k < launches; k++) {
        CHECK(cudaGraphLaunch(exec, stream));
        check(8), n_compiled_in++, n_at_launch++, n_of_node++;
    }

    // Two blocks on a multiprocessor take all of its shared memory.
    int of_sm, reserved, clusters;
    CHECK(cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
    CHECK(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, 0));
    const size_t shared = of_sm / 2 - reserved;
    CHECK(cudaFuncSetAttribute(waits, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    Launch all(2, 2, shared, stream);
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, waits, &all));
    unsigned *arrived;
    CHECK(cudaMalloc(&arrived, 4));
    for (int k = 0; k < 2 * launches; k++) {
        const int blocks = k % 2 ? 2 : 2 * clusters;
        all.gridDim = blocks;
        CHECK(cudaMemset(arrived, 0, 4));
        CHECK(cudaLaunchKernelEx(&all, waits, arrived, (unsigned)blocks, out));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaMemcpy(host.data(), out, 4 * THREADS * blocks, cudaMemcpyDeviceToHost));
        for (int i = 0; i < THREADS * blocks; i++) wrong += host[i] != i / THREADS;
    }
    printf("{\"launches\": {\"compiled_in\": %d, \"at_launch\": %d, \"grows\": %d, \"of_node\": %d}, \"blocks\": %d, \"threads\": %d, "
           "\"shared_stores\": %d, \"shared_loads\": %d, \"generic_loads\": %d, \"generic_atomics\": %d, "
           "\"waits\": %d, \"most_blocks\": %d, \"fewest_blocks\": 2, \"wrong\": %d, \"error\": \"%s\"}\n",
           n_compiled_in, n_at_launch, n_grows, n_of_node, BLOCKS, THREADS, SHARED_STORES, SHARED_LOADS, GENERIC_LOADS, GENERIC_ATOMICS,
           launches, 2 * clusters, wrong, cudaGetErrorString(cudaGetLastError()));
    return wrong != 0;
}
