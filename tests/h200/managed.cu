// Unified memory that CPU and GPU touch in turn: `managed MIB TURNS`. The last line says how many bytes each turn moves there and back.
#include <cstdio>
#include <cstdlib>

__global__ void add(char *p, size_t n) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) p[i] += 1;
}

int main(int argc, char **argv) {
    size_t bytes = size_t(atoi(argv[1])) << 20;
    int turns = atoi(argv[2]);
    char *memory;
    if (cudaMallocManaged(&memory, bytes) != cudaSuccess) return 1;
    long sum = 0;
    for (int turn = 0; turn < turns; turn++) {
        for (size_t i = 0; i < bytes; i += 4096) memory[i] += 1;
        add<<<256, 256>>>(memory, bytes);
        if (cudaDeviceSynchronize() != cudaSuccess) return 1;
        for (size_t i = 0; i < bytes; i += 4096) sum += memory[i];
    }
    printf("{\"bytes\": %zu, \"address\": %llu, \"turns\": %d, \"sum\": %ld}\n", bytes, (unsigned long long)memory, turns, sum);
    return 0;
}
