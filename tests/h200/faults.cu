// A kernel that writes to an address that isn't there, or fails an assertion, in one of its launches. Prints what CUDA says.
//
//    faults address|trap LAUNCHES FAULTY
#include <cstdio>
#include <cstdlib>
#include <cstring>
__global__ void faulty(int *to, int value, bool traps) {
    if (traps && threadIdx.x == 7) asm volatile("trap;");
    to[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
int main(int argc, char **argv) {
    bool traps = argc > 1 && !strcmp(argv[1], "trap");
    int launches = argc > 2 ? atoi(argv[2]) : 10, bad = argc > 3 ? atoi(argv[3]) : 5, failed = -1;
    int *to; cudaMalloc(&to, 4096);
    cudaError_t error = cudaSuccess;
    for (int k = 0; k < launches && !error; k++) {
        bool is_bad = k == bad;
        faulty<<<2, 64>>>(is_bad && !traps ? (int *)16 : to, k, is_bad && traps);
        error = cudaDeviceSynchronize();
        if (error) failed = k;
    }
    printf("{\"failed\": %d, \"error\": \"%s\", \"after\": \"%s\"}\n", failed, cudaGetErrorString(error), cudaGetErrorString(cudaMalloc(&to, 16)));
}
