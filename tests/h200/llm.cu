// A small language model's inference with random weights: the demo's and the recordings' workload.
//
//   nvcc -O2 -arch=native -cudart shared -Xcompiler -fno-omit-frame-pointer,-fno-optimize-sibling-calls -o llm llm.cu
//   ./llm [TOKENS] [PROMPT]
//
// The call path is main;chat;prefill|forward;attention|matmul|…  Every kernel does real work: the
// prefill attends naively over the whole prompt (kernels of well over 100 ms), and each decoded token
// launches 14 kernels per layer. At exit it prints its own account of launches as JSON.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>

#define NOINLINE __attribute__((noinline))
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)

constexpr int DIM = 512, HEADS = 8, HEAD = DIM / HEADS, HIDDEN = 1408, LAYERS = 12, VOCAB = 8192, WINDOW = 1024;
static long n_launches = 0;
#define LAUNCH(kernel, grid, block, ...) do { kernel<<<grid, block>>>(__VA_ARGS__); n_launches++; } while (0)

__global__ void fill_random(float *p, size_t n, unsigned seed, float scale) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    unsigned x = (unsigned)i * 2654435761u + seed; x ^= x >> 16; x *= 2246822519u; x ^= x >> 13; x *= 3266489917u; x ^= x >> 16;
    p[i] = ((x & 0xffffff) / 8388608.0f - 1.0f) * scale;
  }
}
__global__ void embed_kernel(float *x, const float *table, const int *token) { x[threadIdx.x] = table[(size_t)*token * DIM + threadIdx.x]; }
__global__ void rmsnorm_kernel(float *out, const float *x, const float *w, int n) {
  __shared__ float sum[32]; float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  for (int o = 16; o; o >>= 1) s += __shfl_down_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) sum[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) { float t = 0; for (int i = 0; i < blockDim.x / 32; i++) t += sum[i]; sum[0] = rsqrtf(t / n + 1e-5f); }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = w[i] * x[blockIdx.x * n + i] * sum[0];
}
// One warp per row of the result, for `tokens` columns of input.
template <int TILE> __global__ void matmul_kernel(float *out, const float *w, const float *x, int n, int d, int tokens) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= d) return;
  for (int t = blockIdx.y * TILE; t < min(tokens, (int)(blockIdx.y + 1) * TILE); t++) {
    float s = 0;
    for (int i = lane; i < n; i += 32) s += w[(size_t)row * n + i] * x[(size_t)t * n + i];
    for (int o = 16; o; o >>= 1) s += __shfl_down_sync(~0u, s, o);
    if (lane == 0) out[(size_t)t * d + row] = s;
  }
}
__global__ void rope_kernel(float *q, float *k, int position) {
  int t = blockIdx.x, i = threadIdx.x * 2; float f = (position + t) * powf(10000.0f, -(float)(i % HEAD) / HEAD), c = cosf(f), s = sinf(f);
  for (float *p : {q + (size_t)t * DIM + i, k + (size_t)t * DIM + i}) { float a = p[0], b = p[1]; p[0] = a * c - b * s; p[1] = a * s + b * c; }
}
__global__ void store_kv_kernel(float *kc, float *vc, const float *k, const float *v, int position) {
  size_t to = (size_t)(position + blockIdx.x) * DIM + threadIdx.x, from = (size_t)blockIdx.x * DIM + threadIdx.x; kc[to] = k[from]; vc[to] = v[from];
}
// One block per head: the decoded token attends over all previous ones.
__global__ void attention_kernel(float *out, const float *q, const float *kc, const float *vc, int length) {
  extern __shared__ float score[]; __shared__ float red[256]; int h = blockIdx.x; float m = -1e30f;
  for (int t = threadIdx.x; t < length; t += blockDim.x) { float s = 0; for (int i = 0; i < HEAD; i++) s += q[h * HEAD + i] * kc[(size_t)t * DIM + h * HEAD + i]; s *= 0.125f; score[t] = s; m = fmaxf(m, s); }
  red[threadIdx.x] = m; __syncthreads();
  for (int o = blockDim.x / 2; o; o >>= 1) { if (threadIdx.x < o) red[threadIdx.x] = fmaxf(red[threadIdx.x], red[threadIdx.x + o]); __syncthreads(); }
  m = red[0]; __syncthreads(); float z = 0;
  for (int t = threadIdx.x; t < length; t += blockDim.x) { score[t] = expf(score[t] - m); z += score[t]; }
  red[threadIdx.x] = z; __syncthreads();
  for (int o = blockDim.x / 2; o; o >>= 1) { if (threadIdx.x < o) red[threadIdx.x] += red[threadIdx.x + o]; __syncthreads(); }
  z = red[0];
  if (threadIdx.x < HEAD) { float s = 0; for (int t = 0; t < length; t++) s += score[t] * vc[(size_t)t * DIM + h * HEAD + threadIdx.x]; out[h * HEAD + threadIdx.x] = s / z; }
}
// The textbook version over a whole prompt: one thread per query and head, online softmax.
__global__ void naive_prefill_attention(float *out, const float *q, const float *kc, const float *vc, int tokens) {
  int query = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y; if (query >= tokens) return;
  float acc[HEAD] = {}, m = -1e30f, z = 0;
  for (int t = 0; t <= query; t++) {
    float s = 0; for (int i = 0; i < HEAD; i++) s += q[(size_t)query * DIM + h * HEAD + i] * kc[(size_t)t * DIM + h * HEAD + i];
    s *= 0.125f; float n = fmaxf(m, s), a = expf(m - n), b = expf(s - n); z = z * a + b; m = n;
    for (int i = 0; i < HEAD; i++) acc[i] = acc[i] * a + b * vc[(size_t)t * DIM + h * HEAD + i];
  }
  for (int i = 0; i < HEAD; i++) out[(size_t)query * DIM + h * HEAD + i] = acc[i] / z;
}
__global__ void add_kernel(float *x, const float *y, size_t n) { size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < n) x[i] += y[i]; }
__global__ void silu_mul_kernel(float *a, const float *b, size_t n) { size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < n) a[i] = a[i] / (1 + expf(-a[i])) * b[i]; }
__global__ void argmax_kernel(const float *p, int n, int *token) {
  __shared__ float best[256]; __shared__ int at[256]; float b = -1e30f; int w = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) if (p[i] > b) { b = p[i]; w = i; }
  best[threadIdx.x] = b; at[threadIdx.x] = w; __syncthreads();
  for (int o = blockDim.x / 2; o; o >>= 1) { if (threadIdx.x < o && best[threadIdx.x + o] > best[threadIdx.x]) { best[threadIdx.x] = best[threadIdx.x + o]; at[threadIdx.x] = at[threadIdx.x + o]; } __syncthreads(); }
  if (threadIdx.x == 0) *token = at[0];
}

struct Layer { float *norm1, *wq, *wk, *wv, *wo, *norm2, *w1, *w2, *w3, *kc, *vc; };
struct Model { float *embedding, *norm, *head; std::vector<Layer> layers; float *x, *xb, *q, *k, *v, *h1, *h3, *logits; int *token; };

static float *weights(size_t n, float scale) { static unsigned seed = 1; float *p; CHECK(cudaMalloc(&p, n * sizeof(float))); LAUNCH(fill_random, 256, 256, p, n, seed++ * 7919u, scale); return p; }
NOINLINE void load_model(Model &m, int context) {
  float s = 1.0f / sqrtf(DIM);
  m.embedding = weights((size_t)VOCAB * DIM, 1); m.norm = weights(DIM, 1); m.head = weights((size_t)VOCAB * DIM, s);
  for (int l = 0; l < LAYERS; l++)
    m.layers.push_back({weights(DIM, 1), weights(DIM * DIM, s), weights(DIM * DIM, s), weights(DIM * DIM, s), weights(DIM * DIM, s), weights(DIM, 1), weights(HIDDEN * DIM, s), weights(HIDDEN * DIM, s), weights(HIDDEN * DIM, s), weights((size_t)context * DIM, 1), weights((size_t)context * DIM, 1)});
  for (float **p : {&m.x, &m.xb, &m.q, &m.k, &m.v}) CHECK(cudaMalloc(p, (size_t)context * DIM * 4));
  for (float **p : {&m.h1, &m.h3}) CHECK(cudaMalloc(p, (size_t)context * HIDDEN * 4));
  CHECK(cudaMalloc(&m.logits, VOCAB * 4)); CHECK(cudaMalloc(&m.token, 4)); CHECK(cudaMemset(m.token, 0, 4));
}
NOINLINE void matmul(float *out, const float *w, const float *x, int n, int d, int tokens) { constexpr int TILE = 64; LAUNCH(matmul_kernel<TILE>, dim3((d + 7) / 8, (tokens + TILE - 1) / TILE), 256, out, w, x, n, d, tokens); }
NOINLINE void rmsnorm(float *out, const float *x, const float *w, int tokens) { LAUNCH(rmsnorm_kernel, tokens, 256, out, x, w, DIM); }
NOINLINE void add(float *x, const float *y, size_t n) { LAUNCH(add_kernel, (unsigned)((n + 255) / 256), 256, x, y, n); }
NOINLINE void attention(Model &m, Layer &l, int position, int tokens) {
  LAUNCH(rope_kernel, tokens, DIM / 2, m.q, m.k, position);
  LAUNCH(store_kv_kernel, tokens, DIM, l.kc, l.vc, m.k, m.v, position);
  if (tokens > 1) { LAUNCH(naive_prefill_attention, dim3((tokens + 63) / 64, HEADS), 64, m.xb, m.q, l.kc, l.vc, tokens); return; }
  // Decoding attends only over the last WINDOW tokens.
  int length = position + 1 < WINDOW ? position + 1 : WINDOW; size_t first = (size_t)(position + 1 - length) * DIM;
  attention_kernel<<<HEADS, 256, length * sizeof(float)>>>(m.xb, m.q, l.kc + first, l.vc + first, length); n_launches++;
}
NOINLINE void feed_forward(Model &m, Layer &l, int tokens) {
  rmsnorm(m.xb, m.x, l.norm2, tokens);
  matmul(m.h1, l.w1, m.xb, DIM, HIDDEN, tokens); matmul(m.h3, l.w3, m.xb, DIM, HIDDEN, tokens);
  size_t n = (size_t)tokens * HIDDEN; LAUNCH(silu_mul_kernel, (unsigned)((n + 255) / 256), 256, m.h1, m.h3, n);
  matmul(m.xb, l.w2, m.h1, HIDDEN, DIM, tokens); add(m.x, m.xb, (size_t)tokens * DIM);
}
NOINLINE void transformer(Model &m, int position, int tokens) {
  for (Layer &l : m.layers) {
    rmsnorm(m.xb, m.x, l.norm1, tokens);
    matmul(m.q, l.wq, m.xb, DIM, DIM, tokens); matmul(m.k, l.wk, m.xb, DIM, DIM, tokens); matmul(m.v, l.wv, m.xb, DIM, DIM, tokens);
    attention(m, l, position, tokens);
    matmul(m.q, l.wo, m.xb, DIM, DIM, tokens); add(m.x, m.q, (size_t)tokens * DIM);
    feed_forward(m, l, tokens);
  }
}
NOINLINE void prefill(Model &m, int tokens) { LAUNCH(fill_random, 256, 256, m.x, (size_t)tokens * DIM, 17u, 1.0f); transformer(m, 0, tokens); CHECK(cudaDeviceSynchronize()); }
NOINLINE void forward(Model &m, int position) {
  LAUNCH(embed_kernel, 1, DIM, m.x, m.embedding, m.token); transformer(m, position, 1);
  rmsnorm(m.x, m.x, m.norm, 1); matmul(m.logits, m.head, m.x, DIM, VOCAB, 1); LAUNCH(argmax_kernel, 1, 256, m.logits, VOCAB, m.token);
}
NOINLINE int chat(Model &m, int prompt, int tokens) {
  prefill(m, prompt); int token = 0;
  for (int i = 0; i < tokens; i++) { forward(m, prompt + i); if (i % 16 == 15) CHECK(cudaMemcpy(&token, m.token, 4, cudaMemcpyDeviceToHost)); }
  CHECK(cudaDeviceSynchronize()); return token;
}
int main(int argc, char **argv) {
  int tokens = argc > 1 ? atoi(argv[1]) : 500, prompt = argc > 2 ? atoi(argv[2]) : 26624; Model m;
  load_model(m, prompt + tokens); int last = chat(m, prompt, tokens); float logit; CHECK(cudaMemcpy(&logit, m.logits, 4, cudaMemcpyDeviceToHost)); CHECK(cudaGetLastError());
  if (!std::isfinite(logit)) { fprintf(stderr, "logits are not finite\n"); return 1; }
  printf("{\"launches\": %ld, \"tokens\": %d, \"last_token\": %d}\n", n_launches, tokens, last); return 0;
}
