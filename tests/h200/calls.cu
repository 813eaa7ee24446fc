// Functions that no compiler may inline, called a number of times that can be counted by reading it. Prints as JSON how often.
//
//    calls LAUNCHES
#include <cstdio>
#include <cstdlib>
constexpr int WIDE = 128, BLOCKS = 60, STEPS = 5;
__host__ __device__ unsigned mixed(unsigned x) { return x * 1664525u + 1013904223u; }
__device__ __noinline__ unsigned inner(unsigned x) { return mixed(x); }
__device__ __noinline__ unsigned outer(unsigned x) { return inner(x ^ 1) + 1; }
__global__ void walks(unsigned *out, int steps) {
    unsigned i = blockIdx.x * WIDE + threadIdx.x, x = i;
    for (int k = 0; k < steps; k++)
        x = inner(x);
    if (threadIdx.x % 4 == 3) x = outer(x);
    out[i] = x;
}
constexpr int INNER_LINE = 13, OUTER_LINE = 14;
// Calls of the device runtime.
__global__ void allocates(unsigned *out) {
    unsigned i = blockIdx.x * WIDE + threadIdx.x;
    volatile unsigned *own = (volatile unsigned *)malloc(4);
    *own = i;
    out[i] += *own;
    free((void *)own);
}
int main(int argc, char **argv) {
    long launches = argc > 1 ? atol(argv[1]) : 10, threads = WIDE * BLOCKS, wrong = 0;
    unsigned *out, *host = (unsigned *)malloc(threads * 4);
    cudaMalloc(&out, threads * 4);
    for (long k = 0; k < launches; k++) {
        walks<<<BLOCKS, WIDE>>>(out, STEPS);
        allocates<<<BLOCKS, WIDE>>>(out);
    }
    cudaMemcpy(host, out, threads * 4, cudaMemcpyDeviceToHost);
    for (long i = 0; i < threads; i++) {
        unsigned x = i;
        for (int k = 0; k < STEPS; k++) x = mixed(x);
        if (i % 4 == 3) x = mixed(x ^ 1) + 1;
        wrong += host[i] != x + i;
    }
    printf("{\"launches\": %ld, \"threads\": %ld, \"in_loop\": %ld, \"outer\": %ld, \"inner_line\": %d, \"outer_line\": %d, \"wrong\": %ld, "
           "\"error\": \"%s\"}\n",
           launches, threads, threads * STEPS, threads / 4, INNER_LINE, OUTER_LINE, wrong, cudaGetErrorString(cudaGetLastError()));
    return wrong != 0;
}
