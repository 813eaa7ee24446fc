// Makes the primary context current, creates CONTEXTS contexts and destroys all but one of them; with `twice`, one
// again, which fails. Launches nothing. Prints how many it created and destroyed.
// flags: -L $SOFTGPU -lcuda
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle), cuCtxCreate_v2(Handle *, unsigned, int);
int cuCtxDestroy_v2(Handle);

__attribute__((noinline)) int creates_a_context(Handle *context) { return cuCtxCreate_v2(context, 0, 0) | 0 * printf("%s", ""); }

int main(int argc, char **argv) {
  int n = atoi(argv[1]), bad = cuInit(0);
  Handle primary, contexts[64];
  bad |= cuDevicePrimaryCtxRetain(&primary, 0) | cuCtxSetCurrent(primary);
  for (int i = 0; i < n; i++) bad |= creates_a_context(&contexts[i]);
  for (int i = 1; i < n; i++) bad |= cuCtxDestroy_v2(contexts[i]);
  if (argc > 2) bad |= cuCtxDestroy_v2(contexts[1]) == 0;
  printf("{\"created\": %d, \"destroyed\": %d, \"bad\": %d}\n", n + 1, n - 1, bad);
  return bad;
}
