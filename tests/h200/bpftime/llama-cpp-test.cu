// Launches rms_norm_f32 of llama.cpp as its layers do, and compares the result.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 -cudart shared -I LLAMA/ggml/include -I LLAMA/ggml/src -I LLAMA/ggml/src/ggml-cuda \
//       -Xcompiler -ffunction-sections -Xlinker --gc-sections -o llama-cpp-test llama-cpp-test.cu
//
// LLAMA is llama.cpp as of 2025, where sizes are packed in a uint3 (as in the sources of llama-cpp-python 0.3.17).
//   ./llama-cpp-test [LAUNCHES] [ROWS]      prints its own account as JSON
#include "norm.cu"
#include <cstdio>
#include <cstdlib>
#include <vector>
// What its assertions call, in place of all of ggml.
extern "C" void ggml_abort(const char *file, int line, const char *, ...) { fprintf(stderr, "%s:%d\n", file, line), abort(); }
int main(int argc, char **argv) {
    const int launches = argc > 1 ? atoi(argv[1]) : 20, rows = argc > 2 ? atoi(argv[2]) : 64, columns = 4096;
    std::vector<float> x(rows * columns), weights(columns), norms(rows * columns);
    for (size_t i = 0; i < x.size(); i++) x[i] = i % 13 - 6.0f;
    for (int i = 0; i < columns; i++) weights[i] = i % 5 * 0.5f;
    float *in, *by, *out;
    cudaMalloc(&in, x.size() * 4);
    cudaMalloc(&by, weights.size() * 4);
    cudaMalloc(&out, norms.size() * 4);
    cudaMemcpy(in, x.data(), x.size() * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(by, weights.data(), weights.size() * 4, cudaMemcpyHostToDevice);
    for (int k = 0; k < launches; k++)
        rms_norm_mul_f32_cuda(in, by, nullptr, out, columns, rows, 1, 1, columns, rows * columns, rows * columns, columns, columns, columns,
                              columns, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1e-6f, nullptr);
    cudaMemcpy(norms.data(), out, norms.size() * 4, cudaMemcpyDeviceToHost);
    long wrong = 0;
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int i = 0; i < columns; i++) sum += double(x[row * columns + i]) * x[row * columns + i];
        const double scale = 1 / sqrt(sum / columns + 1e-6);
        for (int i = 0; i < columns; i++) wrong += fabs(scale * x[row * columns + i] * weights[i] - norms[row * columns + i]) > 1e-4;
    }
    printf("{\"launches\": %d, \"threads\": %d, \"wrong\": %ld, \"error\": \"%s\"}\n", launches, rows * 1024, wrong, cudaGetErrorString(cudaGetLastError()));
    return wrong != 0;
}
