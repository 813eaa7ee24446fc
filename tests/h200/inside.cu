// A sum in blocks, launched from two functions, whose accesses and barriers can be counted by reading it: every access is
// volatile. Prints as JSON how often a thread did what.
//
//    inside ELEMENTS LAUNCHES
#include <cstdio>
#include <cstdlib>
constexpr int WIDE = 256;
__global__ void reduce(const volatile float *in, double *out, int n) {
    __shared__ volatile float part[WIDE];
    int t = threadIdx.x, i = blockIdx.x * WIDE + t;
    part[t] = i < n ? in[i] : 0.0f;
    for (int s = WIDE / 2; s; s >>= 1) {
        __syncthreads();
        if (t < s) part[t] = part[t] + part[t + s];
    }
    if (t == 0) atomicAdd(out, (double)part[0]);
}
constexpr int ATOMIC_LINE = 16;
__attribute__((noinline)) void launch_first(const float *in, double *out, int n) { reduce<<<(n + WIDE - 1) / WIDE, WIDE>>>(in, out, n); }
__attribute__((noinline)) void launch_second(const float *in, double *out, int n) { reduce<<<(n + WIDE - 1) / WIDE, WIDE>>>(in, out, n); }
int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 100000, launches = argc > 2 ? atol(argv[2]) : 10;
    float *in, *host = (float *)malloc(n * 4);
    double *out, sum = 0, wanted = 0;
    for (long i = 0; i < n; i++) wanted += host[i] = i % 16;
    cudaMalloc(&in, n * 4);
    cudaMalloc(&out, 8);
    cudaMemcpy(in, host, n * 4, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, 8);
    for (long k = 0; k < launches; k++) k % 3 ? launch_second(in, out, n) : launch_first(in, out, n);
    cudaMemcpy(&sum, out, 8, cudaMemcpyDeviceToHost);
    long blocks = (n + WIDE - 1) / WIDE, threads = blocks * WIDE, steps = 8, added = WIDE - 1;
    printf("{\"launches\": %ld, \"first\": %ld, \"blocks\": %ld, \"threads\": %ld, \"elements\": %ld, \"barriers\": %ld, \"shared_loads\": %ld, "
           "\"shared_stores\": %ld, \"atomic_line\": %d, \"wrong\": %d, \"error\": \"%s\"}\n",
           launches, (launches + 2) / 3, blocks, threads, n, threads * steps, blocks * (2 * added + 1), threads + blocks * added, ATOMIC_LINE,
           sum != wanted * launches, cudaGetErrorString(cudaGetLastError()));
    return sum != wanted * launches;
}
