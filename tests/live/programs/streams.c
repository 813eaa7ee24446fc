// Creates STREAMS streams of each of three ways, destroys as many of the first way, and one twice, which fails. Prints how many it
// created and destroyed.
// flags: -L $SOFTGPU -lcudart -lcuda
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cudaFree(void *), cudaStreamCreate(Handle *), cudaStreamCreateWithPriority(Handle *, unsigned, int), cudaStreamDestroy(Handle);
int cuStreamCreate(Handle *, unsigned), cuStreamDestroy_v2(Handle);

__attribute__((noinline)) int makes_streams(Handle *all, int n) {
  int bad = 0;
  for (int i = 0; i < n; i++) bad |= cudaStreamCreate(&all[i]);
  return bad;
}

int main(int argc, char **argv) {
  int n = atoi(argv[1]), bad = cudaFree(0), twice;
  Handle first[64], other;
  (void)argc;
  bad |= makes_streams(first, n);
  for (int i = 0; i < n; i++) bad |= cudaStreamCreateWithPriority(&other, 1, -2) | cuStreamCreate(&other, 1);
  for (int i = 0; i < n; i++) bad |= cudaStreamDestroy(first[i]);
  twice = cuStreamDestroy_v2(first[0]);
  printf("created %d destroyed %d again %d bad %d\n", 3 * n, n, twice != 0, bad);
  return bad;
}
