// Accesses to shared memory whose bank conflicts are known: the threads of each warp store and load elements of so many bytes, so many
// elements apart. A third of the launches is in one stream, the rest in another. Prints as JSON what it did.
//
//    banks BYTES STRIDE LAUNCHES
#include <cstdio>
#include <cstdlib>
constexpr int BLOCKS = 3, WARPS = 2, MOST_STRIDE = 33;
template <int BYTES> __global__ void strided(int stride, int *out) {
    __shared__ __align__(16) char tile[32 * MOST_STRIDE * BYTES];
    int lane = threadIdx.x % 32, a = 0, b = 0, c = 0, d = 0;
    unsigned at = (unsigned)__cvta_generic_to_shared(tile) + lane * stride * BYTES;
    // All warps store the same.
    int n = stride ? lane : 7;
    if constexpr (BYTES == 1) asm volatile("st.volatile.shared.b8 [%0], %1;" ::"r"(at), "r"(n) : "memory");
    if constexpr (BYTES == 4) asm volatile("st.volatile.shared.b32 [%0], %1;" ::"r"(at), "r"(n) : "memory");
    if constexpr (BYTES == 8) asm volatile("st.volatile.shared.v2.b32 [%0], {%1, %1};" ::"r"(at), "r"(n) : "memory");
    if constexpr (BYTES == 16) asm volatile("st.volatile.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(n) : "memory");
    __syncthreads();
    if constexpr (BYTES == 1) asm volatile("ld.volatile.shared.u8 %0, [%1];" : "=r"(a) : "r"(at) : "memory");
    if constexpr (BYTES == 4) asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(a) : "r"(at) : "memory");
    if constexpr (BYTES == 8) asm volatile("ld.volatile.shared.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at) : "memory");
    if constexpr (BYTES == 16)
        asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at) : "memory");
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + (b + c + d) * 100;
}
int main(int argc, char **argv) {
    int bytes = argc > 1 ? atoi(argv[1]) : 4, stride = argc > 2 ? atoi(argv[2]) : 1, launches = argc > 3 ? atoi(argv[3]) : 10;
    constexpr int N = BLOCKS * WARPS * 32;
    int *out, found[N], wrong = stride < 0 || stride > MOST_STRIDE;
    cudaMalloc(&out, sizeof found);
    cudaStream_t streams[2];
    for (cudaStream_t &it : streams) cudaStreamCreate(&it);
    for (int k = 0; k < launches && !wrong; k++) {
        if (bytes == 1) strided<1><<<BLOCKS, WARPS * 32, 0, streams[k % 3 > 0]>>>(stride, out);
        if (bytes == 4) strided<4><<<BLOCKS, WARPS * 32, 0, streams[k % 3 > 0]>>>(stride, out);
        if (bytes == 8) strided<8><<<BLOCKS, WARPS * 32, 0, streams[k % 3 > 0]>>>(stride, out);
        if (bytes == 16) strided<16><<<BLOCKS, WARPS * 32, 0, streams[k % 3 > 0]>>>(stride, out);
    }
    cudaDeviceSynchronize();
    cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost);
    int more = bytes == 8 ? 101 : bytes == 16 ? 301 : 1;
    for (int i = 0; i < N; i++) wrong += found[i] != (stride ? i % 32 : 7) * more;
    printf("{\"blocks\": %d, \"warps\": %d, \"launches\": %d, \"wrong\": %d, \"error\": \"%s\"}\n", BLOCKS, BLOCKS * WARPS, launches, wrong, cudaGetErrorString(cudaGetLastError()));
    return wrong != 0;
}
