// vectorAdd, and a kernel that uses a variable and a constant; both have PTX. Prints what it did as JSON.
//
//    vectors ELEMENTS LAUNCHES
#include <cstdio>
#include <cstdlib>
__constant__ float factor = 2.0f;
__device__ unsigned long long calls;
__global__ void vectorAdd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    c[i] = a[i] + b[i];
}
template <typename T> __global__ void scale(T *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] *= factor;
    if (i == 0) atomicAdd(&calls, 1ull);
}
int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 100000, launches = argc > 2 ? atoi(argv[2]) : 100;
    float *a, *b, *c, *h = (float *)malloc(n * 4);
    cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4); cudaMalloc(&c, n * 4);
    for (int i = 0; i < n; i++) h[i] = i % 100;
    cudaMemcpy(a, h, n * 4, cudaMemcpyHostToDevice); cudaMemcpy(b, h, n * 4, cudaMemcpyHostToDevice);
    float two = 3.0f; cudaMemcpyToSymbol(factor, &two, 4);
    int blocks = (n + 255) / 256;
    cudaEvent_t e0, e1; cudaEventCreate(&e0); cudaEventCreate(&e1);
    vectorAdd<<<blocks, 256>>>(a, b, c, n); cudaDeviceSynchronize();
    cudaEventRecord(e0);
    for (int k = 1; k < launches; k++) vectorAdd<<<blocks, 256>>>(a, b, c, n);
    cudaEventRecord(e1);
    scale<float><<<blocks, 256>>>(c, n);
    scale<float><<<blocks, 256>>>(c, n);
    cudaMemcpy(h, c, n * 4, cudaMemcpyDeviceToHost);
    long wrong = 0;
    for (int i = 0; i < n; i++) wrong += h[i] != 2.0f * (i % 100) * 9.0f;
    unsigned long long seen; cudaMemcpyFromSymbol(&seen, calls, 8);
    float ms; cudaEventElapsedTime(&ms, e0, e1);
    printf("{\"threads\": %ld, \"launches\": %d, \"wrong\": %ld, \"calls\": %llu, \"us\": %.2f, \"error\": \"%s\"}\n", (long)blocks * 256, launches, wrong, seen, 1000 * ms / (launches - 1), cudaGetErrorString(cudaGetLastError()));
    return wrong != 0;
}
