// Launches l2NormRowMajor of FAISS as its distances do, and compares the result.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 -cudart shared --extended-lambda --expt-relaxed-constexpr -I FAISS \
//       -Xcompiler -ffunction-sections -Xlinker --gc-sections -o faiss-test faiss-test.cu
//
//   ./faiss-test [LAUNCHES] [ROWS]      prints its own account as JSON
#include <faiss/gpu/impl/L2Norm.cu>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
int main(int argc, char **argv) {
    using namespace faiss::gpu;
    constexpr int ROWS_OF_BLOCK = 8;
    const int launches = argc > 1 ? atoi(argv[1]) : 236, rows = argc > 2 ? atoi(argv[2]) : 1001, columns = 128;
    std::vector<float> x(rows * columns), norms(rows);
    for (size_t i = 0; i < x.size(); i++) x[i] = i % 17 * 0.25f;
    float *in, *out;
    cudaMalloc(&in, x.size() * 4);
    cudaMalloc(&out, norms.size() * 4);
    cudaMemcpy(in, x.data(), x.size() * 4, cudaMemcpyHostToDevice);
    Tensor<float4, 2, true> input((float4 *)in, {rows, columns / 4});
    Tensor<float, 1, true> output(out, {rows});
    // As runL2Norm launches it: a warp has all of a row.
    const int blocks = (rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK, threads = 32;
    for (int k = 0; k < launches; k++) l2NormRowMajor<float, float4, ROWS_OF_BLOCK, true><<<blocks, threads, 4 * ROWS_OF_BLOCK>>>(input, output);
    cudaMemcpy(norms.data(), out, norms.size() * 4, cudaMemcpyDeviceToHost);
    long wrong = 0;
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < columns; i++) sum += double(x[row * columns + i]) * x[row * columns + i];
        wrong += fabs(sum - norms[row]) > 1e-3 * sum;
    }
    printf("{\"launches\": %d, \"threads\": %d, \"wrong\": %ld, \"error\": \"%s\"}\n", launches, blocks * threads, wrong, cudaGetErrorString(cudaGetLastError()));
    return wrong != 0;
}
