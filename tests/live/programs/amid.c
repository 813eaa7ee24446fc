// Makes calls from a signal handler, amid a cudaMalloc that stores into memory which cannot be written yet, and at exit.
// flags: -L $SOFTGPU -lcudart -ldl
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
typedef void *Handle;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaStreamCreate(Handle *), cudaStreamQuery(Handle);
static void **page;
static Handle stream;
static void on_fault(int signal) {
  for (int i = 0; i < 7; i++) cudaStreamQuery(stream);
  if (mprotect(page, 4096, PROT_READ | PROT_WRITE)) _Exit(2);
}
static void at_exit(void) {
  if (cudaFree(*page)) _Exit(3);
}
int main(void) {
  if (cudaStreamCreate(&stream)) return 1;
  page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  signal(SIGSEGV, on_fault);
  atexit(at_exit);
  for (int i = 0; i < 10; i++) {
    if (i && cudaFree(*page)) return 1;
    if (mprotect(page, 4096, PROT_NONE) || cudaMalloc(page, 100)) return 1;
  }
}
