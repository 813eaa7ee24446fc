// A tiled matrix product in float, with PTX. Prints what it did as JSON.
//
//    gemm WIDTH LAUNCHES
#include <cstdio>
#include <cstdlib>
#include <vector>
constexpr int TILE = 32;
__global__ void gemm(const float *a, const float *b, float *c, int width) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < width; tile += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * width + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * width + column];
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[row * width + column] = sum;
}
int main(int argc, char **argv) {
    int width = argc > 1 ? atoi(argv[1]) : 1024, launches = argc > 2 ? atoi(argv[2]) : 20;
    size_t bytes = 4ull * width * width;
    std::vector<float> x(width * width), y(width * width), z(width * width);
    // Small whole numbers: sums are exact.
    for (size_t i = 0; i < x.size(); i++) x[i] = i % 7, y[i] = i % 5;
    float *a, *b, *c;
    cudaMalloc(&a, bytes); cudaMalloc(&b, bytes); cudaMalloc(&c, bytes);
    cudaMemcpy(a, x.data(), bytes, cudaMemcpyHostToDevice); cudaMemcpy(b, y.data(), bytes, cudaMemcpyHostToDevice);
    cudaEvent_t begin, end; cudaEventCreate(&begin); cudaEventCreate(&end);
    dim3 grid(width / TILE, width / TILE), block(TILE, TILE);
    gemm<<<grid, block>>>(a, b, c, width); cudaDeviceSynchronize();
    cudaEventRecord(begin);
    for (int k = 1; k < launches; k++) gemm<<<grid, block>>>(a, b, c, width);
    cudaEventRecord(end); cudaDeviceSynchronize();
    cudaMemcpy(z.data(), c, bytes, cudaMemcpyDeviceToHost);
    double sum = 0;
    for (float it : z) sum += it;
    float ms; cudaEventElapsedTime(&ms, begin, end);
    printf("{\"us\": %.2f, \"result\": %.0f, \"error\": \"%s\"}\n", 1000 * ms / (launches - 1), sum, cudaGetErrorString(cudaGetLastError()));
}
