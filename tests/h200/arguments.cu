// Launches two kernels with other parameters each time, from two threads, in two streams of which one is shared by both threads.
// Prints as JSON how often each value of a parameter was given, by its bits: one block a launch.
//
//    arguments LAUNCHES [GRAPHS]
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
struct Pair {
    int a, b;
};
struct Wide {
    double x[2];
};
__global__ void first(int i, unsigned *p, float f, size_t n, Pair s) { atomicAdd(p, i + (int)f + (int)(n >> 33) + s.a); }
__global__ void second(Pair s, double d, Wide w, signed char c, unsigned *p) { atomicAdd(p, s.b + (int)d + (int)w.x[1] + c); }

using Counts = std::map<std::string, std::map<unsigned long long, long>>;
template <class T> void count(Counts &counts, const char *name, T value) {
    unsigned long long bits = 0;
    static_assert(sizeof(T) <= sizeof(bits));
    memcpy(&bits, &value, sizeof(T));
    counts[name][bits]++;
}

// `calls` launches of each kernel; every fifth of the first one is cooperative.
void launch(int thread, long calls, cudaStream_t own, cudaStream_t shared, unsigned *out, Counts &counts) {
    for (long k = 0; k < calls; k++) {
        int i = k % 50 - 3;
        float f = k % 7 + 0.5f;
        size_t n = (size_t)(k % 100 + thread) << 33;
        Pair s = {(int)(k % 5), (int)(k % 3) + thread};
        double d = k % 13 + 0.25;
        Wide w = {{1.0, (double)k}};
        signed char c = -(k % 4);
        void *all[] = {&i, &out, &f, &n, &s};
        if (k % 5) first<<<1, 32, 0, shared>>>(i, out, f, n, s);
        else cudaLaunchCooperativeKernel(first, dim3(1), dim3(32), all, 0, shared);
        second<<<1, 32, 0, own>>>(s, d, w, c, out);
        count(counts, "int", i);
        count(counts, "pointer", out);
        count(counts, "float", f);
        count(counts, "size", n);
        count(counts, "pair", s);
        count(counts, "double", d);
        count(counts, "char", c);
    }
}

int main(int argc, char **argv) {
    long launches = argc > 1 ? atol(argv[1]) : 1000, graphs = argc > 2 ? atol(argv[2]) : 0, calls = launches / 2;
    unsigned *out;
    cudaMalloc(&out, 4);
    cudaMemset(out, 0, 4);
    cudaStream_t own[2], shared;
    for (auto &it : own) cudaStreamCreateWithFlags(&it, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&shared, cudaStreamNonBlocking);
    Counts counts[2];
    std::thread other(launch, 1, calls, own[1], shared, out, std::ref(counts[1]));
    launch(0, calls, own[0], shared, out, counts[0]);
    other.join();
    if (graphs) {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cudaStreamBeginCapture(shared, cudaStreamCaptureModeThreadLocal);
        first<<<1, 32, 0, shared>>>(1000, out, 0.5f, 0, Pair{0, 0});
        cudaStreamEndCapture(shared, &graph);
        cudaGraphInstantiate(&executable, graph, 0);
        for (long k = 0; k < graphs; k++) cudaGraphLaunch(executable, shared);
    }
    cudaError_t error = cudaDeviceSynchronize();
    for (auto &[name, values] : counts[1])
        for (auto &[value, n] : values) counts[0][name][value] += n;
    printf("{\"launches\": %ld, \"error\": \"%s\"", 2 * calls, cudaGetErrorString(error));
    for (auto &[name, values] : counts[0]) {
        printf(", \"%s\": {", name.c_str());
        const char *before = "";
        for (auto &[value, n] : values) printf("%s\"%lld\": %ld", before, (long long)value, n), before = ", ";
        printf("}");
    }
    printf("}\n");
    return error != cudaSuccess;
}
